"""Several hosts in one URL: after a promotion the new primary is used, and the old one never again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import text

from aftermind import Memory, Settings, errors
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Verdict
from aftermind.db.engine import PostgresDatabase
from tests.support.failovers import lose_postgres_primary
from tests.support.postgres_pair import PostgresPair, running_pair
from tests.support.servers import Database, psql_async
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.timeout(600)
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"
CANCEL = WAITING.replace("pid", "pg_cancel_backend(pid)", 1)
WRITE = "SELECT pg_logical_emit_message(true, 'test', '')"  # as little as a commit can be


@pytest.fixture
async def pair() -> AsyncIterator[PostgresPair]:
    """A primary whose commits wait for its replica."""
    async with running_pair() as running:
        yield running


@asynccontextmanager
async def opened(url: str, *, timeout_seconds: float = 30.0) -> AsyncIterator[PostgresDatabase]:
    """A database that is closed after the block."""
    database = PostgresDatabase(url, timeout_seconds=timeout_seconds, connect_timeout_seconds=30.0)
    try:
        yield database
    finally:
        await database.close()


async def write_to(database: PostgresDatabase) -> None:
    """Commit a transaction."""
    async with database.transaction() as tx:
        await tx.record(WRITE)


async def refuses(database: PostgresDatabase, reason: str) -> bool:
    """Whether a new connection was tried: before that, a call can meet the pooled one that just died."""
    with pytest.raises(errors.StoreUnavailable) as refused:
        await database.watermark()
    return reason in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_promotion_loses_and_doubles_no_accepted_turn(
    pair: PostgresPair, valkey: Valkey, tmp_path: Path, accept: Literal["redis", "postgres"]
) -> None:
    outcome = await lose_postgres_primary(pair, valkey.url, tmp_path, accept)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])


async def test_the_primary_on_the_latest_timeline_is_chosen_and_never_an_older_one_again(pair: PostgresPair) -> None:
    url = pair.url(pair.endpoints.postgres_url)
    async with opened(url) as known, opened(url) as fresh:
        assert (await known.watermark()).timeline == 1

        await pair.kill_primary()
        await wait_until(lambda: refuses(known, "is a replica"), description="no host is a primary")
        await pair.promote_replica()
        await pair.return_old_primary()
        assert (await known.watermark()).timeline == 2
        assert (await fresh.watermark()).timeline == 2
        findings = await doctor_checks.postgres(url, Settings())
        await pair.kill_replica()

        bad = [each.seen for each in findings if each.verdict is Verdict.BAD]
        assert "an old primary on timeline 1; timeline 2 is used" in bad
        await wait_until(lambda: refuses(known, "old primary on timeline 1"), description="the old one is refused")


async def test_a_commit_that_no_synchronous_replica_confirmed_is_not_reported_as_done(pair: PostgresPair) -> None:
    async with opened(pair.endpoints.admin_url) as database:
        async with database.transaction() as tx:
            await tx.record(WRITE)

        pair.freeze_replica()
        committing = asyncio.create_task(write_to(database))
        await wait_until(lambda: psql_async(pair.endpoints.admin_url, CANCEL), description="the commit is cancelled")
        pair.thaw_replica()

        with pytest.raises(errors.StoreUnavailable, match="no synchronous replica"):
            await committing
        await write_to(database)


@pytest.mark.long
async def test_a_turn_that_only_the_lost_primary_had_is_stored_after_the_promotion(
    pair: PostgresPair, valkey: Valkey, tmp_path: Path
) -> None:
    app, relay = pair.url(pair.endpoints.app_url), pair.url(pair.endpoints.relay_url)
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="off")

    with workers(environment(relay, valkey.url, AFTERMIND_EXTRACTOR="off"), tmp_path):
        async with Memory(app, broker=valkey.url, settings=settings) as memory:
            await (await memory.remember("I have a dog.", user_id="alice")).stored()
            pair.freeze_replica()
            receipt = await memory.remember("I keep bees.", user_id="alice")
            await wait_until(
                lambda: psql_async(pair.endpoints.admin_url, WAITING), description="the commit waits for the replica"
            )
            await pair.kill_primary()
            pair.thaw_replica()
            await pair.promote_replica()
            await receipt.stored()

    stored = await psql_async(pair.endpoints.replica_admin_urls[0], "SELECT content FROM aftermind.episodes ORDER BY 1")
    assert stored.splitlines() == ["I have a dog.", "I keep bees."]


async def test_a_host_that_is_no_primary_is_unavailable_if_the_url_asks_for_one(database: Database) -> None:
    async with opened(f"{database.replica_urls[0]}?target_session_attrs=primary") as replica:
        with pytest.raises(errors.StoreUnavailable, match="target attribute"):
            await replica.watermark()


async def test_a_replica_that_takes_no_writes_is_left_for_the_next_connection(database: Database) -> None:
    async with opened(database.replica_urls[0]) as replica:
        with pytest.raises(errors.StoreUnavailable, match="read-only"):
            async with replica.transaction() as tx:
                await tx.execute(text("DELETE FROM aftermind.episodes"))
