"""`sentinel://`: after a failover the new primary is used, and no accepted turn is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from aftermind.wire.redis.client import RedisLink
from tests.support.failover_load import Load, survive
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    """Three nodes of which a test may kill the primary, if it brings it back."""
    with running_sentinels() as running:
        yield running


async def test_a_wrong_service_is_named_and_the_primary_takes_the_commands(sentinels: Sentinels) -> None:
    wrong, right = RedisLink(sentinels.url("memoirs"), timeout=20.0), RedisLink(sentinels.url(), timeout=20.0)
    try:
        with pytest.raises(errors.UnknownSentinelService, match="no service 'memoirs'"):
            await wrong.call("PING")
        assert (await right.call("ROLE"))[0] == b"master"
        assert (await right.client().info("replication"))["role"] == "master"
    finally:
        await wrong.close()
        await right.close()


async def test_a_connection_to_a_node_that_takes_no_writes_is_closed(sentinels: Sentinels) -> None:
    replica = next(node for node in sentinels.nodes if node is not sentinels.primary())
    link = RedisLink(replica.url, timeout=20.0)
    try:
        channel = await link.connect()
        with pytest.raises(errors.RedisUnavailable, match="READONLY"):
            await link.call("SET", "key", "value")
        await wait_until(lambda: not channel.is_open, description="the connection is closed")
    finally:
        await link.close()


@pytest.mark.long
async def test_the_loss_of_the_primary_loses_and_doubles_no_accepted_turn(
    database: Database, sentinels: Sentinels, tmp_path: Path
) -> None:
    settings = Settings(
        state_dir=tmp_path,
        embedder="hash",
        extractor="off",
        remember_budget_seconds=0.5,
        redis_timeout_seconds=0.5,
    )

    async def fail_over(load: Load) -> None:
        old = await asyncio.to_thread(sentinels.primary)
        await asyncio.to_thread(old.kill)
        await asyncio.to_thread(sentinels.wait_for_failover, old)
        await load.reach(100)
        await asyncio.to_thread(old.start)  # as a primary, until the sentinels demote it
        await load.reach(100)

    url = sentinels.url()
    with workers(environment(database.relay_url, url, AFTERMIND_EXTRACTOR="off"), tmp_path, count=2):
        async with Memory(database.app_url, broker=url, settings=settings) as memory:
            outcome = await survive(memory, database.admin_url, fail_over)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
