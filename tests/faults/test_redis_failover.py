"""`sentinel://`: after a failover the new primary is used, and no accepted turn is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermind import errors
from aftermind.wire.redis.client import RedisLink
from tests.support.failovers import lose_redis_primary
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.servers import Database
from tests.support.waiting import wait_until

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
    outcome = await lose_redis_primary(sentinels, database, tmp_path)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
