"""A timeline shows why a job waited that was claimed and given back, on every store. No worker runs here."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind.ledger.job_timeline import MAX_WAITS
from aftermind.ledger.protocol import Failure, Ledger
from aftermind.types import JobId, JobKind, Lease, NewJob, Scope
from aftermind.types.job_admin import TimelineStep
from aftermind.types.replay import JobFilter
from tests.support.servers import Database

NOW, LATER, LEASE = timedelta(0), timedelta(hours=1), timedelta(minutes=1)
FAILURE = Failure(reason_code="llm_unavailable", error_class="ModelUnavailable", error="500", fingerprint="f")


@pytest.fixture(params=["sqlite", "postgres"])
def unopened(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    """An operator's memory on a store of one process and on Postgres, whose jobs nothing runs."""
    given: dict[str, object] = {"state_dir": tmp_path, "embedder": "hash", "extractor": "rules", "run_jobs": False}
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        given |= {"database_url": database.app_url, "relay_url": database.relay_url}
        given |= {"broker_url": request.getfixturevalue("redis_url")}
        return Memory(settings=Settings(**given))
    return Memory(f"sqlite:{tmp_path}/bot.db", settings=Settings(**given))


@pytest.fixture
async def memory(unopened: Memory) -> AsyncIterator[Memory]:
    """The memory, opened."""
    async with unopened as opened:
        yield opened


def ledger_of(memory: Memory) -> Ledger:
    """The ledger as a worker has it: of all tenants."""
    return type(memory._parts.ledger)(memory._parts.operations)  # type: ignore[call-arg]  # the protocol has no init


async def put(memory: Memory, user: str = "alice") -> JobId:
    job = NewJob(
        id=JobId(uuid4()),
        kind=JobKind.SUMMARISE,
        scope=Scope(namespace=memory.namespace, user_id=user, session_id="s1"),
        effect_key=str(uuid4()),
    )
    async with memory._parts.db.transaction(namespace=memory.namespace) as tx:
        await memory._parts.ledger.enqueue(tx, [job])
    return job.id


async def claim(memory: Memory, job: JobId) -> Lease:
    (lease,) = await ledger_of(memory).claim(JobKind.SUMMARISE, worker="w", for_=LEASE, ids=[job])
    return lease


async def give_back(memory: Memory, job: JobId, why: str, *, after: timedelta = NOW) -> None:
    await ledger_of(memory).snooze(await claim(memory, job), after=after, why=why)


async def steps_of(memory: Memory, job: JobId) -> list[TimelineStep]:
    found = await memory.job_admin.timeline(job, namespace=memory.namespace, for_tenant=True)
    assert found is not None
    return list(found.steps)


async def waits(memory: Memory, job: JobId) -> list[TimelineStep]:
    return [step for step in await steps_of(memory, job) if step.name == "summarise waited"]


async def test_a_timeline_shows_why_a_job_waited_and_that_it_used_no_attempt(memory: Memory) -> None:
    job = await put(memory)

    await give_back(memory, job, "openai is paused: rate limit")
    await give_back(memory, job, "openai is paused: rate limit")
    await give_back(memory, job, "the budget is spent", after=LATER)

    first, last = await waits(memory, job)
    assert (first.detail, last.detail) == ("openai is paused: rate limit", "the budget is spent"), "one for each reason"
    assert {step.job_id for step in (first, last)} == {job}
    assert last.ended_at is None, "it is not over"
    assert not [step for step in await steps_of(memory, job) if " attempt " in step.name]
    (waiting,) = await memory.job_admin.list(JobFilter(ids=(job,)))
    assert (waiting.attempts, waiting.note) == (0, "the budget is spent")


async def test_a_wait_ends_when_the_job_runs_though_it_was_to_be_longer(memory: Memory) -> None:
    job = await put(memory)
    await give_back(memory, job, "the budget is spent", after=LATER)
    await memory.job_admin.apply("run_now", JobFilter(ids=(job,)), actor="ops")

    lease = await claim(memory, job)
    async with memory._parts.operations.transaction(namespace=memory.namespace) as tx:
        await ledger_of(memory).finish(tx, lease)

    (attempt,) = [step for step in await steps_of(memory, job) if step.name.startswith("summarise attempt")]
    (wait,) = await waits(memory, job)
    assert (attempt.name, attempt.state) == ("summarise attempt 1", "done")
    assert wait.at < attempt.at == wait.ended_at


async def test_a_wait_for_the_same_reason_after_an_attempt_is_another_one(memory: Memory) -> None:
    job = await put(memory)

    await give_back(memory, job, "openai is paused")
    await ledger_of(memory).retry(await claim(memory, job), FAILURE, after=NOW)
    await give_back(memory, job, "openai is paused")
    await give_back(memory, job, "openai is paused", after=LATER)

    first, second = await waits(memory, job)
    assert first.ended_at is not None
    assert first.ended_at < second.at
    assert second.ended_at is None


async def test_the_latest_waits_of_a_job_are_kept_however_often_its_reason_changes(memory: Memory) -> None:
    job, other = await put(memory), await put(memory, "bob")

    await give_back(memory, other, "of another job")
    for number in range(MAX_WAITS + 3):
        await give_back(memory, job, f"reason {number}")

    assert [step.detail for step in await waits(memory, job)] == [f"reason {n}" for n in range(3, MAX_WAITS + 3)]
    assert [step.detail for step in await waits(memory, other)] == ["of another job"]


async def test_an_erasure_deletes_the_waits_of_the_user_and_pruning_old_ones(memory: Memory) -> None:
    alices, bobs = await put(memory), await put(memory, "bob")
    for job in (alices, bobs):
        await give_back(memory, job, "openai is paused")

    await memory.forget(user_id="alice")
    assert [len(await waits(memory, job)) for job in (alices, bobs)] == [0, 1]

    await ledger_of(memory).prune(older_than=timedelta(days=1), limit=100)
    assert len(await waits(memory, bobs)) == 1
    await ledger_of(memory).prune(older_than=NOW, limit=100)
    assert await waits(memory, bobs) == []
