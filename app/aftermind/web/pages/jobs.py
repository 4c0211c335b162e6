"""Jobs: a list of every state with filters, actions on many and their undo, pauses; and one job with its timeline."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind import errors
from aftermind.ledger.replay_overrides import editable
from aftermind.types import Fact, JobId, JobKind, JobState, Scope
from aftermind.types.api_key import Right
from aftermind.types.audit import Action as Audited
from aftermind.types.job_admin import JobAction, JobCount, PendingTurn, Timeline
from aftermind.types.replay import JobFilter, ReplayMode
from aftermind.web.pages import rendering
from aftermind.web.pages.dead_letters import AGES, Asked
from aftermind.web.pages.page_permissions import OPERATES, OwnerView, Seen, Viewer, record
from aftermind.wire import queues

LISTED = 100
RAW = 4_000  # characters of a payload's bytes that are shown
FACTS = 5_000  # of a user that are searched for those that a turn changed
WRITE = timedelta(seconds=10)  # between the decision about facts and their write: milliseconds
TABS = (
    (JobState.QUEUED, "Queued"),
    (JobState.RUNNING, "Running"),
    (JobState.RETRYING, "Retry"),
    (JobState.DONE, "Completed"),
    (JobState.DEAD, "Dead"),
    (JobState.DISCARDED, "Discarded"),
)
CANCELLABLE = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)

router = APIRouter(route_class=rendering.PageRoute, dependencies=OPERATES)


@router.get("/jobs", response_class=HTMLResponse)
async def list_jobs(request: Request, viewer: Seen, filters: Asked) -> HTMLResponse:
    """Jobs that fit the filters, with counts by state, latencies and pauses."""
    admin, space = viewer.memory.job_admin, viewer.namespace
    if filters.id:
        return await _find(request, viewer, filters.id)
    listed = await admin.list(filters.to_filter(space), limit=LISTED)
    counts = await admin.counts(namespace=space)
    return rendering.page(
        request,
        "jobs.html",
        here="jobs",
        filters=filters,
        listed=listed,
        holds=await admin.hold_reasons(listed, namespace=space),
        limit=LISTED,
        tabs=[(state, name, _total(counts, state)) for state, name in TABS],
        scheduled=sum(each.scheduled for each in counts),
        kinds=list(JobKind),
        queues=queues.QUEUE_OF,
        ages=AGES,
        latencies=await admin.latencies(namespace=space),
        pauses=await admin.pauses(namespace=space),
        pending=await _pending(viewer),
        can=_actions(filters.state),
        done=request.query_params.get("done"),
        changed=request.query_params.get("changed"),
        action=request.query_params.get("action"),
    )


@router.get("/jobs/job", response_class=HTMLResponse)
async def job(request: Request, viewer: Seen, id: UUID) -> HTMLResponse:
    """One job: what happened to its turn, the messages it works on, payload, attempts, replays and actions."""
    memory, space = viewer.memory, viewer.namespace
    timeline = await memory.job_admin.timeline(id, namespace=space, for_tenant=not viewer.may(Right.TENANTS))
    found = await memory.dead_letters.get(JobId(id))
    if found is None or found.job.scope.namespace != space:
        if timeline is None:
            raise HTTPException(404, f"Job {id} does not exist.")
        return rendering.page(request, "timeline.html", here="jobs", timeline=timeline, id=id)
    scope = found.job.scope
    await record(request, viewer, Audited.READ, user_id=scope.user_id, job=str(id))
    raw = None if found.raw is None else found.raw.decode("utf-8", "replace")
    return rendering.page(
        request,
        "dead_letter.html",
        here="dead" if found.job.state is JobState.DEAD else "jobs",
        letter=found,
        job=found.job,
        timeline=timeline,
        messages=await memory.job_admin.messages(found.job),
        changes=await _changes(viewer, scope, timeline),
        whose=OwnerView(viewer=viewer, user_id=scope.user_id),
        answer=found.job.answer,
        raw=raw and raw[:RAW],
        raw_is_cut=raw is not None and len(raw) > RAW,
        modes=list(ReplayMode),
        editable=editable(found.job),
    )


@router.post("/jobs/action", response_model=None)
async def act(
    viewer: Seen,
    filters: Asked,
    action: Annotated[JobAction, Form()],
    note: Annotated[str, Form()] = "",
    until: Annotated[str, Form()] = "",
) -> RedirectResponse:
    """Apply an action to the jobs that fit, and had changed last before the page was drawn."""
    wanted = replace(filters.to_filter(viewer.namespace), until=rendering.parse_time("until", until))
    done = await viewer.memory.job_admin.apply(action, wanted, note=note, actor=viewer.actor)
    changed = done.changed or "0"
    return RedirectResponse(
        rendering.link("/jobs", **filters.query, done=action.value, changed=changed, action=done.id), status_code=303
    )


@router.post("/jobs/undo", response_model=None)
async def undo(viewer: Seen, action: Annotated[UUID, Form()]) -> RedirectResponse:
    """Restore the jobs that an action has discarded."""
    done = await viewer.memory.job_admin.undo(action, namespace=viewer.namespace, actor=viewer.actor)
    return RedirectResponse(
        rendering.link("/jobs", done=JobAction.RESTORE.value, changed=done.changed or "0"), status_code=303
    )


@router.post("/jobs/pause", response_model=None)
async def pause(
    viewer: Seen, reason: Annotated[str, Form()], kind: Annotated[list[JobKind] | None, Form()] = None
) -> RedirectResponse:
    """Let workers claim no jobs of these kinds (none: of any kind) in the viewer's namespace."""
    chosen: list[JobKind | None] = [*kind] if kind else [None]
    for each in chosen:
        await viewer.memory.job_admin.pause(kind=each, namespace=viewer.namespace, reason=reason, actor=viewer.actor)
    return RedirectResponse("/jobs", status_code=303)


@router.post("/jobs/resume", response_model=None)
async def resume(viewer: Seen, kind: Annotated[JobKind | None, Form()] = None) -> RedirectResponse:
    """End a pause of the viewer's namespace."""
    await viewer.memory.job_admin.resume(
        kind=kind, namespace=viewer.namespace, actor=viewer.actor, is_key=viewer.has_key
    )
    return RedirectResponse("/jobs", status_code=303)


async def _find(request: Request, viewer: Viewer, given: str) -> HTMLResponse:
    """The job, or the turn of an episode or a fact, with this id."""
    try:
        asked = UUID(given)
    except ValueError as exc:
        raise errors.InvalidFilter("id", given, "it is not the whole id of a job, an episode or a fact.") from exc
    found = await viewer.memory.job_admin.list(JobFilter(ids=(JobId(asked),), namespace=viewer.namespace), limit=1)
    if found:
        return await job(request, viewer, asked)
    timeline = await viewer.memory.job_admin.timeline(asked, namespace=viewer.namespace)
    if timeline is None:
        raise HTTPException(404, f"No job, episode or fact has the id {asked}.")
    return await job(request, viewer, timeline.job_id)


async def _pending(viewer: Viewer) -> Sequence[PendingTurn] | None:
    try:
        return await viewer.memory.job_admin.pending_turns(namespace=viewer.namespace, limit=LISTED)
    except errors.RedisUnavailable:
        return None


async def _changes(viewer: Viewer, owner: Scope, timeline: Timeline | None) -> list[tuple[str, Fact]]:
    """Facts that the turn added (+) and that they superseded (-): of the same predicate, as the turn was written."""
    if timeline is None or not timeline.fact_ids:
        return []
    rows = await viewer.memory.facts.history(user_id=owner.user_id, namespace=owner.namespace, limit=FACTS)
    sources, ids = set(timeline.episode_ids), set(timeline.fact_ids)
    moments = {row.recorded_at for row in rows if row.id in ids and sources & set(row.sources)}
    added = [row for row in rows if row.recorded_at in moments]
    written = {(row.subject, row.predicate, row.recorded_at) for row in added}
    gone = [
        row
        for row in rows
        if row.superseded_at is not None
        and any(
            (row.subject, row.predicate) == (subject, predicate) and timedelta(0) <= row.superseded_at - at < WRITE
            for subject, predicate, at in written
        )
    ]
    changes = [*(("+", row) for row in added), *(("-", row) for row in gone)]
    return sorted(changes, key=lambda change: (change[1].subject, change[1].predicate, change[0] == "+"))


def _total(counts: Sequence[JobCount], state: JobState) -> int | None:
    """How many of a state; None for completed jobs, which are not counted."""
    return None if state is JobState.DONE else sum(each.count for each in counts if each.state is state)


def _actions(state: str) -> list[JobAction]:
    """What can be done to jobs of a state; without a state, what can be done to unfinished ones."""
    if state == JobState.DISCARDED:
        return [JobAction.RESTORE]
    if state == JobState.DEAD:
        return [JobAction.DISCARD]
    if state == JobState.RUNNING:
        return [JobAction.DISCARD]
    return [JobAction.RUN_NOW, JobAction.DISCARD] if state in CANCELLABLE else []
