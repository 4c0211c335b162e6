"""Mounts all screens into the service."""

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

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
    screens = APIRouter(include_in_schema=False, route_class=rendering.PageRoute)
    for each in SCREENS:
        screens.include_router(each.router)
    app.include_router(screens)
    app.get("/favicon.ico", include_in_schema=False)(favicon)


async def favicon(request: Request) -> Response:
    """Serve the icon at the path that browsers request by default."""
    return Response(status_code=308, headers={"Location": "/static/favicon.svg"})
