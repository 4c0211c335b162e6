"""The FastAPI application: one memory, authentication, the JSON API, the console, and health checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY
from starlette.types import Lifespan

import aftermind
from aftermind import errors
from aftermind.api import address_resolution
from aftermind.api.checkpoints import STATE_BYTES
from aftermind.api.health import Health
from aftermind.api.process_registry import announce_keys
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.web import openapi_document, problem_details, routes
from aftermind.web.auth import Authenticator
from aftermind.web.cached_health_check import SharedHealth
from aftermind.web.caller_limits import CallerLimits
from aftermind.web.event_fanout import Feeds
from aftermind.web.fast_recall_middleware import DirectRecall
from aftermind.web.middleware import Guard
from aftermind.web.pages import mount as screens
from aftermind.web.pages.metrics_sampler import Pulse
from aftermind.web.pages.rendering import signed_out
from aftermind.web.routes import metrics
from aftermind.web.shared_rate_limit import SharedRate
from aftermind.web.sse import before_stopping
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

BODY_FLOOR = 1_048_576  # bytes added for what is not a turn: the largest question
BODIES_PER_KEY = 4  # largest bodies of one key that are held in memory at the same time


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the application with a memory from the settings or the embedded stack. It connects lazily."""
    settings = settings or Settings()
    memory = Memory(settings=settings, metrics=REGISTRY)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with memory:
            app.state.pulse = pulse = Pulse(memory)
            app.state.feeds = feeds = Feeds(memory, most=settings.web_max_listeners)
            app.state.health = SharedHealth(memory)
            app.state.verifying = asyncio.Lock()
            # It takes half a second, for which the first request with parameters would wait.
            await asyncio.to_thread(app.openapi)
            announcing = asyncio.create_task(announce_keys(settings), name="aftermind key fingerprints")
            with before_stopping(feeds.end):
                yield
            announcing.cancel()
            await asyncio.gather(announcing, pulse.close(), shared.close(), return_exceptions=True)

    app = create_routes(lifespan)
    redis = address_resolution.resolve(settings).redis
    link = None if redis is None else RedisLink(redis, timeout=settings.redis_timeout_seconds, name="aftermind-web")
    keys = Keys(settings.redis_prefix) if link is None else link.keys(settings.redis_prefix)
    shared = SharedRate(link, keys)
    app.state.memory, app.state.door = memory, Authenticator(memory, shared)
    max_bytes = 2 * max(settings.turn_max_bytes, STATE_BYTES) + BODY_FLOOR
    limits = CallerLimits(
        max_requests=settings.web_requests_per_key,
        max_streams=settings.web_streams_per_key,
        max_body_bytes=BODIES_PER_KEY * max_bytes,
    )
    app.add_middleware(DirectRecall, memory=memory)  # inside the guard
    app.add_middleware(
        Guard,
        max_bytes=max_bytes,
        limits=limits,
        shared=shared,
        rate=settings.web_rate_per_key,
        signed_out=signed_out,
        origins=settings.web_cors_origins,
    )
    if settings.web_cors_origins:  # outside the guard: a browser asks for permission without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[_checked_origin(each) for each in settings.web_cors_origins],
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    return app


def create_routes(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """Create an application of all routes and their OpenAPI document, without a memory to serve them from."""
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
    problem_details.install(app)
    app.get("/healthz", include_in_schema=False)(healthz)
    app.get("/readyz", include_in_schema=False)(readyz)
    app.include_router(metrics.router)
    routes.install(app)
    screens.install(app)
    openapi_document.install(app)
    return app


def _checked_origin(given: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.netloc or given != f"{parts.scheme}://{parts.netloc}":
        why = "an origin is a scheme and a host, like https://app.example, without a path."
        raise errors.InvalidSettings("web_cors_origins", given, why)
    return given


async def healthz() -> dict[str, str]:
    """This process runs; nothing else is checked."""
    return {"status": "ok", "version": aftermind.__version__}


async def readyz(request: Request, *, work: bool = False) -> JSONResponse:
    """Whether requests can be served: 503 where nothing answers that holds memory, or the schema is too old.

    With `?work=true` also where the primary or Redis does not answer, or jobs are overdue: a check of the whole
    deployment, and not of this process, which recalls from a replica and accepts turns without those. Asks for no key,
    so the answer is shared for a second.
    """
    health = await _health(request)
    body = {part.name: {"state": part.state, "detail": part.detail} for part in health.parts}
    overdue = {row.kind: {"runnable": row.runnable, "age_seconds": round(row.age_seconds, 1)} for row in health.overdue}
    is_ready = health.is_ready and not overdue if work else health.can_serve
    readiness = {"ready": is_ready, "parts": body, "overdue": overdue}
    return JSONResponse(readiness, status_code=200 if is_ready else 503)


async def _health(request: Request) -> Health:
    shared: SharedHealth = request.app.state.health
    return await shared.get()
