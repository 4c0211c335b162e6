"""Memory explorer: what has been learned about a user, the summaries of their sessions, and forgetting them."""

from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import HTMLResponse

from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import WRITES, Owner

SESSIONS = 30  # sessions with their summaries on this page; the page of a session shows the others

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/memory/profile", response_class=HTMLResponse)
async def profile(request: Request, whose: Owner) -> HTMLResponse:
    """Traits with their evidence, and the latest summaries."""
    sessions = await whose.memory.sessions(**whose.scope, limit=SESSIONS)
    found = [
        (each, await whose.memory.summary(**whose.scope, session_id=each.session_id))
        for each in sessions
        if each.session_id is not None
    ]
    return rendering.page(
        request,
        "profile.html",
        here="memory",
        tab="profile",
        whose=whose,
        profile=await whose.memory.profile(**whose.scope),
        summaries=[(session, summary) for session, summary in found if summary is not None],
        sessions=sessions,
    )


@router.post("/memory/forget", dependencies=WRITES, response_class=HTMLResponse)
async def forget(
    request: Request,
    whose: Owner,
    confirm: Annotated[str, Form()],
    session: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Delete everything of a user, or of one session, for good; their id has to be typed."""
    if confirm.strip() != (whose.user_id or "anonymous"):
        raise HTTPException(422, "The typed id does not match, so nothing was forgotten.")
    gone = await whose.memory.forget(**whose.scope, session_id=session or None)
    counts = ", ".join(f"{count:,} {name}" for name, count in gone.rows.items() if count)
    pending = f"; {gone.pending_turns} pending turns" if gone.pending_turns else ""
    text = f"Forgotten: {counts or 'nothing was stored'}{pending}."
    return rendering.page(request, "_notice.html", text=text, tone="good")
