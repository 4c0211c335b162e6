"""What no request gets past: bodies without end, and forms that somebody else's page sends in a user's name."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aftermind.web import problems

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OWN = frozenset({"same-origin", "none"})  # of Sec-Fetch-Site: our own page, or an address that somebody typed

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"content-security-policy": (
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'"
    ),
}


class Guard:
    """ASGI middleware. `max_bytes` bounds a request's body, whether or not it says its length beforehand."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, send = Headers(scope=scope), _hardened(send)
        if scope["method"] not in SAFE and not _is_own(headers):
            why = "this request was made by another site's page. Send it from this service's own pages, or by a client."
            await problems.problem("cross-site", 403, "Not from another site", why)(scope, receive, send)
            return
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_bytes:
            await problems.problem("http-413", 413, "Body too large", self._why())(scope, receive, send)
            return
        await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise HTTPException(413, self._why())
            return message

        await self._app(scope, counted, send)

    def _why(self) -> str:
        return f"a request's body has at most {self._max_bytes:,} bytes (twice AFTERMIND_TURN_MAX_BYTES, and 1 MiB)"


def _hardened(send: Send) -> Send:
    async def hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name, value) for name, value in HEADERS.items() if name not in there]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return hardened


def _is_own(headers: Headers) -> bool:
    """Whether no browser says that another site's page sent it; programs say nothing of the kind."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in OWN
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")
