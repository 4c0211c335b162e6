"""Whose memory a request to the MCP server reaches, by which right, and the audit entry about it."""

import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import wraps
from typing import Any, TypedDict

from aftermind import errors
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.types.api_key import Right
from aftermind.types.audit import Action, acting_as

with extra("mcp"):
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import MCPServerError

Work = Callable[..., Awaitable[Any]]  # Any: what a tool or resource answers with

CALLER = "aftermind.caller"  # in the ASGI scope: namespace, rights and audit identity of the request's key, its user
ACCESS_SECONDS = 3_600.0  # between two audit entries about the same key, user and action, as in the HTTP API
MAX_ACCESSES = 10_000


class Owner(TypedDict):
    """Whose memory a call reaches."""

    user_id: str | None
    namespace: str | None


class Access:
    """What requests may reach: over stdio the memory of `default`, over HTTP the user that the request names."""

    def __init__(self, memory: Memory, default: Owner) -> None:
        self._memory, self._default = memory, default
        self._recorded: dict[tuple[object, ...], float] = {}

    def permitted(self, ctx: Context, right: Right) -> Owner:
        """The owner of the request. Raises `RightMissing`."""
        caller = caller_of(ctx)
        if caller is None:
            return self._default
        if right not in caller["rights"]:
            raise errors.RightMissing(right.value, ", ".join(sorted(each.value for each in caller["rights"])))
        return {"user_id": caller["user_id"], "namespace": caller["namespace"] or self._default["namespace"]}

    async def owner(self, ctx: Context, right: Right) -> Owner:
        """As `permitted`, with an entry in the audit trail if the request has a key."""
        owner, caller = self.permitted(ctx, right), caller_of(ctx)
        if caller is not None and self._memory.keeps_audit:
            await self._record(caller["actor"], owner, Action.EDIT if right is Right.WRITE else Action.READ)
        return owner

    async def _record(self, actor: str, owner: Owner, action: Action) -> None:
        what, now = (actor, *owner.values(), action), time.monotonic()
        if now - self._recorded.get(what, float("-inf")) < ACCESS_SECONDS:
            return
        with suppress(errors.Unavailable), acting_as(actor):  # recall and remember work without the database
            await self._memory.audit.record(action, **owner, detail={"by": "mcp"})
            if len(self._recorded) > MAX_ACCESSES:
                self._recorded.clear()
            self._recorded[what] = now


def caller_of(ctx: Context) -> dict[str, Any] | None:
    """The sender of the request, over HTTP. Raises `InvalidSettings` if the application has no check of keys."""
    request = ctx.request_context.request
    if request is None:
        return None
    if CALLER not in request.scope:
        why = "over HTTP it is the one of a request with an API key: serve `authenticated(app, memory)`."
        raise errors.InvalidSettings("user", None, why)
    caller: dict[str, Any] = request.scope[CALLER]
    return caller


def reports(kind: type[MCPServerError]) -> Callable[[Work], Work]:
    """Errors of memory in a tool or resource as errors of that kind: MCP hides the text of all others.

    Audit entries, such as those of erasures, are signed with the key of the request.
    """

    def wrap(work: Work) -> Work:
        @wraps(work)
        async def call(*args: Any, **kwargs: Any) -> Any:  # Any: as the work has them
            try:
                caller = caller_of(next(each for each in (*args, *kwargs.values()) if isinstance(each, Context)))
                with nullcontext() if caller is None else acting_as(caller["actor"]):
                    return await work(*args, **kwargs)
            except errors.AftermindError as exc:
                raise kind(str(exc)) from exc

        return call

    return wrap
