"""Memory explorer: a user's sessions, and each turn with what was learnt from it."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from aftermind.types import EpisodeId, Fact
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import Owner

SESSIONS = 200
SHOWN, MOST_SHOWN = 50, 1_000
FACTS = 5_000  # facts of a user, to be matched with their source turns

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/memory/user", response_class=HTMLResponse)
async def turns(
    request: Request,
    whose: Owner,
    session: str | None = None,
    shown: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = SHOWN,
) -> HTMLResponse:
    """The newest turns of a user, or of one of their sessions."""
    memory = whose.memory
    episodes = await memory.history(**whose.scope, session_id=session, limit=shown + 1)
    learned = await memory.extraction(**whose.scope, session_id=session, limit=shown)
    return rendering.page(
        request,
        "turns.html",
        here="memory",
        tab="turns",
        whose=whose,
        session=session,
        sessions=await memory.sessions(**whose.scope, limit=SESSIONS),
        episodes=episodes[-shown:],
        older=min(shown * 2, MOST_SHOWN) if len(episodes) > shown and shown < MOST_SHOWN else None,
        learned={each.episode_id: each for each in learned},
        facts=_by_source(await memory.facts.history(**whose.scope, limit=FACTS)),
        summary=await memory.summary(**whose.scope, session_id=session) if session else None,
    )


@router.get("/memory/progress", response_class=HTMLResponse)
async def progress(request: Request, whose: Owner) -> HTMLResponse:
    """Progress of the user's turns; a fragment that refreshes itself."""
    found = await whose.memory.progress(**whose.scope)
    return rendering.page(request, "_user_progress.html", progress=found, whose=whose)


def _by_source(facts: Iterable[Fact]) -> dict[EpisodeId, list[Fact]]:
    found: dict[EpisodeId, list[Fact]] = defaultdict(list)
    for fact in facts:
        for source in fact.sources:
            found[source].append(fact)
    return found
