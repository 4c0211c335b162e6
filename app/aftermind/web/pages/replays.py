"""Replays: create a plan from dead letters, show its estimate, start it and follow it."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

import orjson
from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind import errors
from aftermind.ledger.replay_overrides import refuse_instructions
from aftermind.ledger.replay_protocol import CONCURRENCY, RATE, NewPlan
from aftermind.types import JobKind, Json
from aftermind.types.replay import DryRunResult, ItemState, PlanId, ReplayMode, ReplayPlan
from aftermind.web import auth
from aftermind.web.pages import rendering
from aftermind.web.pages.dead_letters import Asked
from aftermind.web.pages.page_permissions import OPERATES, Seen, Viewer

ITEMS = 50

router = APIRouter(route_class=rendering.PageRoute, dependencies=OPERATES)


@router.post("/dead/plan", response_model=None)
async def plan(
    viewer: Seen,
    filters: Asked,
    reason: Annotated[str, Form()],
    mode: Annotated[ReplayMode, Form()] = ReplayMode.RETRY,
    rate: Annotated[float, Form()] = RATE,
    concurrency: Annotated[int, Form()] = CONCURRENCY,
    payload: Annotated[str, Form()] = "",
) -> RedirectResponse:
    """Freeze the matching jobs into a draft. No job is repeated before the plan is started."""
    new = NewPlan(
        name="one letter" if filters.id else "replay",
        reason=reason,
        actor=viewer.actor,
        mode=mode,
        overrides=_edits(payload) if mode is ReplayMode.EDITED else {},
        rate=rate,
        concurrency=concurrency,
    )
    made = await viewer.memory.replays.create(filters.to_filter(viewer.namespace), new)
    return RedirectResponse(rendering.link("/dead/replay", plan=made.id), status_code=303)


@router.get("/dead/replay", response_class=HTMLResponse)
async def show_plan(request: Request, viewer: Seen, plan: Annotated[str, Query()]) -> HTMLResponse:
    """A plan: the dry run while it is a draft, its progress afterwards."""
    found = await _plan(viewer, plan)
    estimate = await viewer.memory.replays.estimate(found.id) if found.state == "draft" else None
    return rendering.page(
        request,
        "replay.html",
        await _progress(request, viewer, found),
        here="dead",
        estimate=estimate,
        can_shadow=estimate is not None and JobKind.EXTRACT in estimate.by_kind,
    )


@router.get("/dead/replay/progress", response_class=HTMLResponse)
async def progress(request: Request, viewer: Seen, plan: Annotated[str, Query()], was: str = "") -> HTMLResponse:
    """How far a plan is; a piece that refreshes.

    `was` is the state that the page was drawn with: what can be done in another one is another page.
    """
    found = await _plan(viewer, plan)
    answer = rendering.page(request, "_replay.html", await _progress(request, viewer, found))
    if was and was != found.state:
        answer.headers["HX-Refresh"] = "true"
    return answer


@router.post("/dead/replay/start", response_model=None)
async def start(viewer: Seen, plan: Annotated[str, Form()]) -> RedirectResponse:
    """Let a draft or a paused plan run."""
    await viewer.memory.replays.start((await _plan(viewer, plan)).id)
    return _to(plan)


@router.post("/dead/replay/pause", response_model=None)
async def pause(viewer: Seen, plan: Annotated[str, Form()]) -> RedirectResponse:
    """Put nothing more in for now."""
    await viewer.memory.replays.pause((await _plan(viewer, plan)).id, note=f"paused by {viewer.actor}")
    return _to(plan)


@router.post("/dead/replay/abort", response_model=None)
async def abort(viewer: Seen, plan: Annotated[str, Form()]) -> RedirectResponse:
    """Put nothing more in, for good."""
    await viewer.memory.replays.abort((await _plan(viewer, plan)).id, note=f"aborted by {viewer.actor}")
    return _to(plan)


@router.post("/dead/replay/shadow", response_model=None)
async def shadow(viewer: Seen, plan: Annotated[str, Form()]) -> RedirectResponse:
    """Run a sample of the extractions without writing."""
    await viewer.memory.replays.dry_run((await _plan(viewer, plan)).id)
    return _to(plan)


async def _progress(request: Request, viewer: Viewer, found: ReplayPlan) -> dict[str, object]:
    replays = viewer.memory.replays
    shadows: Sequence[DryRunResult] = ()
    with suppress(errors.NoSample):
        shadows = await replays.dry_run_results(found.id)
    if any(each.added or each.superseded or each.error for each in shadows):
        work = partial(replays.record_access, found.id, actor=viewer.actor)
        await auth.once(request, (viewer.actor, found.id), work, auth.SESSION_SECONDS)
    unfinished = (ItemState.WAITING, ItemState.REPLAYED)
    ended = sum(count for state, count in found.counts.items() if state not in unfinished)
    return {
        "plan": found,
        "ended": ended,
        "is_moving": not found.state.is_final or found.counts.get(ItemState.REPLAYED, 0) > 0,
        "items": await replays.list_items(found.id, limit=ITEMS),
        "shadows": shadows,
        "states": list(ItemState),
    }


async def _plan(viewer: Viewer, plan_id: str) -> ReplayPlan:
    found = await viewer.memory.replays.get(PlanId(plan_id), namespace=viewer.namespace)
    if found is None:
        raise HTTPException(404, f"Replay plan {plan_id} does not exist.")
    return found


def _edits(told: str) -> dict[str, Json]:
    values = _overrides(told)
    refuse_instructions(values)
    return values


def _overrides(told: str) -> dict[str, Json]:
    try:
        values = orjson.loads(told)
    except orjson.JSONDecodeError as exc:
        raise errors.InvalidFilter("payload", told[:80], f"it is not JSON: {exc}.") from exc
    if not isinstance(values, dict):
        raise errors.InvalidFilter(
            "payload", told[:80], "it must be a JSON object; its fields replace those of the payload."
        )
    return values


def _to(plan_id: str) -> RedirectResponse:
    return RedirectResponse(rendering.link("/dead/replay", plan=plan_id), status_code=303)
