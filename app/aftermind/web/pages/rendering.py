"""What every screen shares: templates, links, how numbers and times are written, headers, and errors as pages."""

import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from fastapi.templating import Jinja2Templates
from markupsafe import Markup

import aftermind
from aftermind import errors
from aftermind.llm import prices
from aftermind.telemetry.logger import get_logger
from aftermind.types.api_key import Right
from aftermind.types.timestamps import why_unusable
from aftermind.web import problem_details
from aftermind.web.pages.page_permissions import Viewer

log = get_logger(__name__)

WEEK_SECONDS = 7 * 86_400
THEMES = ("auto", "light", "dark")
# Nothing from elsewhere, and nothing inline: the content of a memory is untrusted.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SCREENS = (
    ("/", "Overview", "overview"),
    ("/memory", "Memory", "memory"),
    ("/events", "Events", "events"),
    ("/jobs", "Jobs", "jobs"),
    ("/dead", "Dead letters", "dead"),
    ("/costs", "Costs", "costs"),
    ("/tenants", "Tenants", "tenants"),
    ("/chat", "Chat", "chat"),
    ("/docs", "HTTP API", "docs"),
)
RIGHT_OF = {"jobs": Right.OPERATE, "dead": Right.OPERATE, "costs": Right.OPERATE, "tenants": Right.TENANTS}


def page(
    request: Request,
    template: str,
    more: Mapping[str, object] = MappingProxyType({}),
    /,
    *,
    status: int = 200,
    **context: object,
) -> HTMLResponse:
    """A screen, or a piece of one, with the headers that all of them carry."""
    told = {**more, **context}
    return TEMPLATES.TemplateResponse(request, template, told, status_code=status, headers=dict(HEADERS))


def link(path: str, /, **query: object) -> str:
    """A path of ours with the parts of its query that are set."""
    named = {name: value for name, value in query.items() if value is not None and value not in ("", False)}
    told = {name: "true" if value is True else str(value) for name, value in named.items()}
    return f"{path}?{urlencode(told, quote_via=quote)}" if told else path


def number(value: float | None) -> str:
    """With separators; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """How long, in the two units that matter."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for place, (unit, size) in enumerate(units):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            below = units[place + 1] if place + 1 < len(units) else None
            more = f" {rest // below[1]} {below[0]}" if below and rest // below[1] else ""
            return f"{whole} {unit}{more}"
    return "0 s"


def moment(value: datetime | None) -> Markup:
    """A time in UTC; the tooltip has the seconds."""
    if value is None:
        return Markup('<span class="soft">-</span>')
    zoned = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        zoned.isoformat(), zoned.strftime("%Y-%m-%d %H:%M:%S"), zoned.strftime("%Y-%m-%d %H:%M")
    )


def ago(value: datetime | None) -> Markup:
    """Elapsed time with the exact time as tooltip; the date if it is more than a week ago."""
    if value is None:
        return Markup('<span class="soft">-</span>')
    zoned = value.astimezone(UTC)
    passed = (datetime.now(UTC) - zoned).total_seconds()
    if passed > WEEK_SECONDS:
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
            zoned.isoformat(), zoned.strftime("%Y-%m-%d %H:%M:%S"), zoned.strftime("%Y-%m-%d")
        )
    said = f"{duration(max(passed, 0)).split(' ', 2)[0]} {duration(max(passed, 0)).split(' ')[1]} ago"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        zoned.isoformat(), zoned.strftime("%Y-%m-%d %H:%M:%S"), "just now" if passed < 1 else said
    )


def parse_time(name: str, told: str) -> datetime | None:
    """A time as a form sends it, in UTC where it names no zone. Raises `InvalidQuery`."""
    if not told.strip():
        return None
    try:
        value = datetime.fromisoformat(told.strip())
    except ValueError as exc:
        raise errors.InvalidQuery(name, told, "it must be a time like 2026-01-31T12:00.") from exc
    zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
    why = why_unusable(zoned)
    if why is not None:
        raise errors.InvalidQuery(name, told, why)
    return zoned


def pretty(value: object) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


class PageRoute(APIRoute):
    """A route whose errors are pages too, or pieces of one where a piece was asked for."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:  # Any: of a coroutine
        """FastAPI's own handler, with errors rendered as pages."""
        handle = super().get_route_handler()

        async def handle_problem(request: Request) -> Response:
            try:
                return await handle(request)
            except errors.AftermindError as exc:
                status, _ = problem_details.error_status(type(exc))
                if status == 500:
                    log.exception("a page failed", extra={"route": problem_details.route_template(request.scope)})
                if status == 401:
                    return signed_out(request)
                return problem(request, status, str(exc))
            except RequestValidationError as exc:
                why = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in exc.errors())
                return problem(request, 422, why)
            except HTTPException as exc:
                if 300 <= exc.status_code < 400:
                    raise
                return problem(request, exc.status_code, str(exc.detail))

        return handle_problem


def problem(request: Request, status: int, why: str) -> HTMLResponse:
    """Render an error as a page or as a fragment."""
    title = {403: "Not allowed", 404: "Not found", 409: "Not possible now", 422: "Invalid request"}.get(status)
    title = title or ("Not available" if status == 503 else "Internal error")
    template = "_problem.html" if is_piece(request) else "problem.html"
    return page(request, template, status=status, title=title, why=why, here="")


def signed_out(request: Request) -> Response:
    """To the login page, and from there back to the requested page."""
    wanted = request.url.path if request.method == "GET" else "/"
    if wanted != "/" and request.url.query:
        wanted = f"{wanted}?{request.url.query}"
    if is_piece(request):  # of a page that was open when its key was revoked
        return Response(status_code=401, headers={**HEADERS, "HX-Redirect": "/login"})
    return RedirectResponse(link("/login", next=wanted), status_code=303, headers=dict(HEADERS))


def is_piece(request: Request) -> bool:
    """Whether a part of a page was asked for, and not a page."""
    return request.headers.get("hx-request") == "true"


def _shared(request: Request) -> dict[str, object]:
    theme = request.cookies.get("theme", "auto")
    viewer: Viewer | None = getattr(request.state, "viewer", None)
    return {
        "namespace": viewer.namespace if viewer else None,
        "flower_url": viewer.memory.settings.flower_url if viewer else None,
        "screens": [
            each for each in SCREENS if viewer is None or each[2] not in RIGHT_OF or viewer.may(RIGHT_OF[each[2]])
        ],
        "version": aftermind.__version__,
        "theme": theme if theme in THEMES else "auto",
        "may_switch": viewer is not None and viewer.may(Right.TENANTS),
        "has_key": viewer is not None and viewer.has_key,
        "now": datetime.now(UTC),
    }


def _cost(cost_usd: float, is_cost_unknown: object) -> str:
    """A cost; `is_cost_unknown` is true, or has the models without a price."""
    text = prices.describe_cost(cost_usd, is_cost_unknown=bool(is_cost_unknown))
    return text if text == "unknown" else f"${text}"


TEMPLATES = Jinja2Templates(directory=Path(__file__).parents[1] / "templates", context_processors=[_shared])
TEMPLATES.env.trim_blocks = TEMPLATES.env.lstrip_blocks = True
TEMPLATES.env.globals["link"] = link
TEMPLATES.env.filters.update(
    cost=_cost,
    number=number,
    duration=duration,
    moment=moment,
    ago=ago,
    pretty=pretty,
    short=lambda value: str(value)[-8:],
)
