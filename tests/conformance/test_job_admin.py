"""Operators find jobs, see what happened to a turn, run, cancel and pause jobs, and take that back, on every store."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from aftermind import errors
from aftermind.types import JobId, JobKind, JobState, NewJob, Scope
from aftermind.types.job_admin import JobAction
from aftermind.types.replay import JobFilter
from tests.conformance.conftest import Operated
from tests.support.waiting import PATIENCE_SECONDS, wait_until

LATER = timedelta(hours=1)


async def put(operated: Operated, *users: str, effect: str | None = None, delay: timedelta = LATER) -> list[JobId]:
    """A job for each user that is not due yet."""
    memory = operated.memory
    jobs = [
        NewJob(
            id=JobId(uuid4()),
            kind=JobKind.SUMMARISE,
            scope=Scope(namespace=memory.namespace, user_id=user, session_id="s1"),
            effect_key=effect or str(uuid4()),
            delay=delay,
        )
        for user in users
    ]
    async with memory._parts.db.transaction(namespace=memory.namespace) as tx:
        return await memory._parts.ledger.enqueue(tx, jobs)


async def states(operated: Operated) -> dict[JobId, JobState]:
    return {job.id: job.state for job in await operated.memory.job_admin.list(operated.all_jobs)}


async def test_jobs_are_found_by_state_kind_user_and_id_and_counted(operated: Operated) -> None:
    alice, bob = await put(operated, "alice", "bob")
    admin, space = operated.memory.job_admin, operated.memory.namespace

    assert {job.id for job in await admin.list(operated.all_jobs)} == {alice, bob}
    assert [job.id for job in await admin.list(JobFilter(namespace=space, user_id="bob"))] == [bob]
    assert [job.id for job in await admin.list(JobFilter(ids=(alice,)))] == [alice]
    assert await admin.list(JobFilter(namespace=space, states=(JobState.DEAD,))) == []
    assert await admin.list(JobFilter(namespace="elsewhere")) == []
    (count,) = await admin.counts(namespace=space)
    assert (count.kind, count.state, count.count, count.scheduled) == (JobKind.SUMMARISE, JobState.QUEUED, 2, 2)
    with pytest.raises(errors.InvalidFilter, match="limit"):
        await admin.list(operated.all_jobs, limit=0)


async def test_a_discard_is_undone_by_its_id_and_only_once(operated: Operated) -> None:
    alice, bob = await put(operated, "alice", "bob")
    admin, space = operated.memory.job_admin, operated.memory.namespace
    due_at = {job.id: job.run_at for job in await admin.list(operated.all_jobs)}

    first = await admin.apply(
        JobAction.DISCARD, JobFilter(namespace=space, user_id="alice"), note="load test", actor="ops"
    )
    await admin.apply(JobAction.DISCARD, operated.all_jobs, note="all of it", actor="ops")
    (closed,) = await admin.list(JobFilter(namespace=space, user_id="alice"))
    assert first.id is not None
    undone = await admin.undo(first.id, namespace=space, actor="ops")

    assert (first.changed, undone.changed) == (1, 1)
    assert (closed.state, closed.note) == (JobState.DISCARDED, "load test (ops)")
    restored = {job.id: job for job in await admin.list(operated.all_jobs)}
    assert restored[bob].state == JobState.DISCARDED
    assert (restored[alice].state, restored[alice].run_at) == (JobState.QUEUED, due_at[alice])
    assert (await admin.undo(first.id, namespace=space, actor="ops")).changed == 0


async def test_a_cancelled_job_stays_discarded_where_another_does_its_work(operated: Operated) -> None:
    (first,) = await put(operated, "alice", effect="the summary")
    admin = operated.memory.job_admin
    await admin.apply(JobAction.DISCARD, operated.all_jobs, note="x", actor="ops")
    (second,) = await put(operated, "alice", effect="the summary")

    restored = await admin.apply(JobAction.RESTORE, operated.all_jobs, actor="ops")

    assert restored.changed == 0
    assert await states(operated) == {first: JobState.DISCARDED, second: JobState.QUEUED}


async def test_a_dead_letter_that_was_discarded_is_one_again(operated: Operated) -> None:
    operated.script.faults = {"refusal": 1.0}
    memory = operated.memory
    await memory.remember("I live in Oslo.", user_id="alice", session_id="s1")

    async def is_dead() -> bool:
        return len(await memory.dead_letters.list(operated.all_jobs)) == 1

    await wait_until(is_dead, description="the extraction is a dead letter")
    assert await memory.dead_letters.discard(operated.all_jobs, note="not needed", actor="ops") == 1

    restored = await memory.job_admin.apply(JobAction.RESTORE, operated.all_jobs, actor="ops")

    assert restored.changed == 1
    (letter,) = await memory.dead_letters.list(operated.all_jobs)
    assert (letter.kind, letter.state, letter.note) == (JobKind.EXTRACT, JobState.DEAD, None)
    whole = await memory.dead_letters.get(letter.id)
    assert whole is not None
    assert letter.updated_at == whole.attempts[-1].ended_at  # when it failed


async def test_jobs_that_wait_for_their_time_are_run_now(operated: Operated) -> None:
    (job_id,) = await put(operated, "alice")

    done = await operated.memory.job_admin.apply("run_now", operated.all_jobs, actor="ops")

    async def is_done() -> bool:
        return (await states(operated))[job_id] is JobState.DONE

    assert done.changed == 1
    await wait_until(is_done, description="the summary of an empty session is done")


@pytest.mark.parametrize("note", ["", " ", "x" * 501])
async def test_discarding_without_a_usable_reason_is_refused(operated: Operated, note: str) -> None:
    (job_id,) = await put(operated, "alice")

    with pytest.raises(errors.InvalidFilter, match="reason"):
        await operated.memory.job_admin.apply(JobAction.DISCARD, operated.all_jobs, note=note, actor="ops")

    assert await states(operated) == {job_id: JobState.QUEUED}


async def test_a_timeline_is_reached_from_the_id_of_a_job_an_episode_or_a_fact(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    operated.script.facts = {
        "I live in Porto.": [{"subject": "user", "predicate": "lives_in", "object": "Porto"}],
    }
    receipt = await memory.remember("I live in Porto.", user_id="alice", session_id="s1")
    await receipt.embedded(timeout=PATIENCE_SECONDS)
    await receipt.extracted(timeout=PATIENCE_SECONDS)
    (fact,) = await memory.facts.query(user_id="alice")
    later = await memory.job_admin.list(JobFilter(namespace=space, kinds=(JobKind.EXTRACT,)))

    for any_id in (receipt.job_id, *receipt.episode_ids, fact.id, *(job.id for job in later)):
        found = await memory.job_admin.timeline(any_id, namespace=space)
        assert found is not None, any_id
        assert (found.job_id, found.episode_ids, found.fact_ids) == (
            receipt.job_id,
            receipt.episode_ids,
            (fact.id,),
        )
        assert await memory.job_admin.timeline(any_id, namespace="elsewhere") is None
    assert [each.content for each in await memory.job_admin.messages(later[0])] == ["I live in Porto."]
    steps = {step.name: step for step in found.steps}
    assert {"accepted", "store", "extract", "facts", "MemoryFactsExtracted"} <= set(steps)
    assert found.steps[0].name == "accepted"
    assert steps["store"].ended_at is not None
    assert steps["extract"].state == "done"

    again = await memory.remember("I live in Porto.", user_id="alice", session_id="s2")
    await again.extracted(timeout=PATIENCE_SECONDS)
    second = await memory.job_admin.timeline(again.job_id, namespace=space)

    assert second is not None
    assert second.steps[0].name == "accepted"
    assert [step.detail for step in found.steps if step.name == "facts"] == ["1 recorded"]
    assert [step.detail for step in second.steps if step.name == "facts"] == ["1 confirmed"]
    assert {each.kind for each in await memory.job_admin.latencies(namespace=space)} >= {JobKind.STORE, JobKind.EXTRACT}
    (tenant,) = await memory.job_admin.tenants(prefix=space)
    assert (tenant.namespace, tenant.users, tenant.dead_letters) == (space, 1, 0)
    assert tenant.calls == sum(each.calls for each in await memory.job_admin.costs(namespace=space)) > 0


async def test_paused_jobs_wait_and_use_no_attempt_while_others_are_done(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    await memory.job_admin.pause(kind="summarise", namespace=space, reason="maintenance", actor="ops")
    (paused,) = await put(operated, "alice", delay=timedelta(seconds=2))  # workers notice a pause within one

    receipt = await memory.remember("I live in Quito.", user_id="bob", session_id="s1")
    await receipt.stored(timeout=PATIENCE_SECONDS)
    other = await memory.remember("I live in Cusco.", user_id="bob", session_id="s2")
    await other.stored(timeout=PATIENCE_SECONDS)

    async def is_due() -> bool:
        (job,) = await memory.job_admin.list(JobFilter(ids=(paused,)))
        return job.run_at + timedelta(seconds=1) < datetime.now(UTC)

    await wait_until(is_due, description="it is due for a second")
    (job,) = await memory.job_admin.list(JobFilter(ids=(paused,)))
    (pause,) = await memory.job_admin.pauses(namespace=space)

    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    assert (pause.kind, pause.namespace, pause.reason, pause.actor) == (JobKind.SUMMARISE, space, "maintenance", "ops")
    assert await memory.job_admin.resume(kind="summarise", namespace=space, actor="ops")
    assert not await memory.job_admin.resume(kind="summarise", namespace=space, actor="ops")

    async def is_done() -> bool:
        return (await states(operated))[paused] is JobState.DONE

    await wait_until(is_done, description="the job runs after the pause")


async def test_a_timeline_shows_ended_pauses_and_a_cancelled_job_that_was_restored(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    admin = memory.job_admin
    await admin.pause(kind="summarise", namespace=space, reason="before it", actor="ops")
    await admin.resume(kind="summarise", namespace=space, actor="ops")
    await admin.pause(kind="summarise", namespace=space, reason="first reason", actor="ops")
    (job,) = await put(operated, "alice")
    await admin.pause(kind="summarise", namespace=space, reason="maintenance", actor="ops")
    await admin.pause(kind="embed", namespace=space, reason="of another kind", actor="ops")
    wanted = JobFilter(ids=(job,), namespace=space)
    done = await admin.apply(JobAction.DISCARD, wanted, note="load test", actor="ops")
    assert done.id is not None
    await admin.undo(done.id, namespace=space, actor="eve")
    await admin.resume(kind="embed", namespace=space, actor="eve")
    await admin.resume(kind="summarise", namespace=space, actor="eve")
    await admin.pause(kind="summarise", namespace="elsewhere", reason="of another tenant", actor="ops")
    await admin.resume(kind="summarise", namespace="elsewhere", actor="ops")

    found = await admin.timeline(job, namespace=space)

    assert found is not None
    first, second = (step for step in found.steps if step.name == "paused")
    (discarded,) = (step for step in found.steps if step.name == "summarise discarded")
    assert "first reason (ops); resumed by ops" in str(first.detail)
    assert f"summarise jobs of namespace {space} since" in str(second.detail)
    assert "maintenance (ops); resumed by eve" in str(second.detail)
    assert (discarded.detail, discarded.job_id) == ("load test (ops); restored by eve", job)
    for step in (first, second, discarded):
        assert step.ended_at is not None
        assert step.ended_at >= step.at
    assert first.at <= found.accepted_at <= second.at <= discarded.at

    await memory.forget(user_id="alice")
    forgotten = await admin.timeline(job, namespace=space)
    assert forgotten is not None
    assert "load test" not in str(forgotten.steps), "an erasure deletes what operators noted about the job"


async def test_a_timeline_has_no_pause_during_which_the_job_ran(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    operated.script.latency_seconds = 3.0
    try:
        receipt = await memory.remember("I live in Oslo.", user_id="alice", session_id="s1")

        async def is_running() -> bool:
            running = JobFilter(namespace=space, kinds=(JobKind.EXTRACT,), states=(JobState.RUNNING,))
            return bool(await memory.job_admin.list(running))

        await wait_until(is_running, description="the extraction runs")
        await memory.job_admin.pause(kind="extract", namespace=space, reason="while it runs", actor="ops")
        await memory.job_admin.resume(kind="extract", namespace=space, actor="ops")
        during = await memory.job_admin.timeline(receipt.job_id, namespace=space)
    finally:
        operated.script.latency_seconds = 0.0
    await receipt.extracted(timeout=PATIENCE_SECONDS)
    after = await memory.job_admin.timeline(receipt.job_id, namespace=space)

    for found in (during, after):
        assert found is not None
        assert "paused" not in [step.name for step in found.steps]


async def test_a_tenant_sees_when_all_namespaces_were_paused_and_neither_reason_nor_operators(
    operated: Operated,
) -> None:
    memory, space = operated.memory, operated.memory.namespace
    (job,) = await put(operated, "alice")
    for namespace, reason in ((None, "because of another tenant"), (space, "maintenance")):
        await memory.job_admin.pause(kind="summarise", namespace=namespace, reason=reason, actor="ops")
        assert await memory.job_admin.resume(kind="summarise", namespace=namespace, actor="ops")

    async def details(*, for_tenant: bool) -> list[str]:
        found = await memory.job_admin.timeline(job, namespace=space, for_tenant=for_tenant)
        assert found is not None
        return [str(step.detail) for step in found.steps if step.name == "paused" and step.ended_at is not None]

    of_all, own = await details(for_tenant=False)
    of_all_for_tenant, own_for_tenant = await details(for_tenant=True)

    assert of_all == f"{of_all_for_tenant}: because of another tenant (ops); resumed by ops"
    assert of_all_for_tenant.startswith("summarise jobs of every namespace since ")
    assert own == own_for_tenant
    assert "maintenance (ops); resumed by ops" in own


async def test_ended_pauses_are_kept_as_long_as_completed_jobs(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    (job,) = await put(operated, "alice")
    await memory.job_admin.pause(kind="summarise", namespace=space, reason="maintenance", actor="ops")
    await memory.job_admin.resume(kind="summarise", namespace=space, actor="ops")
    ledger = memory._parts.ledger

    async def pauses() -> list[str]:
        found = await memory.job_admin.timeline(job, namespace=space)
        return [] if found is None else [step.name for step in found.steps if step.name == "paused"]

    await ledger.prune(older_than=timedelta(days=1), limit=100)
    kept = await pauses()
    await ledger.prune(older_than=timedelta(0), limit=100)

    assert (kept, await pauses()) == (["paused"], [])


async def test_a_job_that_is_discarded_during_a_pause_does_not_run_after_it(operated: Operated) -> None:
    memory = operated.memory
    await memory.job_admin.pause(kind="summarise", namespace=memory.namespace, reason="held", actor="ops")
    (job_id,) = await put(operated, "alice")
    wanted = JobFilter(ids=(job_id,), namespace=memory.namespace)
    await memory.job_admin.apply("run_now", wanted, actor="ops")
    await memory.job_admin.apply(JobAction.DISCARD, wanted, note="not this one", actor="ops")
    await memory.job_admin.resume(kind="summarise", namespace=memory.namespace, actor="ops")
    (later,) = await put(operated, "bob", delay=timedelta(0))

    async def is_done() -> bool:
        return (await states(operated))[later] is JobState.DONE

    await wait_until(is_done, description="a later job of the kind runs")
    (job,) = await memory.job_admin.list(wanted)
    assert (job.state, job.attempts) == (JobState.DISCARDED, 0)


async def test_the_seconds_of_a_timeline_are_of_work_and_waits_and_events_are_moments(operated: Operated) -> None:
    memory, space = operated.memory, operated.memory.namespace
    receipt = await memory.remember("I live in Oslo.", user_id="alice", session_id="s1")
    await receipt.extracted(timeout=PATIENCE_SECONDS)

    found = await memory.job_admin.timeline(receipt.job_id, namespace=space)

    assert found is not None
    lasting = {step.name for step in found.steps if step.ended_at is not None}
    moments = {step.name for step in found.steps if step.ended_at is None}
    assert {"store", "extract", "extract attempt 1"} <= lasting
    assert {"accepted", "MemoryUpdateStarted"} <= moments
    assert not any(name.startswith("Memory") for name in lasting)
