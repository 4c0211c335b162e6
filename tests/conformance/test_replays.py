"""Replay plans on every store: unchanged, edited, by another model, and dry runs that write nothing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from aftermind import Episode, StepState, errors
from aftermind.ledger.protocol import Failure
from aftermind.ledger.reembed_jobs import new_step
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import EmbedderIdentity, JobId, JobKind, JobState, NewJob, Scope
from aftermind.types.job_admin import JobAction
from aftermind.types.replay import ItemState, JobFilter, PlanState, ReplayMode, ReplayPlan
from aftermind.wire.turn_encoding import encode_turn
from tests.conformance.conftest import Operated
from tests.support.turns import turn_of
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SAID = "I moved to Oslo, and I like fjords."
LIKES = {"subject": "user", "predicate": "likes", "object": "fjords"}
LIVES = {"subject": "user", "predicate": "lives_in", "object": "Oslo"}
BROKEN = Failure(reason_code="bug:X", error_class="X", error="it broke", fingerprint="x")


def asked(mode: ReplayMode, **overrides: Any) -> NewPlan:  # Any: what a tenant may send
    return NewPlan(name="p", reason="r", actor="ops", mode=mode, overrides=overrides, rate=100)


async def learned(operated: Operated, said: str = SAID, user: str = "alice") -> None:
    """A turn that was stored, and from which a fact was extracted."""
    operated.script.facts = {said: [LIKES]}
    receipt = await operated.memory.remember(said, user_id=user, session_id="s1")
    await receipt.extracted(timeout=PATIENCE_SECONDS)


async def believed(operated: Operated, user: str = "alice") -> set[str]:
    return {fact.object for fact in await operated.memory.facts.query(user_id=user)}


async def ended(operated: Operated, plan: ReplayPlan) -> ReplayPlan:
    """The plan, started, when it runs no more."""
    await operated.memory.replays.start(plan.id)

    async def is_over() -> ReplayPlan | None:
        found = await operated.memory.replays.get(plan.id)
        return found if found is not None and found.state is not PlanState.RUNNING else None

    found = await wait_until(is_over, description="the plan runs no more")
    assert found is not None
    return found


async def dead_turn(operated: Operated, said: str = "I live in Oslo.", user: str = "alice") -> JobId:
    """A turn that could not be stored."""
    memory = operated.memory
    turn = turn_of(user, said, namespace=memory.namespace)
    db, ledger = memory._parts.db, memory._parts.ledger
    async with db.transaction(namespace=memory.namespace) as tx:
        await ledger.dead_letter_turn(tx, turn.job_id, turn.scope.owner, encode_turn(turn), BROKEN)
    return turn.job_id


async def history(operated: Operated, user: str = "alice") -> Sequence[Episode]:
    return await operated.memory.history(user_id=user)


async def test_facts_of_another_model_replace_the_former_ones(operated: Operated) -> None:
    await learned(operated)
    operated.script.facts = {SAID: [LIVES]}

    plan = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT, instructions="Places."))
    done = await ended(operated, plan)

    assert (plan.size, done.state, done.counts) == (1, PlanState.DONE, {ItemState.DONE: 1})
    assert await believed(operated) == {"Oslo"}
    rows = await operated.memory.facts.history(user_id="alice")
    assert {fact.object for fact in rows if fact.superseded_at is not None} == {"fjords"}
    assert [fact.extractor for fact in rows if fact.object == "Oslo" and "+" in fact.extractor], "its instructions"


async def test_only_the_extraction_with_the_last_word_is_repeated(operated: Operated) -> None:
    await learned(operated)
    first = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))
    await ended(operated, first)

    again = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))
    (item,) = await operated.memory.replays.list_items(again.id)
    (former,) = await operated.memory.replays.list_items(first.id)

    assert item.job_id == former.new_job_id


async def test_a_dry_run_reports_what_would_change_and_writes_nothing(operated: Operated) -> None:
    await learned(operated)
    operated.script.facts = {SAID: [LIVES]}
    plan = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))

    asked_jobs = await operated.memory.replays.dry_run(plan.id)

    async def results() -> bool:
        return all(each.state.is_final for each in await operated.memory.replays.dry_run_results(plan.id))

    await wait_until(results, description="the dry run has ended")
    (found,) = await operated.memory.replays.dry_run_results(plan.id)
    assert len(asked_jobs) == 1
    assert (found.state, found.added, found.superseded) == (
        JobState.DONE,
        ("user lives in Oslo",),
        ("user likes fjords",),
    )
    assert await believed(operated) == {"fjords"}
    unchanged = await operated.memory.replays.get(plan.id)
    assert unchanged is not None
    assert unchanged.state is PlanState.DRAFT

    await operated.memory.forget(user_id="alice")
    left = await operated.memory.replays.dry_run_results(plan.id)
    assert not any(each.added or each.superseded for each in left), "an erasure covers what a dry run showed"


async def test_a_plan_without_extractions_has_no_sample_and_the_error_has_the_reason(operated: Operated) -> None:
    memory = operated.memory
    store = NewJob(
        id=JobId(uuid4()),
        kind=JobKind.SUMMARISE,
        scope=Scope(namespace=memory.namespace, user_id="alice", session_id="s1"),
        effect_key=str(uuid4()),
        delay=timedelta(hours=1),
    )
    async with memory._parts.db.transaction(namespace=memory.namespace) as tx:
        await memory._parts.ledger.enqueue(tx, [store])
    await memory.job_admin.apply(JobAction.DISCARD, operated.all_jobs, note="x", actor="ops")
    plan = await memory.replays.create(JobFilter(ids=(store.id,)), asked(ReplayMode.RETRY))

    for call in (memory.replays.dry_run, memory.replays.dry_run_results):
        with pytest.raises(errors.NoSample, match="none of its jobs extracts facts") as refused:
            await call(plan.id)
        assert not refused.value.has_extractions


async def test_a_plan_whose_sample_was_not_run_has_none(operated: Operated) -> None:
    await learned(operated)
    plan = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))

    with pytest.raises(errors.NoSample, match="none was run"):
        await operated.memory.replays.dry_run_results(plan.id)


async def test_a_dry_run_that_fails_is_no_dead_letter(operated: Operated) -> None:
    await learned(operated)
    operated.script.faults = {"400": 1.0}
    plan = await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))
    await operated.memory.replays.dry_run(plan.id)

    async def results() -> bool:
        return all(each.state.is_final for each in await operated.memory.replays.dry_run_results(plan.id))

    await wait_until(results, description="the dry run has ended")
    operated.script.faults = {}
    (found,) = await operated.memory.replays.dry_run_results(plan.id)
    assert (found.state, bool(found.error)) == (JobState.DISCARDED, True)
    assert await operated.memory.dead_letters.list(operated.all_jobs) == []

    with pytest.raises(errors.InvalidFilter, match="no dead letter"):
        await operated.memory.replays.create(operated.all_jobs, asked(ReplayMode.RETRY))

    discarded = replace(operated.all_jobs, states=(JobState.DISCARDED,))
    assert (await operated.memory.job_admin.apply(JobAction.RESTORE, discarded, actor="ops")).changed == 1
    await wait_until(results, description="the restored dry run has ended")
    (found,) = await operated.memory.replays.dry_run_results(plan.id)
    assert (found.state, found.error) == (JobState.DONE, None)


async def test_a_turn_is_stored_with_edited_messages(operated: Operated) -> None:
    job_id = await dead_turn(operated)
    messages = [{"role": "user", "content": "I live in Bergen."}]

    plan = await operated.memory.replays.create(
        JobFilter(ids=(job_id,), namespace=operated.memory.namespace), asked(ReplayMode.EDITED, messages=messages)
    )
    done = await ended(operated, plan)

    assert done.counts == {ItemState.DONE: 1}
    assert "messages" not in plan.overrides, "content stays with the job, where an erasure finds it"
    assert [each.content for each in await history(operated)] == ["I live in Bergen."]
    letter = await operated.memory.dead_letters.get(job_id)
    assert letter is not None
    assert letter.job.state is JobState.REPLAYED


async def test_an_edit_is_not_stored_after_the_user_was_forgotten(operated: Operated) -> None:
    job_id = await dead_turn(operated)
    wanted = JobFilter(ids=(job_id,), namespace=operated.memory.namespace)
    messages = [{"role": "user", "content": "I live in Bergen."}]
    plan = await operated.memory.replays.create(wanted, asked(ReplayMode.EDITED, messages=messages))

    await operated.memory.forget(user_id="alice")
    done = await ended(operated, plan)

    assert done.counts == {ItemState.SKIPPED: 1}
    assert await history(operated) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"messages": "hello"},
        {"messages": [{"role": "king", "content": "x"}]},
        {"episodes": ["e"]},
        {"model": "not-allowed"},
    ],
)
async def test_an_edit_that_is_not_allowed_is_refused_and_leaves_no_plan(
    operated: Operated, overrides: dict[str, Any]
) -> None:
    job_id = await dead_turn(operated)
    wanted = JobFilter(ids=(job_id,), namespace=operated.memory.namespace)

    with pytest.raises((errors.InvalidFilter, errors.InvalidMessage)):
        await operated.memory.replays.create(wanted, asked(ReplayMode.EDITED, **overrides))

    assert await operated.memory.replays.list(namespace=operated.memory.namespace) == []


async def test_messages_are_edited_for_one_job_only(operated: Operated) -> None:
    ids = tuple([await dead_turn(operated, f"I live in {city}.") for city in ("Oslo", "Rome")])
    wanted = JobFilter(ids=ids, namespace=operated.memory.namespace)
    messages = [{"role": "user", "content": "I live in Bergen."}]

    with pytest.raises(errors.InvalidFilter, match="for one job"):
        await operated.memory.replays.create(wanted, asked(ReplayMode.EDITED, messages=messages))


async def test_a_dead_extraction_is_repeated_by_the_model_that_works_again(operated: Operated) -> None:
    operated.script.faults = {"refusal": 1.0}
    receipt = await operated.memory.remember(SAID, user_id="alice", session_id="s1")
    await receipt.stored(timeout=PATIENCE_SECONDS)

    async def is_dead() -> bool:
        wanted = JobFilter(namespace=operated.memory.namespace, kinds=(JobKind.EXTRACT,))
        return len(await operated.memory.dead_letters.list(wanted)) == 1

    await wait_until(is_dead, description="the extraction is a dead letter")
    operated.script.faults, operated.script.facts = {}, {SAID: [LIVES]}
    wanted = JobFilter(namespace=operated.memory.namespace, kinds=(JobKind.EXTRACT,))
    done = await ended(
        operated, await operated.memory.replays.create(wanted, asked(ReplayMode.EDITED, instructions="Places."))
    )

    assert done.counts == {ItemState.DONE: 1}
    assert await believed(operated) == {"Oslo"}
    assert await operated.memory.dead_letters.list(wanted) == []
    status = await receipt.status()
    assert (status.extracted, status.why) == (StepState.DONE, None)


async def test_an_estimate_names_what_it_cannot_estimate(operated: Operated) -> None:
    memory = operated.memory
    await learned(operated)
    step = replace(
        new_step(Scope(namespace=memory.namespace, user_id="alice"), EmbedderIdentity(name="other", dimension=8)),
        delay=timedelta(hours=1),
    )
    async with memory._parts.db.transaction(namespace=memory.namespace) as tx:
        await memory._parts.ledger.enqueue(tx, [step])
    found = JobFilter(ids=(step.id,), namespace=memory.namespace)
    await memory.job_admin.apply(JobAction.DISCARD, found, note="x", actor="ops")

    of_step = await memory.replays.create(found, asked(ReplayMode.RETRY))
    of_extraction = await memory.replays.create(operated.all_jobs, asked(ReplayMode.REEXTRACT))
    for_step = await memory.replays.estimate(of_step.id)
    for_extraction = await memory.replays.estimate(of_extraction.id)

    assert (for_step.model_calls, for_step.unestimated_calls, for_step.tokens, for_step.cost_usd) == (1, 1, 0, None)
    assert "price unknown" in for_step.describe_calls()
    assert (for_extraction.model_calls, for_extraction.unestimated_calls, for_extraction.cost_usd) == (1, 0, None), (
        "this model has no price"
    )
    assert for_extraction.tokens > 0
    assert for_extraction.describe_calls() == f"1, about {for_extraction.tokens:,} tokens, price unknown"


async def test_a_discard_takes_a_job_out_of_the_plan_until_it_is_restored(operated: Operated) -> None:
    memory = operated.memory
    kept, discarded, restored = [await dead_turn(operated, f"I live in {city}.") for city in ("Oslo", "Rome", "Bern")]
    plan = await memory.replays.create(operated.all_jobs, asked(ReplayMode.RETRY))
    for job_id in (discarded, restored):
        await memory.dead_letters.discard(JobFilter(ids=(job_id,)), note="a duplicate", actor="ops")
    back = JobFilter(ids=(restored,), namespace=memory.namespace)
    assert (await memory.job_admin.apply(JobAction.RESTORE, back, actor="ops")).changed == 1
    assert (await memory.replays.estimate(plan.id)).refused == 1

    done = await ended(operated, plan)

    assert (done.state, done.counts) == (PlanState.DONE, {ItemState.DONE: 2, ItemState.DISCARDED: 1})
    assert done.is_successful
    assert {each.content for each in await history(operated)} == {"I live in Oslo.", "I live in Bern."}
    states = {job_id: await memory.dead_letters.get(job_id) for job_id in (kept, discarded, restored)}
    assert [letter and letter.job.state for letter in states.values()] == [
        JobState.REPLAYED,
        JobState.DISCARDED,
        JobState.REPLAYED,
    ]


async def test_discarded_jobs_are_replayed_by_id_unless_they_are_discarded_again(operated: Operated) -> None:
    memory = operated.memory
    first, again = [await dead_turn(operated, f"I live in {city}.") for city in ("Oslo", "Rome")]
    wanted = JobFilter(ids=(first, again), namespace=memory.namespace)
    await memory.dead_letters.discard(wanted, note="a duplicate", actor="ops")
    plan = await memory.replays.create(wanted, asked(ReplayMode.RETRY))
    last = JobFilter(ids=(again,), namespace=memory.namespace)
    await memory.job_admin.apply(JobAction.RESTORE, last, actor="ops")
    await memory.dead_letters.discard(last, note="a duplicate, indeed", actor="ops")

    done = await ended(operated, plan)

    assert done.counts == {ItemState.DONE: 1, ItemState.DISCARDED: 1}
    assert [each.content for each in await history(operated)] == ["I live in Oslo."]
