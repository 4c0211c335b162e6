"""Memory explorer, start page: choose a user."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import Seen

PAGE_USERS = 50

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/memory", response_class=HTMLResponse)
async def people(request: Request, viewer: Seen, q: str = "", after: str | None = None) -> HTMLResponse:
    """List the users of the namespace that have stored content, by id."""
    found = await viewer.memory.users(namespace=viewer.namespace, prefix=q.strip(), after=after, limit=PAGE_USERS + 1)
    return rendering.page(
        request,
        "users.html",
        here="memory",
        people=found[:PAGE_USERS],
        q=q.strip(),
        after=after,
        more=len(found) > PAGE_USERS,
    )


@router.get("/memory/open", response_model=None)
async def open_user(viewer: Seen, user: str = "") -> RedirectResponse:
    """Open a user by exact id, also if nothing is stored for it yet."""
    return RedirectResponse(rendering.link("/memory/user", user=user) if user else "/memory", status_code=303)
