"""Memory explorer, its door: whose memory to look at."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind.web.pages import frame
from aftermind.web.pages.access import Seen

PAGE = 50

router = APIRouter(route_class=frame.PageRoute)


@router.get("/memory", response_class=HTMLResponse)
async def people(request: Request, viewer: Seen, q: str = "", after: str | None = None) -> HTMLResponse:
    """Everybody of the namespace of whom something is kept, by id."""
    found = await viewer.memory.users(namespace=viewer.namespace, prefix=q.strip(), after=after, limit=PAGE + 1)
    return frame.page(
        request, "people.html", here="memory", people=found[:PAGE], q=q.strip(), after=after, more=len(found) > PAGE
    )


@router.get("/memory/open", response_model=None)
async def open_user(viewer: Seen, user: str = "") -> RedirectResponse:
    """To a user by their exact id, also one of whom nothing is stored yet."""
    return RedirectResponse(frame.link("/memory/user", user=user) if user else "/memory", status_code=303)
