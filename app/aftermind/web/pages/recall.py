"""Memory explorer: what a question would recall, and why: scores, ranks, and reasons for what is left out."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from aftermind.recall import RecallMode, RecallOptions
from aftermind.types import ExclusionReason
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import Owner

router = APIRouter(route_class=rendering.PageRoute)

REASONS = {
    ExclusionReason.FILTERED: "filtered",
    ExclusionReason.MIN_SCORE: "score below the threshold",
    ExclusionReason.LOW_CONFIDENCE: "confidence too low",
    ExclusionReason.LIMIT: "rank beyond the limit",
    ExclusionReason.SIMILAR: "similar to others",
    ExclusionReason.SUPERSEDED: "superseded",
    ExclusionReason.REPEATED: "content is in the block",
    ExclusionReason.BUDGET: "no space in the budget",
}


@router.get("/memory/recall", response_class=HTMLResponse)
async def recall(
    request: Request,
    whose: Owner,
    q: str = "",
    session: str = "",
    mode: RecallMode = RecallMode.HYBRID,
    budget: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    known_at: str = "",
    recall_id: str = "",
) -> HTMLResponse:
    """The block that an agent would get for a question, and the candidates that are not in it, with scores."""
    shown: dict[str, object] = {}
    if q.strip():
        asked: RecallOptions = {
            "token_budget": budget,
            "mode": mode,
            "known_at": rendering.parse_time("known_at", known_at),
        }
        found = await whose.memory.explain(
            q,
            recall_id=recall_id.strip() or None,
            session_id=session or None,
            user_id=whose.user_id,
            namespace=whose.viewer.namespace,
            **asked,
        )
        shown = {"found": found, "block": found.block, "reasons": REASONS}
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
        modes=list(RecallMode),
        budget=budget or whose.memory.settings.recall_token_budget,
        known_at=known_at,
        recall_id=recall_id,
    )
