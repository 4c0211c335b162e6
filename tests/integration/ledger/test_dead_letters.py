"""Dead letters are found by whatever is known of them, grouped by what failed, and never just gone."""

from uuid import uuid4

import pytest

from aftermind import errors
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.replay import ItemState, JobFilter
from tests.support.dead_letters import Letters
from tests.support.replay_engine import SteppedReplays as Replays


async def test_five_thousand_failures_alike_are_one_line(dead: DeadLetters, letters: Letters) -> None:
    await letters.mark_dead(40, reason="llm_bad_answer")
    await letters.mark_dead(2, reason="policy_blocked", namespace="other")

    first, second = await dead.groups(JobFilter())

    assert (first.reason_code, first.count, first.namespaces) == ("llm_bad_answer", 40, 1)
    assert (second.reason_code, second.count) == ("policy_blocked", 2)
    assert first.oldest < first.newest


@pytest.mark.parametrize(
    "wanted",
    [
        JobFilter(kinds=(JobKind.EXTRACT,)),
        JobFilter(reasons=("policy_blocked",)),
        JobFilter(fingerprint="print-of-policy_blocked"),
        JobFilter(error="REFUSED"),
        JobFilter(namespace="other"),
        JobFilter(namespace="other", user_id="bob"),
    ],
    ids=["kind", "reason", "fingerprint", "error text", "namespace", "user"],
)
async def test_a_filter_finds_the_one_that_is_meant(dead: DeadLetters, letters: Letters, wanted: JobFilter) -> None:
    await letters.mark_dead(3)
    [meant] = await letters.mark_dead(
        kind="extract", namespace="other", user="bob", reason="policy_blocked", error="it refused the text"
    )

    assert [job.id for job in await dead.list(wanted)] == [meant]


async def test_times_bound_when_a_job_died(dead: DeadLetters, letters: Letters) -> None:
    [first] = await letters.mark_dead()
    [second] = await letters.mark_dead()
    died = {job.id: job.updated_at for job in await dead.list(JobFilter())}

    assert [job.id for job in await dead.list(JobFilter(until=died[JobId(second)]))] == [first]
    assert [job.id for job in await dead.list(JobFilter(since=died[JobId(second)]))] == [second]


def test_a_user_without_a_namespace_is_refused() -> None:
    with pytest.raises(errors.InvalidFilter, match="namespace"):
        JobFilter(user_id="alice")


async def test_a_letter_is_shown_whole_with_what_came_of_it(
    dead: DeadLetters, replays: Replays, letters: Letters
) -> None:
    [job] = await letters.mark_dead()
    await letters.connection.execute(
        "INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at, error) "
        "VALUES ('default', $1, 2, 'b', now(), 'again'), ('default', $1, 1, 'a', now(), 'first')",
        job,
    )
    plan = await replays.create(JobFilter(), NewPlan(name="p", reason="r", actor="ops"))
    await replays.start(plan.id)
    await replays.step(plan.id)

    shown = await dead.get(JobId(job))

    assert shown is not None
    assert (shown.raw, [attempt.error for attempt in shown.attempts]) == (b"whole", ["first", "again"])
    assert [(one.state, one.origin_job_id) for one in shown.successors] == [(JobState.QUEUED, job)]


async def test_a_job_that_is_not_there_shows_nothing(dead: DeadLetters) -> None:
    assert await dead.get(JobId(uuid4())) is None


async def test_a_discarded_letter_keeps_its_note_and_can_still_be_replayed(
    dead: DeadLetters, replays: Replays, letters: Letters
) -> None:
    [job] = await letters.mark_dead()

    assert await dead.discard(JobFilter(), note="the tenant left", actor="ops") == 1
    assert await dead.list(JobFilter()) == []
    plan = await replays.create(JobFilter(ids=(JobId(job),)), NewPlan(name="p", reason="they came back", actor="ops"))
    await replays.start(plan.id)
    await replays.step(plan.id)

    assert await letters.states() == {JobState.REPLAYED: 1, JobState.QUEUED: 1}
    assert [item.state for item in await replays.list_items(plan.id)] == [ItemState.REPLAYED]


async def test_discarding_without_a_note_is_refused(dead: DeadLetters, letters: Letters) -> None:
    await letters.mark_dead()

    with pytest.raises(errors.InvalidFilter, match="note"):
        await dead.discard(JobFilter(), note=" ", actor="ops")

    assert await letters.states() == {JobState.DEAD: 1}
