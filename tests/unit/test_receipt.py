"""What a receipt says, by the states of the jobs behind it."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from aftermind.receipt import StepState, judge
from aftermind.types import Job, JobId, JobKind, JobState, Scope
from aftermind.types.job import FollowUp

ALL = frozenset({"history", "facts", "summary", "profile"})
NOW = datetime(2026, 5, 1, tzinfo=UTC)
DONE, WAITING, DEAD = StepState.DONE, StepState.WAITING, StepState.DEAD
NOT_NEEDED, FORGOTTEN = StepState.NOT_NEEDED, StepState.FORGOTTEN


def job(state: JobState, reason: str | None = None) -> Job:
    return Job(
        id=JobId(UUID(int=1)),
        kind=JobKind.STORE,
        scope=Scope(user_id="alice"),
        state=state,
        payload={},
        effect_key="k",
        attempts=1,
        lost_leases=0,
        run_at=NOW,
        created_at=NOW,
        updated_at=NOW,
        reason_code=reason,
    )


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (JobState.QUEUED, WAITING),
        (JobState.RUNNING, WAITING),
        (JobState.RETRYING, WAITING),
        (JobState.REPLAYED, WAITING),
        (JobState.DEAD, DEAD),
        (JobState.DISCARDED, DEAD),
        (JobState.FORGOTTEN, FORGOTTEN),
    ],
)
def test_until_the_store_job_is_done_every_step_stands_where_it_stands(state: JobState, step: StepState) -> None:
    status = judge(job(state, "model_refused"), {}, keep=ALL)

    assert (status.stored, status.embedded, status.extracted) == (step, step, step)
    assert status.why == "model_refused"


def test_without_a_store_job_the_turn_is_pending_or_on_disk() -> None:
    assert judge(None, {}, keep=ALL).why == "pending"
    assert "disk" in (judge(None, {}, keep=ALL, spooled=True).why or "")


@pytest.mark.parametrize("state", list(JobState))
def test_each_following_job_has_its_own_state(state: JobState) -> None:
    status = judge(
        job(JobState.DONE),
        {JobKind.EMBED: FollowUp(state=JobState.DONE), JobKind.EXTRACT: FollowUp(state=state)},
        keep=ALL,
    )

    assert (status.stored, status.embedded) == (DONE, DONE)
    assert (status.extracted is WAITING) == (not state.is_final or state is JobState.REPLAYED)
    assert (status.why is None) == (state is JobState.DONE)


def test_a_job_that_is_repeated_tells_its_error() -> None:
    follow = {JobKind.EXTRACT: FollowUp(state=JobState.QUEUED, reason="openai: no key is set (OPENAI_API_KEY)")}

    status = judge(job(JobState.DONE), follow, keep=ALL)

    assert status.why == "extract is queued: openai: no key is set (OPENAI_API_KEY)"


def test_what_has_no_job_is_not_needed() -> None:
    status = judge(job(JobState.DONE), {}, keep=ALL)

    assert (status.stored, status.embedded, status.extracted) == (DONE, NOT_NEEDED, NOT_NEEDED)
    assert status.why is None


def test_facts_that_were_not_to_be_kept_are_not_waited_for() -> None:
    follow = {JobKind.EMBED: FollowUp(state=JobState.DONE), JobKind.EXTRACT: FollowUp(state=JobState.QUEUED)}

    assert judge(job(JobState.DONE), follow, keep=frozenset({"history"})).extracted is NOT_NEEDED
