"""The reference of the JSON API as a page: every endpoint with its parameters, answer and an example."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from aftermind.web.api_reference import list_operations
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import Seen

router = APIRouter(route_class=rendering.PageRoute)


@router.get("/docs", response_class=HTMLResponse)
async def reference(request: Request, viewer: Seen) -> HTMLResponse:
    """Drawn from the service's own OpenAPI document, without files from elsewhere."""
    return rendering.page(request, "api_docs.html", here="docs", groups=list_operations(request.app.openapi()))
