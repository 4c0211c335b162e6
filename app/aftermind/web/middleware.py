"""Middleware for every request: authentication before the body is read, limits, bounds, headers and the access log."""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types.audit import acting_as
from aftermind.web import auth, json_bounds, path_ids, problem_details
from aftermind.web.caller_limits import CallerLimits
from aftermind.web.shared_rate_limit import SharedRate

log = get_logger(__name__)

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OWN = frozenset({"same-origin", "none"})  # of Sec-Fetch-Site: our own page, or an address that the user typed
PUBLIC = frozenset({"/healthz", "/readyz", "/metrics", "/login", "/logout", "/favicon.ico", "/v1/openapi.json"})
PUBLIC_BODY_BYTES = 16_384  # of a request that needs no key: a form with a key in it
BURST_SECONDS = 2.0  # of the rate that an idle key may use immediately
STREAMS = ("/events", "/events/stream")

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
    b"content-security-policy": (
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'"
    ),
}

Refuse = Callable[[Request], Response]


class Guard:
    """ASGI middleware. `max_bytes` bounds a body; `signed_out` answers a page's form whose key is not valid.

    Pages of `origins` may call the API with a key, never with a browser's cookie. `limits` are those of this process;
    `rate` is of one key at all processes together, in requests per second.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        limits: CallerLimits,
        shared: SharedRate,
        rate: float,
        signed_out: Refuse,
        origins: Collection[str] = (),
    ) -> None:
        self._origins = frozenset(origins)
        self._app, self._max_bytes, self._limits, self._signed_out = app, max_bytes, limits, signed_out
        self._shared, self._rate = shared, rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path_ids.decode_path_segments(scope)
        answered = _Answered(send)
        try:
            await self._guarded(scope, receive, answered.send)
        except errors.AftermindError as exc:  # of the guard itself and of recall: FastAPI's routes answer their own
            await problem_details.to_response(exc)(scope, receive, answered.send)
        finally:
            answered.write_log(scope)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if not _is_well_formed(headers):
            why = "the Host or Origin header is not a valid address."
            await problem_details.problem("http-400", 400, "Bad request", why)(scope, receive, send)
            return
        if scope["method"] not in SAFE and not (_is_own(headers) or self._is_allowed(scope["path"], headers)):
            why = "the request was sent by a page of another site. Send it from the console, or from a program."
            await problem_details.problem("cross-site", 403, "Cross-site request refused", why)(scope, receive, send)
            return
        is_public = scope["path"] in PUBLIC or scope["path"].startswith("/static/")
        most = min(PUBLIC_BODY_BYTES, self._max_bytes) if is_public else self._max_bytes
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 16) or int(length) > most:
            await problem_details.problem("http-413", 413, "Body too large", _why(most))(scope, receive, send)
            return
        if is_public:
            await self._app(scope, _bounded(receive, most), send)
            return
        found = await self._caller(scope, receive, send)
        if found is not None:
            if self._rate:
                limit, window = max(1.0, self._rate * BURST_SECONDS), BURST_SECONDS
                what = f"requests per {window:g} seconds"
                await self._shared.take(f"key:{found.id}", limit=limit, window_seconds=window, what=what)
            with self._counted(scope, found), acting_as(found.actor):
                await self._read_and_pass_on(scope, receive, send, found, most)

    def _is_allowed(self, path: str, headers: Headers) -> bool:
        has_key = headers.get("authorization", "").lower().startswith("bearer ")
        return path.startswith("/v1/") and has_key and headers.get("origin") in self._origins

    async def _caller(self, scope: Scope, receive: Receive, send: Send) -> auth.Caller | None:
        """The caller; None where the request was answered here. A page that is only shown answers by itself."""
        request = Request(scope)
        is_api = scope["path"].startswith("/v1/")
        text, is_session = auth.presented_credential(request, is_api=is_api)
        try:
            found = await auth.admit(request, text, is_session=is_session)
        except errors.AftermindError as exc:
            if is_api:
                await problem_details.to_response(exc)(scope, receive, send)
            elif scope["method"] in SAFE:
                scope.setdefault("state", {})["refused"] = exc
                await self._app(scope, receive, send)
            elif isinstance(exc, errors.KeyRefused):
                await self._signed_out(request)(scope, receive, send)
            else:
                await problem_details.to_response(exc)(scope, receive, send)
            return None
        scope.setdefault("state", {})["caller"] = found
        return found

    def _counted(self, scope: Scope, caller: auth.Caller) -> AbstractContextManager[None]:
        is_stream = scope["method"] == "GET" and scope["path"] != "/events" and scope["path"].endswith(STREAMS)
        return self._limits.stream(caller.id) if is_stream else self._limits.request(caller.id)

    async def _read_and_pass_on(
        self, scope: Scope, receive: Receive, send: Send, caller: auth.Caller, most: int
    ) -> None:
        """Read a JSON body here, within its bounds, so that no parser sees more than it can handle."""
        headers = Headers(scope=scope)
        if scope["method"] in SAFE or not scope["path"].startswith("/v1/"):
            await self._app(scope, _bounded(receive, most), send)
            return
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body and "json" not in headers.get("content-type", ""):
            why = "the body is JSON: send it with the header `Content-Type: application/json`."
            await problem_details.problem("http-415", 415, "Unsupported media type", why)(scope, receive, send)
            return
        held = 0
        parts: list[bytes] = []
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                part = message.get("body", b"")
                self._limits.hold_bytes(caller.id, len(part))
                held += len(part)
                parts.append(part)
                if held > most:
                    await problem_details.problem("http-413", 413, "Body too large", _why(most))(scope, receive, send)
                    return
                if not message.get("more_body", False):
                    break
            body = b"".join(parts)
            parts.clear()
            if not json_bounds.is_small(body):
                await asyncio.to_thread(json_bounds.check_body, body)
            await self._app(scope, replay_body(body, receive), send)
        finally:
            self._limits.hold_bytes(caller.id, -held)


class _Answered:
    """The answer as it is sent: its status, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send, self._began, self.status = send, time.monotonic(), 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            there = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name, value) for name, value in HEADERS.items() if name not in there]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)

    def write_log(self, scope: Scope) -> None:
        """One line a request, with the route's template: a path holds names that users gave."""
        state = scope.get("state", {})
        caller, recall_id = state.get("caller"), state.get("recall_id")
        extra = {"status": self.status, "ms": round((time.monotonic() - self._began) * 1000, 1)}
        if caller is not None:
            extra["key"] = caller.id
        if recall_id is not None:
            extra["recall_id"] = recall_id
        log.info("%s %s", scope["method"], problem_details.route_template(scope), extra=extra)


def _bounded(receive: Receive, most: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(413, _why(most))
        return message

    return counted


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns this body, then what the client sends."""
    waiting: list[bytes] = [body]

    async def replayed() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replayed


def _why(most: int) -> str:
    return f"the body of a request is limited to {most:,} bytes"


def _is_well_formed(headers: Headers) -> bool:
    """Whether Host and Origin can be parsed; the framework fails on ones that cannot."""
    return _can_be_parsed(f"http://{headers.get('host', '')}") and _can_be_parsed(headers.get("origin", ""))


@lru_cache(maxsize=256)  # agents send the same ones in each request
def _can_be_parsed(url: str) -> bool:
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return True


def _is_own(headers: Headers) -> bool:
    """Whether no header shows that a page of another site sent the request; programs send no such headers."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in OWN
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")
