"""A turn's timeline, built from its jobs, attempts, facts and events, which each ledger reads differently."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aftermind.types import EpisodeId, FactId, Job, JobId, JobKind, JobState, Scope
from aftermind.types.job import Attempt, FollowUp, describe_note
from aftermind.types.job_admin import EndedHold, Timeline, TimelineStep

MAX_TURNS = 50  # of one job that a timeline names
MAX_EVENTS = 200
MAX_HOLDS = 200  # pauses that ended after the turn was accepted, the earliest first
MAX_WAITS = 20  # of a job whose claims were given back, the latest ones: a provider may be away for days
LAST_OUTCOMES = ("running", "done", "dead")  # of an attempt after which its job does not wait
GIVEN_BACK = "snoozed"  # outcome of a claim that was no attempt; its reason is a wait
_FORMER = (JobState.REPLAYED, JobState.FORGOTTEN)


def build_timeline(
    store: Job,
    turns: Sequence[JobId],
    *,
    accepted_at: datetime,
    episode_ids: Sequence[EpisodeId],
    jobs: Iterable[Any],  # Any: `Job`, or rows with its columns
    attempts: Sequence[Any],  # Any: `Attempt`, or rows with its columns
    facts: Sequence[tuple[FactId, datetime]],
    events: Iterable[TimelineStep],
) -> Timeline:
    """The processing of the turn of a store job; `facts` are ids with the times when they were recorded.

    A fact of before the turn was confirmed by it, when its extraction ended.
    """
    steps = [TimelineStep(name="accepted", at=accepted_at, job_id=store.id)]
    extracted_at = accepted_at
    for job in jobs:
        steps += _job_steps(job, [each for each in attempts if each.job_id == job.id], accepted_at)
        if job.kind == JobKind.EXTRACT.value:
            extracted_at = max(extracted_at, job.updated_at)
    times = [(at, "recorded") if at >= accepted_at else (extracted_at, "confirmed") for _, at in facts]
    steps += [
        TimelineStep(name="facts", at=at, detail=f"{count} {what}")
        for (at, what), count in sorted(Counter(times).items())
    ]
    steps += events
    return Timeline(
        job_id=turns[0],
        owner=Scope(namespace=store.scope.namespace, user_id=store.scope.user_id, session_id=store.scope.session_id),
        accepted_at=accepted_at,
        turns=tuple(turns),
        episode_ids=tuple(episode_ids),
        fact_ids=tuple(fact_id for fact_id, _ in facts),
        steps=_in_order(steps),
    )


def follow_ups_by_kind(jobs: Iterable[Any]) -> dict[JobKind, FollowUp]:  # Any: `Job`, or rows with its columns
    """Of several jobs of a kind, the one that is furthest from done.

    A replayed one counts by its successor, and one that was forgotten by what the turn's key was used for afterwards.
    """
    found: dict[JobKind, FollowUp] = {}
    for job in jobs:
        kind, state = JobKind(job.kind), JobState(job.state)
        known = found.get(kind)
        is_further = known is not None and (known.state in (JobState.DONE, *_FORMER) or not state.is_final)
        if known is None or (is_further and state not in _FORMER):
            found[kind] = FollowUp(state=state, reason=job.error or job.note or job.reason_code)
    return found


def timeline_of_job(job: Job, attempts: Sequence[Attempt]) -> Timeline:
    """The processing of a job that follows no turn, such as a summary of a session or a step of a re-embedding."""
    return Timeline(
        job_id=job.id,
        owner=job.scope,
        accepted_at=job.created_at,
        turns=(),
        episode_ids=(),
        fact_ids=(),
        steps=tuple(_job_steps(job, attempts, job.created_at)),
    )


def job_ids_of(found: Timeline) -> list[JobId]:
    """The jobs that have a step."""
    return list(dict.fromkeys(step.job_id for step in found.steps if step.job_id is not None))


def with_holds(found: Timeline, holds: Iterable[EndedHold], *, for_tenant: bool) -> Timeline:
    """The timeline with the waits of its jobs, their discards that were restored, and the pauses during which one of
    them waited.

    `for_tenant`: pauses of all namespaces are without reason and operators: they may name other tenants.
    """
    jobs = [step for step in found.steps if step.name in tuple(JobKind)]
    waits = [(job.name, list(_waits(job, found.steps))) for job in jobs]
    steps = [
        _hold_step(each, for_tenant=for_tenant) if each.ended_by is not None else _wait_step(each, found.steps)
        for each in holds
        if each.job_id is not None or any(each.kind in (None, kind) and _overlaps(each, times) for kind, times in waits)
    ]
    return replace(found, steps=_in_order([*found.steps, *steps]))


def _waits(job: TimelineStep, steps: Iterable[TimelineStep]) -> Iterator[tuple[datetime, datetime | None]]:
    """When no worker had the job; the end None: it still waits. Of a lost attempt that has no end, from its begin."""
    since = job.at
    for attempt in steps:
        if attempt.job_id == job.job_id and attempt.name.startswith(f"{job.name} attempt "):
            yield since, attempt.at
            if attempt.state in LAST_OUTCOMES:
                return
            since = attempt.ended_at or attempt.at
    yield since, job.ended_at


def _overlaps(pause: EndedHold, times: Iterable[tuple[datetime, datetime | None]]) -> bool:
    return any(begin <= pause.ended_at and (end is None or pause.created_at <= end) for begin, end in times)


def _wait_step(hold: EndedHold, steps: Iterable[TimelineStep]) -> TimelineStep:
    """The wait after a claim that was given back, until the next attempt or the end of the job: an operator may let it
    run earlier. Before those, and when it was due, it is not over.
    """
    ends = [
        step.ended_at if step.name == hold.kind else step.at
        for step in steps
        if step.job_id == hold.job_id and step.name.startswith(str(hold.kind))
    ]
    over = min((end for end in ends if end is not None and end > hold.created_at), default=None)
    return TimelineStep(
        name=f"{hold.kind} waited",
        at=hold.created_at,
        ended_at=None if over is None else min(hold.ended_at, over),
        job_id=hold.job_id,
        detail=hold.reason,
    )


def _hold_step(hold: EndedHold, *, for_tenant: bool) -> TimelineStep:
    if hold.job_id is not None:
        name, detail = f"{hold.kind} discarded", f"{hold.reason}; restored by {hold.ended_by}"
    else:
        where = f"namespace {hold.namespace}" if hold.namespace else "every namespace"
        since = f"{hold.created_at.astimezone(UTC):%H:%M:%S}"
        jobs = f"{hold.kind or 'all'} jobs of {where}"
        name, detail = "paused", f"{jobs} since {since}"
        if hold.namespace or not for_tenant:
            detail += f": {hold.reason}; resumed by {hold.ended_by}"
    return TimelineStep(name=name, at=hold.created_at, ended_at=hold.ended_at, job_id=hold.job_id, detail=detail)


def _in_order(steps: Iterable[TimelineStep]) -> tuple[TimelineStep, ...]:
    return tuple(sorted(steps, key=lambda step: (step.at, step.name != "accepted")))


def _job_steps(job: Any, attempts: Sequence[Any], accepted: datetime) -> list[TimelineStep]:  # Any: see above
    """A step for the job as a whole, and one for each attempt; none for a claim that was given back."""
    is_over = JobState(job.state).is_final
    begun = accepted if job.kind == JobKind.STORE.value else job.created_at
    detail = job.reason_code or describe_note(job)
    if not is_over and job.state != JobState.RUNNING.value:
        detail = f"next attempt {job.run_at:%H:%M:%S}" + (f", {detail}" if detail else "")
    steps = [
        TimelineStep(
            name=str(job.kind),
            at=begun,
            ended_at=job.updated_at if is_over else None,
            job_id=JobId(job.id),
            state=str(job.state),
            detail=detail,
        )
    ]
    for each in attempts:
        if each.outcome == GIVEN_BACK:  # the next attempt has its number
            continue
        model = None if each.model and each.model in (each.error or "") else each.model  # an error begins with it
        said = ", ".join(part for part in (f"by {each.worker}", model, each.error) if part)
        steps.append(
            TimelineStep(
                name=f"{job.kind} attempt {each.number}",
                at=each.started_at,
                ended_at=each.ended_at,
                job_id=JobId(job.id),
                state=each.outcome or ("running" if job.state == JobState.RUNNING.value else None),
                detail=said,
            )
        )
    return steps
