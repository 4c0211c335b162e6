"""The FastAPI application: one memory, who may ask, the JSON API, the screens, and health for machines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY

import aftermind
from aftermind.faces.health import Health
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.web import problems, routes
from aftermind.web.auth import Door
from aftermind.web.feeds import Feeds
from aftermind.web.guard import Guard
from aftermind.web.limits import CallerLimits
from aftermind.web.pages import routes as screens
from aftermind.web.pages.frame import signed_out
from aftermind.web.pages.pulse import Pulse
from aftermind.web.routes import metrics
from aftermind.web.shared_health import SharedHealth
from aftermind.web.sse import before_stopping

BODY_FLOOR = 1_048_576  # bytes of a request that is no turn: the largest question
BODIES_PER_KEY = 4  # largest bodies of one key that are held in memory at the same time


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, with a memory as the settings or the embedded stack say. Connects at its first request."""
    settings = settings or Settings()  # type: ignore[call-arg]
    memory = Memory(settings=settings, metrics=REGISTRY)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with memory:
            app.state.pulse = pulse = Pulse(memory)
            app.state.feeds = feeds = Feeds(memory, most=settings.web_max_listeners)
            app.state.health = SharedHealth(memory)
            app.state.verifying = asyncio.Lock()
            with before_stopping(feeds.end):
                yield
            await pulse.close()

    app = FastAPI(
        title="Aftermind",
        summary="Agent memory whose writes happen after the answer.",
        version=aftermind.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,  # such a redirect leads to the host that the request's Host header names
    )
    app.state.memory, app.state.door = memory, Door(memory)
    problems.install(app)
    max_bytes = 2 * settings.turn_max_bytes + BODY_FLOOR
    limits = CallerLimits(
        max_requests=settings.web_requests_per_key,
        max_streams=settings.web_streams_per_key,
        max_body_bytes=BODIES_PER_KEY * max_bytes,
        requests_per_second=settings.web_rate_per_key,
    )
    app.add_middleware(Guard, max_bytes=max_bytes, limits=limits, signed_out=signed_out)
    app.get("/healthz", include_in_schema=False)(healthz)
    app.get("/readyz", include_in_schema=False)(readyz)
    app.include_router(metrics.router)
    app.include_router(routes.router())
    screens.install(app)
    return app


async def healthz() -> dict[str, str]:
    """This process lives; nothing else is asked."""
    return {"status": "ok", "version": aftermind.__version__}


async def readyz(request: Request, *, work: bool = False) -> JSONResponse:
    """Whether requests can be served: 503 where the store does not answer, or its schema is too old.

    With `?work=true` also where jobs are overdue: a check of the whole deployment, and not of this process, which
    answers recalls just as well without workers. Asks for no key, so the answer is shared for a second.
    """
    health = await _health(request)
    body = {part.name: {"state": part.state, "detail": part.detail} for part in health.parts}
    lying = {row.kind: {"runnable": row.runnable, "age_seconds": round(row.age_seconds, 1)} for row in health.lying}
    is_ready = health.is_ready and not (work and lying)
    told = {"ready": is_ready, "parts": body, "lying": lying}
    return JSONResponse(told, status_code=200 if is_ready else 503)


async def _health(request: Request) -> Health:
    shared: SharedHealth = request.app.state.health
    return await shared.get()
