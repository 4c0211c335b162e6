"""Mounts all screens into the service."""

from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from aftermind.web import problem_details
from aftermind.web.pages import (
    api_docs,
    blocks,
    chat,
    costs,
    dead_letters,
    events,
    facts,
    graph,
    jobs,
    login,
    overview,
    profile,
    recall,
    rendering,
    replays,
    tenants,
    turns,
    users,
)

SCREENS = (
    overview,
    users,
    turns,
    facts,
    graph,
    blocks,
    profile,
    recall,
    events,
    jobs,
    dead_letters,
    replays,
    costs,
    tenants,
    chat,
    api_docs,
    login,
)
STATIC = Path(__file__).parents[1] / "static"


class _Static(StaticFiles):
    """Our own files. Their links name the version, so a browser may keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=3600"
            response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def install(app: FastAPI) -> None:
    """Add every screen and what they are drawn with."""
    app.mount("/static", _Static(directory=STATIC), name="static")
    for each in SCREENS:
        app.include_router(each.router, include_in_schema=False)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.get("/favicon.ico", include_in_schema=False)(favicon)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """Of an address that no route has: a page for browsers, a problem document for programs."""
    assert isinstance(error, HTTPException)
    accepts = request.headers.get("accept", "")
    if request.url.path.startswith("/v1/") or "text/html" not in accepts:
        return await problem_details.handle_http_error(request, error)
    why = "No screen has this address." if error.status_code == 404 else str(error.detail)
    return rendering.problem(request, error.status_code, why)


async def favicon(request: Request) -> Response:
    """Serve the icon at the path that browsers request by default."""
    return Response(status_code=308, headers={"Location": "/static/favicon.svg"})
