"""Charts are full when they are opened: the history has every minute of a day, and every hour of a month."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind.db import metric_history
from aftermind.db.engine import PostgresDatabase
from aftermind.types.uuid7 import uuid7
from tests.support.servers import Database, Servers, psql_async

MINUTE = timedelta(minutes=1)
THIS_HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


@pytest.fixture
async def postgres(database: Database) -> AsyncIterator[PostgresDatabase]:
    """The database as the reconciler sees it."""
    opened = PostgresDatabase(database.relay_url)
    yield opened
    await opened.close()


async def _complete(
    database: Database, at: datetime, *, kind: str = "extract", outcome: str = "done", took: float = 2.0
) -> None:
    """A job that was created `took` seconds before `at`, and whose attempt ended then."""
    job, began = uuid4(), at - timedelta(seconds=took)
    state = "done" if outcome == "done" else "dead"
    await psql_async(
        database.url,
        "INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, reason_code, created_at,"
        f" updated_at) VALUES ('{job}', 'default', 'u', '{kind}', '{state}', '{job}', 'llm_bad_answer', '{began}',"
        f" '{at}')",
        "INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at, ended_at, outcome, model,"
        " calls, tokens_in, cost_usd)"
        f" VALUES ('default', '{job}', 1, 'w', '{began}', '{at}', '{outcome}', 'm', 1, 20, 0.5)",
    )


async def test_a_sample_has_what_was_done_in_its_minute_by_all_processes(
    database: Database, postgres: PostgresDatabase
) -> None:
    until = THIS_HOUR + MINUTE
    inside, outside = until - timedelta(seconds=30), until + timedelta(seconds=1)
    for _ in range(3):
        await _complete(database, inside)
    await _complete(database, inside, outcome="dead")
    await _complete(database, inside, outcome="lost")
    await _complete(database, outside)
    stored = uuid7()
    await psql_async(
        database.url,
        "INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at, created_at, updated_at)"
        f" VALUES ('{stored}', 'default', 'u', 'store', 'done', '{stored}', '{inside - timedelta(seconds=2)}',"
        f" '{inside}', '{inside}')",
    )

    async with postgres.transaction() as tx:
        await metric_history.sample(tx, until, {'aftermind_runnable_jobs{kind="extract"}': 7.0})
        [found] = await metric_history.read(tx, MINUTE, since=until - MINUTE, until=until)

    series = found.series
    assert series['aftermind_runnable_jobs{kind="extract"}'] == 7
    assert series['aftermind_jobs_total{kind="extract",outcome="done"}'] == 3
    assert series['aftermind_jobs_total{kind="store",outcome="done"}'] == 1
    assert series['aftermind_failures_total{kind="extract",reason="llm_bad_answer"}'] == 1
    assert series['aftermind_failures_total{kind="extract",reason="lease_lost"}'] == 1
    assert series['aftermind_model_cost_usd_total{kind="extract",model="m"}'] == 2.5
    assert series['aftermind_model_tokens_total{kind="extract",model="m",direction="in"}'] == 100
    assert series['aftermind_freshness_seconds_bucket{stage="mined",le="1"}'] == 0
    assert series['aftermind_freshness_seconds_bucket{stage="mined",le="2.5"}'] == 3
    assert series['aftermind_freshness_seconds_bucket{stage="stored",le="1"}'] == 0
    assert series['aftermind_freshness_seconds_bucket{stage="stored",le="2.5"}'] == 1


async def test_an_hour_adds_counters_and_keeps_the_highest_gauge(
    database: Database, postgres: PostgresDatabase
) -> None:
    age = 'aftermind_oldest_runnable_seconds{kind="embed"}'
    for minute, seconds in ((-2, 5.0), (-1, 90.0), (0, 1.0)):
        until = THIS_HOUR + minute * MINUTE
        await _complete(database, until - timedelta(seconds=5))
        async with postgres.transaction() as tx:
            await metric_history.sample(tx, until, {age: seconds})

    async with postgres.transaction() as tx:
        [hour] = await metric_history.read(tx, metric_history.HOUR, since=THIS_HOUR - MINUTE, until=THIS_HOUR)

    assert hour.series[age] == 90
    assert hour.series['aftermind_jobs_total{kind="extract",outcome="done"}'] == 3


async def test_old_samples_are_deleted_and_a_minute_is_sampled_once(
    database: Database, postgres: PostgresDatabase
) -> None:
    old = THIS_HOUR - timedelta(days=2)
    async with postgres.transaction() as tx:
        until = await metric_history.due(tx)
        assert until is not None
        for at in (old, until, until):
            await metric_history.sample(tx, at, {"g": 1.0})

        found = await metric_history.read(tx, MINUTE, since=old - MINUTE, until=until)

        assert [each.at for each in found] == [until]
        assert await metric_history.due(tx) is None


async def test_recalls_of_an_agent_are_in_the_next_sample(
    database: Database, postgres: PostgresDatabase, servers: Servers
) -> None:
    settings = Settings(database_url=database.app_url, broker_url=servers.redis_url, redis_prefix=f"h-{uuid4().hex}:")
    async with Memory(settings=settings, namespace="acme") as memory:
        for _ in range(3):
            await memory.recall("Where do I live?", user_id="alice")

    async with postgres.transaction() as tx:
        await metric_history.sample(tx, THIS_HOUR + MINUTE, {})
        [found] = await metric_history.read(tx, MINUTE, since=THIS_HOUR, until=THIS_HOUR + MINUTE)

    assert found.series['aftermind_recall_seconds_bucket{served_by="primary",le="+Inf"}'] == 3
    left = await psql_async(database.url, "SELECT count(*) FROM aftermind.recall_counts")
    assert left.strip() == "0"
