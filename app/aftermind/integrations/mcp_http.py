"""API keys before the MCP server's HTTP application."""

from typing import Any
from urllib.parse import unquote

from aftermind.api import local_web_token
from aftermind.api.blocking_portal import to_async
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.mcp_access import CALLER
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types.api_key import Right

with extra("mcp"):
    from starlette.types import ASGIApp, Receive, Scope, Send

USER_HEADER, ANONYMOUS_HEADER = b"x-aftermind-user", b"x-aftermind-anonymous"
REFUSED = b"an API key is missing, unknown, revoked or expired\n"
ONE_USER = b"name one user by X-Aftermind-User, or the anonymous user by X-Aftermind-Anonymous: true\n"


def authenticated(app: ASGIApp, memory: Memory | SyncMemory, *, user_id: str | None = None) -> ASGIApp:
    """The application for requests with an API key, or the local token while no key exists; others get 401.

    The key decides the namespace. The header `X-Aftermind-User` (percent-encoded) names the user in it, and
    `X-Aftermind-Anonymous: true` the anonymous one; a request without either is about `user_id`, or gets 400 if that is
    None. A client that lost its header would otherwise share the memory of all others without one.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            kind, _, shown = headers.get(b"authorization", "").partition(" ")
            caller = await _caller(to_async(memory), shown.strip()) if kind.lower() == "bearer" else None
            if caller is None:
                await _refuse(send, 401, REFUSED, (b"www-authenticate", b"Bearer"))
                return
            named, is_anonymous = headers.get(USER_HEADER), headers.get(ANONYMOUS_HEADER, "").strip().lower() == "true"
            user = unquote(named) if named is not None else None if is_anonymous else user_id
            if is_anonymous == bool(user):
                await _refuse(send, 400, ONE_USER)
                return
            scope = {**scope, CALLER: {**caller, "user_id": user or None}}
        await app(scope, receive, send)

    return call


async def _refuse(send: Send, status: int, why: bytes, *fields: tuple[bytes, bytes]) -> None:
    headers = [*fields, (b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why})


async def _caller(memory: Memory, shown: str) -> dict[str, Any] | None:
    if local_web_token.is_token(shown, memory.settings.state_dir):
        local = {"namespace": None, "rights": frozenset(Right), "actor": "local token"}
        return None if await memory.api_keys.any() else local
    key = await memory.api_keys.check(shown)
    if key is None:
        return None
    return {"namespace": key.namespace, "rights": key.rights, "actor": f"key {key.id} ({key.name})"}
