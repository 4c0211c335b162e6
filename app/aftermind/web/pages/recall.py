"""Memory explorer: what a question would recall, and why: every score and rank."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from aftermind.recall import Mode, RecallOptions
from aftermind.types import Episode, Fact, Match
from aftermind.web.pages import rendering
from aftermind.web.pages.dependencies import Owner

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/memory/recall", response_class=HTMLResponse)
async def recall(
    request: Request,
    whose: Owner,
    q: str = "",
    session: str = "",
    mode: Mode = Mode.HYBRID,
    budget: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    as_of: str = "",
) -> HTMLResponse:
    """The block that an agent would get for a question, and every match with its scores."""
    shown: dict[str, object] = {}
    if q.strip():
        asked: RecallOptions = {"token_budget": budget, "mode": mode, "as_of": rendering.parse_time("as_of", as_of)}
        scope = {"session_id": session or None, "user_id": whose.user_id, "namespace": whose.viewer.namespace}
        block = await whose.memory.recall(q, **scope, **asked)
        matches = await whose.memory.recall_scored(q, **scope, **asked)
        shown = {"block": block, "matches": matches, "key": _key, "included": {_key(each) for each in block.matches}}
    return rendering.page(
        request,
        "recall.html",
        shown,
        here="memory",
        tab="recall",
        whose=whose,
        q=q,
        session=session,
        mode=mode,
        modes=list(Mode),
        budget=budget or whose.memory.settings.recall_token_budget,
        as_of=as_of,
    )


def _key(match: Match) -> str:
    item = match.item
    return str(item.id) if isinstance(item, Episode | Fact) else f"{type(item).__name__}:{item.scope}"
