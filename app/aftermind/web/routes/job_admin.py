"""Jobs of the key's namespace for operators: listed in any state, timelines, actions on many and their undo, pauses."""

from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, Field

from aftermind import errors
from aftermind.types import JobKind, JobState
from aftermind.types.api_key import Right
from aftermind.types.job_admin import JobAction
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import pagination, schemas
from aftermind.web.auth import Operator, Remembering
from aftermind.web.pagination import Cursor, Limit, Page
from aftermind.web.routes.dead_letters import FilterIn

router = APIRouter(tags=["job administration"])


class JobCountOut(schemas.Shape):
    """Unfinished, dead or discarded jobs of a kind. `scheduled`: not due yet."""

    kind: JobKind
    state: JobState
    count: int
    scheduled: int


class LatencyOut(schemas.Shape):
    """Seconds from acceptance or creation to completion."""

    kind: JobKind
    count: int
    p50: float
    p95: float
    p99: float


class PauseIn(schemas.Shape):
    """A pause; without a kind of all jobs of the namespace."""

    kind: JobKind | None = None
    reason: str = Field(min_length=1, max_length=500)


class PauseOut(schemas.Shape):
    """A pause. `namespace` null: of every namespace, which the command line alone can end."""

    kind: JobKind | None
    namespace: str | None
    reason: str
    actor: str
    created_at: datetime


class SummaryOut(schemas.Shape):
    """Counts by kind and state, latencies of the last hour, and pauses."""

    counts: list[JobCountOut]
    latencies: list[LatencyOut]
    pauses: list[PauseOut]


class PendingTurnOut(schemas.Shape):
    """An accepted turn that waits in Redis. `worker` holds it now, or null."""

    job_id: UUID
    user_id: str | None
    accepted_at: datetime
    size_bytes: int
    attempts: int
    worker: str | None


class StepOut(schemas.Shape):
    """A step, from `at` to `ended_at`; without `ended_at` it is a moment, or is not over. See `TimelineStep`."""

    name: str
    at: datetime
    ended_at: datetime | None
    job_id: UUID | None
    state: str | None
    detail: str | None


class TimelineOut(schemas.Shape):
    """What happened to a turn. `turns` are the store jobs of all turns of the job that was asked for."""

    job_id: UUID
    user_id: str | None
    accepted_at: datetime
    turns: list[UUID]
    episode_ids: list[UUID]
    fact_ids: list[UUID]
    steps: list[StepOut]


class ActionIn(schemas.Shape):
    """What to do to which jobs. `discard` needs a note."""

    action: JobAction
    filter: FilterIn
    note: str = Field("", max_length=500)


class ActionOut(schemas.Shape):
    """How many jobs have changed. `id` restores all of a `discard`; null for the other actions."""

    action: JobAction
    changed: int
    id: UUID | None


def _filter(
    state: Annotated[list[JobState] | None, Query()] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    reason: Annotated[list[str] | None, Query()] = None,
    error: Annotated[str | None, Query(description="Text that the error contains.")] = None,
    user_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    session_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> FilterIn:
    return FilterIn(
        states=state or [],
        kinds=kind or [],
        reasons=reason or [],
        error=error,
        user_id=user_id,
        session_id=session_id,
        since=since,
        until=until,
    )


@router.get("/jobs", summary="Jobs in any state, the latest change first")
async def list_(
    memory: Remembering,
    who: Operator,
    wanted: Annotated[FilterIn, Depends(_filter)],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[schemas.JobOut]:
    """Of these states, kinds and so on, where any are named. Turns that wait in Redis are at `/v1/pending-turns`."""
    rows = pagination.rows_to_read(cursor, limit)
    found = await memory.job_admin.list(wanted.to_job_filter(who), limit=rows)
    return pagination.page(found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=schemas.job)


@router.get("/jobs/summary", summary="Counts, latencies and pauses")
async def summary(memory: Remembering, who: Operator) -> SummaryOut:
    """Counts of unfinished, dead and discarded jobs, percentiles by stage of the last hour, and pauses."""
    admin = memory.job_admin
    return SummaryOut(
        counts=[JobCountOut.model_validate(each) for each in await admin.counts(namespace=who.namespace)],
        latencies=[
            LatencyOut.model_validate(each)
            for each in await admin.latencies(namespace=who.namespace, over=timedelta(hours=1))
        ],
        pauses=[PauseOut.model_validate(each) for each in await admin.pauses(namespace=who.namespace)],
    )


@router.get("/pending-turns", summary="Accepted turns that wait in Redis, the oldest first")
async def pending_turns(memory: Remembering, who: Operator, limit: Limit = 100) -> list[PendingTurnOut]:
    """Without their content. Recalls include them already."""
    return [
        PendingTurnOut(
            job_id=each.job_id,
            user_id=each.owner.user_id,
            accepted_at=each.accepted_at,
            size_bytes=each.size_bytes,
            attempts=each.attempts,
            worker=each.worker,
        )
        for each in await memory.job_admin.pending_turns(namespace=who.namespace, limit=limit)
    ]


@router.get("/timelines/{any_id}", summary="What happened to a turn")
async def timeline(any_id: UUID, memory: Remembering, who: Operator) -> TimelineOut:
    """By the id of one of its jobs, episodes or facts: accepted, stored, embedded, extracted, facts, events, and
    delays: ended pauses during which one of its jobs waited, discarded jobs that were restored, and waits for a
    provider, a budget or an outage (`extract waited`, with the reason).

    A step lasts from `at` to `ended_at`: a job from acceptance or creation to its end, waits included, an attempt as
    long as its work. Without `ended_at` it is a moment (acceptance, facts, events), or is not over.

    Ended pauses of every namespace have a reason and operators only for a key with the right `tenants`.
    """
    found = await memory.job_admin.timeline(any_id, namespace=who.namespace, for_tenant=Right.TENANTS not in who.rights)
    if found is None:
        raise errors.NotThere("turn", str(any_id))
    return TimelineOut(
        job_id=found.job_id,
        user_id=found.owner.user_id,
        accepted_at=found.accepted_at,
        turns=list(found.turns),
        episode_ids=list(found.episode_ids),
        fact_ids=list(found.fact_ids),
        steps=[StepOut.model_validate(each) for each in found.steps],
    )


@router.post("/jobs/actions", summary="Run jobs now, discard or restore them")
async def act(what: ActionIn, memory: Remembering, who: Operator) -> ActionOut:
    """An empty filter means all jobs of the namespace that the action applies to."""
    wanted = what.filter.to_job_filter(who)
    done = await memory.job_admin.apply(what.action, wanted, note=what.note, actor=who.actor)
    return ActionOut.model_validate(done)


@router.post("/jobs/actions/{action_id}/undo", summary="Restore the jobs that an action has discarded")
async def undo(action_id: UUID, memory: Remembering, who: Operator) -> ActionOut:
    """Except those that were replayed or restored since."""
    done = await memory.job_admin.undo(action_id, namespace=who.namespace, actor=who.actor)
    return ActionOut.model_validate(done)


@router.put("/pauses", status_code=204, summary="Pause jobs of the namespace")
async def pause(what: PauseIn, memory: Remembering, who: Operator) -> None:
    """Workers claim none of them from the next second on. Running jobs are completed; the others wait."""
    await memory.job_admin.pause(kind=what.kind, namespace=who.namespace, reason=what.reason, actor=who.actor)


@router.delete("/pauses", status_code=204, summary="End a pause")
async def resume(memory: Remembering, who: Operator, kind: JobKind | None = None) -> None:
    """Of a kind; without one that of all jobs. 404 if there is none, 409 if an operator made it by the command line."""
    is_key = who.key is not None
    if not await memory.job_admin.resume(kind=kind, namespace=who.namespace, actor=who.actor, is_key=is_key):
        raise errors.NotThere("pause", kind or "all jobs")
