"""API keys before the MCP server's HTTP application."""

from typing import Any
from urllib.parse import unquote

from aftermind.api import local_sign_in
from aftermind.integrations.extras import extra
from aftermind.integrations.mcp_access import CALLER
from aftermind.memory import Memory
from aftermind.types.api_key import Right

with extra("mcp"):
    from starlette.types import ASGIApp, Receive, Scope, Send

USER_HEADER = b"x-aftermind-user"
REFUSED = b"an API key is missing, unknown, revoked or expired\n"


def authenticated(app: ASGIApp, memory: Memory) -> ASGIApp:
    """The application for requests with an API key, or the local token while no key exists; others get 401.

    The key decides the namespace; the header `X-Aftermind-User` (percent-encoded) names the user in it.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            kind, _, shown = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            caller = await _caller(memory, shown.strip()) if kind.lower() == "bearer" else None
            if caller is None:
                fields = [(b"www-authenticate", b"Bearer"), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 401, "headers": fields})
                await send({"type": "http.response.body", "body": REFUSED})
                return
            user = unquote(headers.get(USER_HEADER, b"").decode("latin-1")) or None
            scope = {**scope, CALLER: {**caller, "user_id": user}}
        await app(scope, receive, send)

    return call


async def _caller(memory: Memory, shown: str) -> dict[str, Any] | None:
    if local_sign_in.is_token(shown, memory.settings.state_dir):
        local = {"namespace": None, "rights": frozenset(Right), "actor": "local token"}
        return None if await memory.api_keys.any() else local
    key = await memory.api_keys.check(shown)
    if key is None:
        return None
    return {"namespace": key.namespace, "rights": key.rights, "actor": f"key {key.id} ({key.name})"}
