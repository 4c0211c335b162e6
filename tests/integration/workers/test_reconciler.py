"""A step of the reconciler that fails does not stop the others."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from pydantic import SecretStr

from aftermind import Memory, Settings, errors
from aftermind.db.engine import PostgresDatabase
from aftermind.llm.rate_limit_and_circuit_breaker import FAILURES
from aftermind.types import JobId, Scope
from aftermind.types.replay import JobFilter
from aftermind.types.tombstone import Tombstone
from aftermind.wire import queues
from aftermind_tasks.runtime import Runtime, open_runtime
from aftermind_workers import metrics, reconciler
from tests.support.servers import Database, psql_async
from tests.support.waiting import wait_until

JOB = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key)
    VALUES (gen_random_uuid(), 'default', 'alice', 'embed', 'queued', 'an effect')
"""

LOST = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, attempts, token, worker, lease_until)
    VALUES (gen_random_uuid(), 'default', 'alice', 'extract', 'running', 'e', 1, gen_random_uuid(), 'w', '2026-01-01')
"""


@pytest.fixture
async def runtime(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        redis_prefix=f"reconciler-{uuid4().hex[:8]}:",
        reconcile_seconds=0.1,
        state_dir=tmp_path,
        embedder="hash",
        extractor="off",
    )
    opened = await open_runtime(settings, worker="w")
    yield opened
    await opened.close()


async def test_doorbells_are_sent_although_the_epoch_cannot_be_read(database: Database, runtime: Runtime) -> None:
    redis, keys = runtime.redis, runtime.keys
    assert redis is not None
    await redis.call("SADD", keys.epoch(), "no epoch")
    await psql_async(database.url, JOB)
    running = asyncio.create_task(reconciler.run(runtime, until=lambda: False))

    async def has_rung() -> bool:
        return int(await redis.call("LLEN", keys.queue(queues.EMBED))) > 0

    try:
        await wait_until(has_rung, timeout=30, description="the doorbell is sent")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_erasure_that_cannot_be_delivered_delays_none_of_another_tenant(
    database: Database, runtime: Runtime
) -> None:
    """The first tenant's tombstone is held by another transaction, as by a backup tool or a forgotten session."""
    assert runtime.pending is not None
    brief = replace(runtime, db=PostgresDatabase(database.relay_url, timeout_seconds=2.0))
    for name in ("acme", "globex"):
        async with runtime.db.transaction(namespace=name) as tx:
            owner = Scope(namespace=name, user_id="alice")
            stone = Tombstone(owner=owner, generation=await runtime.store.begin_erasure(tx, owner))
            await runtime.store.forget(tx, stone)
    await psql_async(database.admin_url, "UPDATE aftermind.tombstones SET at = at - interval '1 minute'")
    holder = await asyncpg.connect(database.admin_url)
    async with holder.transaction():
        await holder.execute("SELECT FROM aftermind.tombstones WHERE namespace = 'acme' FOR UPDATE")
        await reconciler.Reconciler(runtime=brief).tick()
        left = "SELECT namespace FROM aftermind.tombstones WHERE NOT delivered"
        assert await psql_async(database.admin_url, left) == "acme"
    await holder.close()
    await reconciler.Reconciler(runtime=brief).tick()
    assert await psql_async(database.admin_url, left) == ""
    await brief.db.close()


async def test_a_lost_lease_is_among_the_failures_of_its_kind(database: Database, runtime: Runtime) -> None:
    counter = metrics.FAILURES.labels("extract", "lease_lost")
    before = counter._value.get()
    await psql_async(database.url, LOST)

    await reconciler.Reconciler(runtime=runtime).tick()

    assert counter._value.get() == before + 1


OLD_EXTRACTION = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at)
    VALUES ('{id}', 'default', 'u', 'extract', 'queued', 'e', now() - interval '1 hour')
"""


@pytest.mark.parametrize(("extractor", "is_paused"), [("openai", False), ("openai", True), ("rules", True)])
async def test_the_history_and_the_jobs_know_what_is_paused(
    database: Database, runtime: Runtime, extractor: str, *, is_paused: bool
) -> None:
    """An extraction by a provider, or by none, and a turn of a tenant whose jobs are paused."""
    job_id, later = uuid4(), uuid4()
    await psql_async(database.url, OLD_EXTRACTION.format(id=job_id))
    in_an_hour = OLD_EXTRACTION.replace("- interval", "+ interval").replace("'e'", "'f'")
    await psql_async(database.url, in_an_hour.format(id=later))
    chosen = runtime.settings.model_copy(update={"extractor": extractor, "openai_api_key": SecretStr("k")})
    runtime = replace(runtime, settings=chosen)
    async with Memory(settings=chosen, namespace="acme") as memory:
        if is_paused:
            await memory.job_admin.pause(kind="store", namespace="acme", reason="INC-7", actor="ops")
            for _ in range(FAILURES):
                await runtime.providers.gate.report("openai", errors.ModelUnavailable("openai", "no connection"))
        await memory.remember("I live in Oslo.", user_id="ann")
        await reconciler.Reconciler(runtime=runtime).tick()
        [sample] = await memory.job_admin.metric_history()
        jobs = await memory.job_admin.list(JobFilter(namespace="default"))
        reasons = await memory.job_admin.hold_reasons(jobs, namespace="default")
        timeline = await memory.job_admin.timeline(job_id, namespace="default")

    assert timeline is not None
    waits = is_paused and extractor == "openai"
    ages = [sample.series[f'aftermind_oldest_runnable_seconds{{kind="{kind}"}}'] for kind in ("store", "extract")]
    assert [bool(age) for age in ages] == [not is_paused, not waits]
    assert sample.series['aftermind_runnable_jobs{kind="extract"}'] == 1
    assert {job.id for job in jobs} == {job_id, later}
    assert later not in reasons  # not before its time
    [extraction] = [step for step in timeline.steps if step.name == "extract"]
    for reason in (reasons.get(JobId(job_id), ""), extraction.detail or ""):
        assert ("openai is paused for" in reason) is waits
    assert "next attempt" in (extraction.detail or "")
