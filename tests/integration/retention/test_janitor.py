"""What is old is cleared away in batches, by one of the workers; dead letters and what still works for them stay."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind_tasks.runtime import Runtime, open_runtime
from aftermind_workers import janitor, reconciler
from aftermind_workers.janitor import Janitor
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.stored_turns import keep, said

# Jobs of every state with two attempts each, a hundred days old; and one of each state of today.
JOBS = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, created_at, updated_at)
    SELECT gen_random_uuid(), 'default', 'u', 'store', state, gen_random_uuid()::text, at, at
    FROM unnest(ARRAY['done', 'discarded', 'forgotten', 'replayed', 'dead', 'queued', 'retrying']) AS state,
         unnest(ARRAY[now() - interval '100 days', now()]) AS at, generate_series(1, {copies})
"""
ATTEMPTS = """
    INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at)
    SELECT namespace, id, number, 'w', created_at FROM aftermind.jobs, generate_series(1, 2) AS number
"""
STATES = "SELECT string_agg(DISTINCT state, ' ' ORDER BY state) FROM aftermind.jobs"
LEFT = f"{STATES} WHERE created_at < now() - interval '1 day'"
UNFINISHED = "dead queued retrying"

SET_YESTERDAY = "UPDATE aftermind.retention_policies SET updated_at = now() - interval '25 hours'"


@pytest.fixture
def settings(database: Database, redis_url: str, tmp_path: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        redis_prefix=f"janitor-{uuid4().hex[:8]}:",
        state_dir=tmp_path,
        embedder="hash",
        extractor="off",
    )


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    """As a worker opens it."""
    opened = await open_runtime(settings, worker="w")
    yield opened
    await opened.close()


async def test_more_than_a_batch_goes_in_one_round_and_dead_letters_stay(database: Database, runtime: Runtime) -> None:
    await psql_async(database.url, JOBS.format(copies=700), ATTEMPTS)

    is_more = await Janitor(runtime=runtime).round()

    assert not is_more
    assert await psql_async(database.url, LEFT) == UNFINISHED
    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.jobs") == str(700 * (7 + 3))
    orphans = "SELECT count(*) FROM aftermind.job_attempts WHERE job_id NOT IN (SELECT id FROM aftermind.jobs)"
    assert await psql_async(database.url, orphans) == "0"


async def test_attempts_go_by_a_schedule_of_their_own(database: Database, settings: Settings) -> None:
    runtime = await open_runtime(
        settings.model_copy(update={"job_retention_days": 1000.0, "attempt_retention_days": 50.0}), worker="w"
    )
    await psql_async(database.url, JOBS.format(copies=1), ATTEMPTS)

    await Janitor(runtime=runtime).round()
    await runtime.close()

    kept = f"{STATES} JOIN aftermind.job_attempts ON id = job_id"
    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.jobs") == "14"
    assert await psql_async(database.url, f"{kept} WHERE started_at < now() - interval '1 day'") == UNFINISHED
    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.job_attempts") == str(2 * (7 + 3))


async def test_old_tombstones_go_and_young_ones_hold(database: Database, settings: Settings, runtime: Runtime) -> None:
    async with Memory(settings=settings) as memory:
        for user in ("old", "young", "both"):
            await memory.forget(user_id=user)
        await psql_async(
            database.url, "UPDATE aftermind.tombstones SET at = at - interval '91 days' WHERE user_id <> 'young'"
        )
        await memory.forget(user_id="both")
    await psql_async(  # of a policy: what it covers was stored long ago
        database.url,
        "INSERT INTO aftermind.tombstones (namespace, user_id, generation, at, ids, by_policy, delivered) VALUES "
        "('default', 'both', 98, now() - interval '2 days', ARRAY[gen_random_uuid()], true, true), "
        "('default', 'young', 99, now() - interval '1 hour', ARRAY[gen_random_uuid()], true, true)",
    )

    await Janitor(runtime=runtime).round()

    left = (await psql_async(database.url, "SELECT user_id, by_policy FROM aftermind.tombstones ORDER BY 1, 2")).split()
    forgets = (
        await psql_async(database.url, "SELECT user_id, tombstone_count > 0 FROM aftermind.users ORDER BY 1")
    ).split()
    assert left == ["both|f", "young|f", "young|t"]
    assert forgets == ["both|t", "old|f", "young|t"]


async def test_a_forget_beside_the_clearing_of_tombstones_is_never_overlooked(
    database: Database, settings: Settings, runtime: Runtime
) -> None:
    """Were `tombstone_count` set to zero from a read before the forget, its tombstone would be ignored."""
    cleaning = Janitor(runtime=runtime)
    async with Memory(settings=settings) as memory:
        for _ in range(30):
            await psql_async(
                database.url,
                "INSERT INTO aftermind.users (namespace, user_id, tombstone_count) VALUES ('default', 'u', 1) "
                "ON CONFLICT (namespace, user_id) DO UPDATE SET tombstone_count = 1",
                "DELETE FROM aftermind.tombstones",
                "INSERT INTO aftermind.tombstones (namespace, user_id, generation, at, delivered) "
                "VALUES ('default', 'u', 1, now() - interval '1 year', true)",
            )
            await asyncio.gather(memory.forget(user_id="u"), cleaning.round())
            assert await psql_async(database.url, "SELECT tombstone_count > 0 FROM aftermind.users") == "t"


async def test_policies_are_carried_out_by_the_workers_once_a_day(
    database: Database, settings: Settings, runtime: Runtime
) -> None:
    for namespace in ("acme", "globex"):
        await keep(database.url, [said(f"Line {n}.", namespace=namespace) for n in range(5)])
    counts = "SELECT namespace, count(*) FROM aftermind.episodes GROUP BY 1 ORDER BY 1"
    async with Memory(settings=settings) as memory:
        for namespace, most in (("acme", 2), ("globex", 4)):
            await memory.retention.set(max_episodes=most, namespace=namespace)
        await psql_async(database.url, SET_YESTERDAY)
        running = asyncio.create_task(reconciler.run(runtime, until=lambda: False))
        done = "SELECT count(*) FROM aftermind.retention_policies WHERE ran_at IS NOT NULL"
        try:
            await wait_for_output(database.url, done, "2", description="both are carried out")
        finally:
            running.cancel()
        assert (await psql_async(database.url, counts)).split() == ["acme|2", "globex|4"]
        await keep(database.url, [said("One more.", namespace="acme")])
        await asyncio.gather(running, return_exceptions=True)
        await Janitor(runtime=runtime).round()

        assert (await psql_async(database.url, counts)).split() == ["acme|3", "globex|4"], "not again on the same day"
        policy = await memory.retention.get(namespace="acme")
        assert policy is not None
        assert policy.ran_at is not None


@pytest.mark.parametrize(
    ("changed", "left"),
    [({"max_episodes": 1}, "3"), ({"max_episodes": 2}, "2")],
    ids=["a changed one waits for a day", "one that is set again as it is does not"],
)
async def test_a_new_or_changed_policy_deletes_nothing_within_a_day(
    database: Database, settings: Settings, runtime: Runtime, changed: dict[str, int], left: str
) -> None:
    await keep(database.url, [said(f"Line {n}.") for n in range(3)])
    count = "SELECT count(*) FROM aftermind.episodes"
    async with Memory(settings=settings) as memory:
        await memory.retention.set(max_episodes=2)
        await Janitor(runtime=runtime).round()
        assert await psql_async(database.url, count) == "3", "an operator can still count first"
        assert (await memory.retention.run(dry_run=True)).episodes == 1
        await psql_async(database.url, SET_YESTERDAY)
        policy = await memory.retention.set(**changed)
        assert policy == await memory.retention.get()

        await Janitor(runtime=runtime).round()

        assert await psql_async(database.url, count) == left
        await memory.retention.run()
        assert await psql_async(database.url, count) == str(changed["max_episodes"]), "a run by hand is immediate"


class TwoDaysAhead:
    """The clock of a worker that is wrong."""

    def utc_now(self) -> datetime:
        """Two days from now."""
        return datetime.now(UTC) + timedelta(days=2)


async def test_a_policy_runs_once_a_day_by_the_clock_of_the_database(
    database: Database, settings: Settings, runtime: Runtime
) -> None:
    await keep(database.url, [said(f"Line {n}.") for n in range(3)])
    async with Memory(settings=settings) as memory:
        await memory.retention.set(max_episodes=1)
    await psql_async(database.url, SET_YESTERDAY)
    await Janitor(runtime=runtime).round()
    await keep(database.url, [said("One more.")])

    await Janitor(runtime=replace(runtime, clock=TwoDaysAhead())).round()

    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.episodes") == "2"


async def test_one_of_several_clears_away_at_a_time(
    database: Database, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "BATCH_ROWS", 5)
    await psql_async(database.url, JOBS.format(copies=50))
    together = [Janitor(runtime=runtime) for _ in range(4)]

    while any(await asyncio.gather(*(each.round() for each in together))):
        pass

    assert await psql_async(database.url, LEFT) == UNFINISHED


async def test_an_archive_that_does_not_answer_holds_up_nobody_else(
    database: Database, settings: Settings, runtime: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "in-the-way").write_text("")
    for namespace in ("acme", "globex"):
        await keep(database.url, [said("One.", namespace=namespace), said("Two.", namespace=namespace)])
    async with Memory(settings=settings) as memory:
        away = str(tmp_path / "in-the-way" / "archive")
        await memory.retention.set(max_episodes=1, namespace="acme", archive=away)
        await memory.retention.set(max_age=timedelta(days=1), namespace="globex")
    await psql_async(database.url, SET_YESTERDAY)

    await Janitor(runtime=runtime).round()

    counts = "SELECT namespace, count(*) FROM aftermind.episodes GROUP BY 1 ORDER BY 1"
    assert await psql_async(database.url, counts) == "acme|2"
