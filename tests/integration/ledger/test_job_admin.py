"""Operators find a job in any state, see what happened to a turn, and can take back what they did to many jobs."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from aftermind import Memory as AsyncMemory
from aftermind import Settings, errors
from aftermind.sync import Memory
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.job_admin import JobAction
from aftermind.types.replay import JobFilter
from aftermind.wire import queues
from aftermind_workers import claim_and_run_loop
from aftermind_workers.operator_pauses import READ_SECONDS
from tests.fundamentals.conftest import QUICK
from tests.support.deployed_service import running
from tests.support.local_worker import worker_without_celery
from tests.support.servers import Database, Servers, psql
from tests.support.waiting import wait_until_sync

SPACE = "default"


@pytest.fixture(scope="module")
def database(servers: Servers) -> Iterator[Database]:
    """The database of this module."""
    made = servers.create_database()
    yield made
    servers.drop_database(made)


@pytest.fixture(scope="module")
def settings(servers: Servers, database: Database, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A deployment of this module."""
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=servers.redis_url,
        redis_prefix=f"jobs-{uuid4().hex[:8]}:",
        state_dir=tmp_path_factory.mktemp("state"),
        **QUICK,
    )


@pytest.fixture(scope="module")
def memory(settings: Settings) -> Iterator[Memory]:
    """The memory of an operator."""
    with Memory(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A worker on all queues."""
    with running(["worker", "--queues", "all"], settings, tmp_path_factory.mktemp("worker") / "log"):
        yield


@pytest.fixture
def user() -> str:
    return f"user-{uuid4().hex[:8]}"


def _insert(database: Database, state: str, *, user: str, kind: str = "extract", run_at: str = "now()") -> UUID:
    job = uuid4()
    psql(
        database.url,
        "INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, kind, state, effect_key, attempts, run_at,"
        " token, lease_until, error, queue_position) "
        f"VALUES ('{job}', '{SPACE}', '{user}', 's', '{kind}', '{state}', '{job}', 1, {run_at},"
        f" CASE WHEN '{state}' = 'running' THEN gen_random_uuid() END,"
        f" CASE WHEN '{state}' = 'running' THEN now() + interval '1 h' END, 'it said no', NULL)",
    )
    return job


def test_jobs_of_every_state_are_found_by_state_user_session_and_error(
    memory: Memory, database: Database, user: str
) -> None:
    made = {state: _insert(database, state, user=user, run_at="now() + interval '1 h'") for state in JobState}
    mine = JobFilter(namespace=SPACE, user_id=user, session_id="s", error="SAID")

    assert {job.id for job in memory.job_admin.list(mine)} == set(made.values())
    for state, job in made.items():
        found = memory.job_admin.list(JobFilter(namespace=SPACE, user_id=user, states=(state,)))
        assert [each.id for each in found] == [job]
        assert memory.job_admin.list(JobFilter(ids=(JobId(job),)))[0].state is state
    counts = {(each.state, each.kind): each for each in memory.job_admin.counts(namespace=SPACE)}
    assert counts[JobState.QUEUED, JobKind.EXTRACT].scheduled >= 1


def test_cancelled_jobs_of_every_state_are_restored_by_one_undo(memory: Memory, database: Database, user: str) -> None:
    states = ("queued", "running", "retrying", "dead")
    made = {state: _insert(database, state, user=user) for state in states}
    mine = JobFilter(namespace=SPACE, user_id=user)

    done = memory.job_admin.apply(JobAction.DISCARD, mine, note="load test", actor="ops")
    closed = memory.job_admin.list(JobFilter(namespace=SPACE, user_id=user, states=(JobState.DISCARDED,)))
    assert done.id is not None
    undone = memory.job_admin.undo(done.id, namespace=SPACE, actor="ops")

    assert (done.changed, undone.changed) == (4, 4)
    assert {job.note for job in closed} == {"load test (ops)"}
    after = {job.id: job.state for job in memory.job_admin.list(mine)}
    assert after == {job: "dead" if state == "dead" else "queued" for state, job in made.items()}
    assert memory.job_admin.undo(done.id, namespace=SPACE, actor="ops").changed == 0


def test_restored_jobs_keep_their_order_and_have_not_waited_since(
    memory: Memory, database: Database, user: str
) -> None:
    ages = ("3 days", "1 hour", "2 days")
    by_age = {age: _insert(database, "queued", user=user, run_at=f"now() - interval '{age}'") for age in ages}
    mine = JobFilter(namespace=SPACE, user_id=user)
    before = datetime.now(UTC) - timedelta(minutes=1)

    done = memory.job_admin.apply(JobAction.DISCARD, mine, note="x", actor="ops")
    assert done.id is not None
    memory.job_admin.undo(done.id, namespace=SPACE, actor="ops")

    jobs = sorted(memory.job_admin.list(mine), key=lambda job: job.run_at)
    assert [job.id for job in jobs] == [by_age[age] for age in ("3 days", "2 days", "1 hour")]
    assert all(job.run_at > before for job in jobs)


def test_a_turn_that_is_not_stored_yet_cannot_be_cancelled(memory: Memory, database: Database, user: str) -> None:
    store = _insert(database, "queued", user=user, kind="store")

    done = memory.job_admin.apply(JobAction.DISCARD, JobFilter(namespace=SPACE, user_id=user), note="x", actor="ops")

    assert done.changed == 0
    assert memory.job_admin.list(JobFilter(ids=(JobId(store),)))[0].state is JobState.QUEUED


def test_a_cancelled_job_stays_discarded_where_another_does_its_work(
    memory: Memory, database: Database, user: str
) -> None:
    first = _insert(database, "queued", user=user)
    mine = JobFilter(namespace=SPACE, user_id=user, ids=(JobId(first),))
    memory.job_admin.apply(JobAction.DISCARD, mine, note="x", actor="ops")
    second = _insert(database, "queued", user=user)
    psql(database.url, f"UPDATE aftermind.jobs SET effect_key = '{first}' WHERE id = '{second}'")

    assert memory.job_admin.apply(JobAction.RESTORE, mine, actor="ops").changed == 0
    assert memory.job_admin.list(mine)[0].state is JobState.DISCARDED


def test_the_effect_of_a_job_that_was_cancelled_while_it_ran_is_refused(
    memory: Memory, database: Database, user: str
) -> None:
    job = _insert(database, "running", user=user)
    token = psql(database.url, f"SELECT token FROM aftermind.jobs WHERE id = '{job}'").strip()

    memory.job_admin.apply(JobAction.DISCARD, JobFilter(ids=(JobId(job),)), note="x", actor="ops")

    held = psql(database.url, f"SELECT count(*) FROM aftermind.jobs WHERE id = '{job}' AND token = '{token}'")
    assert held.strip() == "0"


def test_run_now_makes_scheduled_jobs_and_retries_due(memory: Memory, database: Database, user: str) -> None:
    for state in ("queued", "retrying", "dead"):
        _insert(database, state, user=user, run_at="now() + interval '1 h'")

    done = memory.job_admin.apply("run_now", JobFilter(namespace=SPACE, user_id=user), actor="ops")

    assert done.changed == 2
    jobs = memory.job_admin.list(JobFilter(namespace=SPACE, user_id=user))
    assert {job.state for job in jobs if job.run_at <= datetime.now(UTC) + timedelta(minutes=1)} == {
        JobState.QUEUED,
        JobState.RETRYING,
    }


@pytest.mark.parametrize("note", ["", " ", "x" * 501])
def test_discarding_without_a_usable_reason_is_refused(memory: Memory, note: str) -> None:
    with pytest.raises(errors.InvalidFilter, match="reason"):
        memory.job_admin.apply(JobAction.DISCARD, JobFilter(namespace=SPACE), note=note, actor="ops")


def test_an_agent_without_the_operators_role_does_not_see_jobs_of_other_tenants(
    settings: Settings, database: Database, user: str
) -> None:
    job = _insert(database, "queued", user=user)
    theirs = settings.model_copy(update={"relay_url": None, "namespace": "theirs"})

    with Memory(settings=theirs) as other:
        assert other.job_admin.list(JobFilter(ids=(JobId(job),))) == []
        assert other.job_admin.timeline(job) is None
        other.job_admin.pause(namespace="theirs", reason="mine", actor="them")
        with pytest.raises(errors.AftermindError):
            other.job_admin.pause(namespace=None, reason="everybody's", actor="them")
        assert [each.namespace for each in other.job_admin.pauses()] == ["theirs"]
        assert other.job_admin.resume(namespace="theirs", actor="them")


@pytest.mark.usefixtures("worker")
def test_a_timeline_is_reached_from_the_id_of_a_job_an_episode_or_a_fact(memory: Memory, user: str) -> None:
    receipt = memory.remember("I live in Porto.", user_id=user, session_id="s")
    receipt.extracted(60)
    [fact] = memory.facts.query(user_id=user)
    later = memory.job_admin.list(JobFilter(namespace=SPACE, user_id=user, kinds=(JobKind.EMBED, JobKind.EXTRACT)))

    for any_id in (receipt.job_id, *receipt.episode_ids, fact.id, *(job.id for job in later)):
        found = memory.job_admin.timeline(any_id, namespace=SPACE)
        assert found is not None, any_id
        assert found.job_id == receipt.job_id
        assert (found.episode_ids, found.fact_ids) == (receipt.episode_ids, (fact.id,))
    for job in later:
        assert [each.content for each in memory.job_admin.messages(job)] == ["I live in Porto."]
    assert found is not None
    steps = {step.name: step for step in found.steps}
    assert {"accepted", "store", "extract", "facts", "MemoryFactsExtracted"} <= set(steps)
    assert found.steps[0].name == "accepted"
    assert steps["store"].ended_at is not None
    assert steps["extract"].state == "done"
    assert {each.kind for each in memory.job_admin.latencies(namespace=SPACE)} >= {JobKind.STORE, JobKind.EXTRACT}


def test_a_pending_turn_is_listed_and_has_a_timeline_while_no_worker_runs(settings: Settings, tmp_path: Path) -> None:
    alone = settings.model_copy(update={"redis_prefix": f"alone-{uuid4().hex[:8]}:"})
    with Memory(settings=alone) as memory:
        receipt = memory.remember("I live in Lima.", user_id="waits")

        [turn] = memory.job_admin.pending_turns(namespace=SPACE)
        found = memory.job_admin.timeline(receipt.job_id, namespace=SPACE)

        assert (turn.job_id, turn.owner.user_id, turn.worker) == (receipt.job_id, "waits", None)
        assert found is not None
        assert [step.name for step in found.steps] == ["accepted", "store"]
        assert memory.job_admin.pending_turns(namespace="theirs") == []
        assert memory.job_admin.timeline(receipt.job_id, namespace="theirs") is None


async def test_the_latency_of_store_begins_with_the_acceptance_also_of_a_turn_with_a_key(settings: Settings) -> None:
    alone = settings.model_copy(update={"redis_prefix": f"alone-{uuid4().hex[:8]}:"})
    async with AsyncMemory(settings=alone) as memory:
        await memory.remember("I live in Lima.", user_id="ann", idempotency_key="k", namespace="keyed")
        accepted = time.monotonic()
        async with worker_without_celery(alone) as worker:
            waited = time.monotonic() - accepted
            await asyncio.wrap_future(worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE)))

        [found] = [each for each in await memory.job_admin.latencies(namespace="keyed") if each.kind is JobKind.STORE]

    assert (found.count, found.p50 >= waited) == (1, True)


@pytest.mark.usefixtures("worker")
def test_paused_jobs_wait_and_use_no_attempt_while_others_are_done(memory: Memory, user: str) -> None:
    memory.job_admin.pause(kind="extract", namespace=SPACE, reason="maintenance", actor="ops")
    try:
        wait_until_sync(_noticed(time.monotonic()), description="workers have read the pause")
        receipt = memory.remember("I live in Quito.", user_id=user, session_id="s")
        receipt.embedded(60)
        other = memory.remember("I live in Cusco.", user_id=user, session_id="s", namespace="elsewhere")
        other.extracted(60)

        [job] = memory.job_admin.list(JobFilter(namespace=SPACE, user_id=user, kinds=(JobKind.EXTRACT,)))
        assert (job.state, job.attempts) == (JobState.QUEUED, 0)
        assert "Quito" in memory.recall("Where do I live?", user_id=user).text
        found = memory.job_admin.timeline(receipt.job_id, namespace=SPACE)
        assert found is not None
        [waiting] = [step for step in found.steps if step.name == "extract"]
        assert re.fullmatch("paused by ops since .+: maintenance", waiting.detail or "")
    finally:
        assert memory.job_admin.resume(kind="extract", namespace=SPACE, actor="ops")
    receipt.extracted(60)
    assert not memory.job_admin.resume(kind="extract", namespace=SPACE, actor="ops")
    found = memory.job_admin.timeline(receipt.job_id, namespace=SPACE)
    assert found is not None
    [ended] = [step for step in found.steps if step.name == "paused"]
    assert ended.ended_at is not None
    assert "maintenance (ops); resumed by ops" in (ended.detail or "")


def _noticed(since: float) -> Callable[[], bool]:
    return lambda: time.monotonic() - since > READ_SECONDS  # a claim that begins after it reads the pause first
