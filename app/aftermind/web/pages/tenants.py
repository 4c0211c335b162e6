"""Tenants: every namespace with its users, jobs and costs, and the switch of the console to one of them."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind.api.multi_database_calls import away_databases
from aftermind.types import Scope
from aftermind.web import auth
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import OF_ALL_TENANTS, Seen

LISTED = 100

router = APIRouter(route_class=rendering.PageRoute, dependencies=OF_ALL_TENANTS)


@router.get("/tenants", response_class=HTMLResponse)
async def tenants(request: Request, viewer: Seen, q: str = "", after: str | None = None) -> HTMLResponse:
    """Namespaces by name, with pending and failed jobs and today's costs."""
    found = await viewer.memory.job_admin.tenants(prefix=q.strip(), after=after, limit=LISTED + 1)
    return rendering.page(
        request,
        "tenants.html",
        here="tenants",
        tenants=found[:LISTED],
        away=away_databases(found),
        q=q.strip(),
        after=after,
        more=len(found) > LISTED,
        budget_of=viewer.memory.settings.budget_for,
        has_budgets=viewer.memory.settings.has_budgets,
    )


@router.post("/tenants/switch", response_model=None)
async def switch(viewer: Seen, namespace: Annotated[str, Form()] = "") -> RedirectResponse:
    """Show another namespace on all screens of this browser; without one, that of the key."""
    answer = RedirectResponse("/", status_code=303, headers=dict(rendering.HEADERS))
    if not namespace:
        answer.delete_cookie(auth.NAMESPACE_COOKIE, httponly=True, samesite="strict")
        return answer
    chosen = Scope(namespace=namespace).namespace  # raises InvalidScope
    answer.set_cookie(auth.NAMESPACE_COOKIE, quote(chosen, safe=""), httponly=True, samesite="strict")
    return answer
