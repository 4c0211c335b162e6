"""Events: what happens to a user's memory, live."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from aftermind.events.types import KINDS
from aftermind.types import Scope
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import Owner, OwnerView, Seen, recorded, whose
from aftermind.web.routes import events as routed
from aftermind.web.sse import EventStream

BEFORE = 50  # events that were there already, so that a page does not begin empty
OFFERED = 12  # users, where none is named

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/events", response_class=HTMLResponse)
async def events(request: Request, viewer: Seen, user: str = "", *, anonymous: bool = False) -> HTMLResponse:
    """The events of one user as they arrive, the newest first."""
    if not user and not anonymous:
        people = await viewer.memory.users(namespace=viewer.namespace, limit=OFFERED)
        return rendering.page(request, "events.html", here="events", whose=None, people=people)
    chosen = await recorded(request, whose(viewer, user, anonymous=anonymous))
    after = max(0, int(await viewer.memory.event_cursor(**chosen.scope)) - BEFORE)
    return rendering.page(
        request, "events.html", here="events", whose=chosen, stream=stream(chosen, after), kinds=list_kinds()
    )


@router.get("/events/stream", response_model=None)
async def stream_events(
    request: Request, whose: Owner, *, last_event_id: routed.LastEventId = None, after: routed.After = None
) -> EventStream:
    """The stream itself: as the JSON API has it, also of the anonymous bucket and of ids that no path can hold."""
    owner = Scope(namespace=whose.viewer.namespace, user_id=whose.user_id)
    return await routed.listen(request, owner, last_event_id or after, request.state.caller)


def stream(chosen: OwnerView, after: int) -> str:
    """The URL of a user's event stream from a cursor."""
    return rendering.link("/events/stream", after=str(after), **chosen.query)


def list_kinds() -> list[str]:
    """The names under which events come."""
    return [*(name for name in KINDS if name != "MemoryGap"), "gap"]
