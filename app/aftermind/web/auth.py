"""Authentication: an API key of one namespace, by header or cookie; before the first key, the local token."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from aftermind import errors
from aftermind.api import local_web_token
from aftermind.memory import Memory
from aftermind.types import Json, stream_token
from aftermind.types.api_key import ApiKey, Right
from aftermind.types.audit import Action
from aftermind.types.loopback_address import is_loopback
from aftermind.types.scope import GROUP_PREFIX, Scope
from aftermind.types.stream_token import StreamToken
from aftermind.web.path_ids import named_user
from aftermind.web.problem_details import route_template
from aftermind.web.shared_rate_limit import SharedRate

NAMESPACE_COOKIE = "aftermind_namespace"  # of a browser whose key has the right `tenants`: the namespace that it shows
TOKEN_PARAMETER = "token"  # of the query of an event stream
COOKIE = "aftermind_key"  # of a browser that has signed in
KEPT_SECONDS = 5.0  # how long a checked key is not asked for again: a revoked one is noticed after that
WAIT_SECONDS = 0.25  # that a request waits for the database where it can be served without
OUTAGE_SECONDS = 600.0  # how long a key that was valid here is admitted while no database node answers
MAX_CACHED_KEYS = 10_000
MAX_UNKNOWN_KEYS = 300  # a minute from one address, of all processes together; each costs a query
TRUE = frozenset({"true", "1", "on", "t", "yes", "y"})  # as the framework reads them in a query
SESSION_SECONDS = 60.0  # between two audit entries about the same page of a browser session
KEY_SECONDS = 3_600.0  # between two audit entries about the same key, user and action

bearer = HTTPBearer(auto_error=False, description="An API key, created with `aftermind api-keys create`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose rows a request may touch, and what it may do with them. `key` is None for the local token."""

    namespace: str
    rights: frozenset[Right]
    key: ApiKey | None = None
    is_session: bool = False
    stream: StreamToken | None = None  # it opens the events of its user, and nothing else

    @property
    def id(self) -> str:
        """What limits are counted by."""
        return self.key.id if self.key else "local"

    @property
    def actor(self) -> str:
        """The authenticated identity, for the audit trail."""
        named = f"key {self.key.id} ({self.key.name})" if self.key else "local token"
        if self.stream is not None:
            return f"stream token of {named}"
        return f"session of {named}" if self.is_session else named

    def need(self, right: Right) -> None:
        """Raise `RightMissing` where the key does not allow it."""
        if self.stream is not None:
            why = f"a stream token is for the events of one user only; this needs an API key with the right '{right}'."
            raise errors.RightMissing(right, "events of one user", why=why)
        if right not in self.rights:
            raise errors.RightMissing(right, ", ".join(sorted(self.rights)))


@dataclass(frozen=True, slots=True)
class _CheckedKey:
    """Result of a lookup: the key, or None. It is used until `until`; `at` is the time of the database's answer."""

    key: ApiKey | None
    at: float
    until: float

    def is_admitted_without_database(self, now: float) -> bool:
        if self.key is None or now - self.at > OUTAGE_SECONDS:
            return False
        return self.key.expires_at is None or self.key.expires_at > datetime.now(UTC)


@dataclass(slots=True)
class Authenticator:
    """Checks API keys and caches the results for a few seconds. One per process."""

    memory: Memory
    shared: SharedRate
    _good: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # keys that were valid once, by hash
    _kept: dict[bytes, _CheckedKey] = field(default_factory=dict)  # by hash: a text may be of any size
    _closed_at: float | None = None  # time at which a key was first found; never reset
    _asked_at: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def check(self, text: str, *, peer: str) -> ApiKey | None:
        """The key, or None. Raises `StoreUnavailable`, and `TooManyRequests` for a peer that tries many unknown keys.

        A key that was valid here once is never limited, so others behind the same proxy are not locked out. While no
        database node answers, a key that was valid here in the last `OUTAGE_SECONDS` is admitted: it cannot be revoked
        then, and recall and remember work without the database.
        """
        now, shown = time.monotonic(), hashlib.sha256(text.encode("utf-8", "replace")).digest()
        kept = self._kept.get(shown)
        if kept is not None and kept.until > now:
            return kept.key
        if shown not in self._good:
            what = "unknown API keys per minute"
            await self.shared.take(f"unknown:{peer}", limit=MAX_UNKNOWN_KEYS, window_seconds=60.0, what=what)
        known = kept if kept is not None and kept.is_admitted_without_database(now) else None
        try:
            async with asyncio.timeout(None if known is None else WAIT_SECONDS):
                found = await self.memory.api_keys.check(text)
        except (errors.Unavailable, TimeoutError):
            if known is None:
                raise
            self._kept[shown] = replace(known, until=time.monotonic() + KEPT_SECONDS)
            return known.key
        if found is not None:
            self._remember(shown)
        if len(self._kept) >= MAX_CACHED_KEYS:  # keys are being guessed
            self._kept = {each: checked for each, checked in self._kept.items() if each in self._good}
        self._kept[shown] = _CheckedKey(found, at=now, until=now + KEPT_SECONDS)
        return found

    async def check_stream_token(self, text: str, *, peer: str) -> tuple[ApiKey, StreamToken] | None:
        """The key that signed a stream token, and the token; None if it is invalid. Raises as `check` does."""
        shown = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        if shown not in self._good:
            what = "unknown stream tokens per minute"
            await self.shared.take(f"unknown:{peer}", limit=MAX_UNKNOWN_KEYS, window_seconds=60.0, what=what)
        found = await self.memory.api_keys.check_stream_token(text)
        if found is not None:
            self._remember(shown)
        return found

    def _remember(self, shown: bytes) -> None:
        self._good[shown] = None
        if len(self._good) > MAX_CACHED_KEYS:
            self._good.popitem(last=False)

    async def is_open(self) -> bool:
        """Whether no key was ever made. Raises `StoreUnavailable`: no request is admitted on a guess."""
        if self._closed_at is not None:
            return False
        async with self._lock:
            now = time.monotonic()
            if self._closed_at is None and (self._asked_at is None or now - self._asked_at > KEPT_SECONDS):
                if await self.memory.api_keys.any():
                    self._closed_at = now
                self._asked_at = now
        return self._closed_at is None

    def is_local_token(self, connection: HTTPConnection, text: str) -> bool:
        """Whether the local token is shown, by a peer on this machine that asked for a name of this machine.

        The name keeps out pages of other sites whose name resolves to 127.0.0.1 (DNS rebinding).
        """
        peer = connection.client.host if connection.client else ""
        if not is_loopback(peer) or not is_loopback(connection.url.hostname or ""):
            return False
        return local_web_token.is_token(text, self.memory.settings.state_dir)


async def get_memory(request: HTTPConnection) -> Memory:
    """The memory of this process. Async, because FastAPI calls a plain function in a thread, per request."""
    memory: Memory = request.app.state.memory
    return memory


def presented_credential(connection: HTTPConnection, *, is_api: bool) -> tuple[str | None, bool]:
    """What a request authenticates with, and whether that is a browser's cookie.

    Headers count for the API alone, and in an address only stream tokens: addresses are kept in histories and logs.
    """
    scheme, _, text = connection.headers.get("authorization", "").partition(" ")
    if is_api and scheme.lower() == "bearer" and text.strip():
        return text.strip(), False
    token = connection.query_params.get(TOKEN_PARAMETER) if is_api else None
    if token and token.startswith(stream_token.PREFIX):  # an EventSource of a browser sends no header
        return token, False
    return connection.cookies.get(COOKIE), True


async def caller(
    request: Request, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None
) -> Caller:
    """The caller that the middleware admitted before it read the body. `shown` is there for the schema."""
    found: Caller = request.state.caller
    return found


async def admit(connection: HTTPConnection, text: str | None, *, is_session: bool = False) -> Caller:
    """The caller that a key or the local token identifies. Raises `KeyRefused`, and `StoreUnavailable`."""
    door: Authenticator = connection.app.state.door
    if not text:
        raise errors.KeyRefused("an API key is required.")
    if text.startswith(local_web_token.PREFIX):
        if door.is_local_token(connection, text) and await door.is_open():
            local = Caller(namespace=door.memory.namespace, rights=frozenset(Right), is_session=is_session)
            return _in_chosen_namespace(connection, local)
        raise errors.KeyRefused(
            "the local token is invalid, or is used from another machine, or an API key exists already."
        )
    if text.startswith(stream_token.PREFIX):
        opened = await door.check_stream_token(text, peer=connection.client.host if connection.client else "")
        if opened is None:
            raise errors.KeyRefused("stream token is invalid or has ended, or its API key was revoked. Get a new one.")
        signer, token = opened
        return Caller(namespace=signer.namespace, rights=frozenset(), key=signer, stream=token)
    key = await door.check(text, peer=connection.client.host if connection.client else "")
    if key is None:
        raise errors.KeyRefused("API key is unknown, revoked or expired.")
    return _in_chosen_namespace(
        connection, Caller(namespace=key.namespace, rights=key.rights, key=key, is_session=is_session)
    )


def _in_chosen_namespace(connection: HTTPConnection, who: Caller) -> Caller:
    """The caller in the namespace that a browser has switched to, if its key has the right for it."""
    chosen = unquote(connection.cookies.get(NAMESPACE_COOKIE, ""))
    if not chosen or not who.is_session or Right.TENANTS not in who.rights:
        return who
    try:
        return replace(who, namespace=Scope(namespace=chosen).namespace)
    except errors.InvalidScope:  # a cookie that no page of ours has set
        return who


async def record_access(request: Request, who: Caller, action: Action, *, user_id: str | None, **detail: Json) -> None:
    """Add to the audit trail that a caller accesses a user's memory. Raises `StoreUnavailable`.

    A browser session's reads are one entry a minute and page, its edits one each. A program with a key is one entry an
    hour, user, action and detail: agents call many times a second, and the trail is kept for a year. An agent's access
    does not fail with the database, nor wait for it: recall and remember work without it.
    """
    memory = await get_memory(request)
    if not memory.keeps_audit:
        return
    route = route_template(request.scope)

    async def add() -> None:
        await memory.audit.record(action, user_id=user_id, namespace=who.namespace, detail={"by": route, **detail})

    if who.is_session and action is not Action.READ:
        await add()
    elif who.is_session:
        await once(request, (who.actor, who.namespace, user_id, route, *detail.values()), add, SESSION_SECONDS)
    else:
        what = (who.actor, who.namespace, user_id, action, *detail.values())
        if not _was_done(request, what, KEY_SECONDS):
            await _without_delay(request, once(request, what, add, KEY_SECONDS))


async def once(request: Request, what: object, work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do it, unless the same was done within this time. What raised was not done."""
    if _was_done(request, what, seconds):
        return
    await work()
    seen: dict[object, float] = request.app.state.recorded
    if len(seen) > MAX_CACHED_KEYS:
        seen.clear()
    seen[what] = time.monotonic()


def _was_done(request: Request, what: object, seconds: float) -> bool:
    if not hasattr(request.app.state, "recorded"):
        request.app.state.recorded = {}
    seen: dict[object, float] = request.app.state.recorded
    return time.monotonic() - seen.get(what, float("-inf")) < seconds


async def _without_delay(request: Request, work: Coroutine[None, None, None]) -> None:
    """Do it before the answer, or after `WAIT_SECONDS` in the background.

    If the database failed or did not answer in that time, it is left out for some seconds, with no error.
    """
    state = request.app.state
    if time.monotonic() < getattr(state, "recording_from", 0.0):
        work.close()
        return

    async def attempt() -> bool:
        with suppress(errors.Unavailable):
            await work
            return True
        return False

    task = asyncio.create_task(attempt(), name="aftermind audit entry")
    if not hasattr(state, "recordings"):
        state.recordings = set()  # the event loop holds its tasks weakly
    state.recordings.add(task)
    task.add_done_callback(state.recordings.discard)
    done, _ = await asyncio.wait({task}, timeout=WAIT_SECONDS)
    if not done or not task.result():
        state.recording_from = time.monotonic() + KEPT_SECONDS


def _action(request: Request, right: Right) -> Action:
    if request.url.path.endswith("/export"):
        return Action.EXPORT
    return Action.EDIT if right is Right.WRITE else Action.READ


def _is_anonymous(request: Request) -> bool:
    return request.query_params.get("anonymous", "").lower() in TRUE


@dataclass(frozen=True, slots=True)
class Needing:
    """A dependency that checks the right, then records whose memory is accessed."""

    right: Right

    async def __call__(self, request: Request, who: Annotated[Caller, Depends(caller)]) -> Caller:
        """The caller. Raises `RightMissing`."""
        who.need(self.right)
        if "user_id" in request.path_params:
            user = None if _is_anonymous(request) else request.path_params["user_id"]
            await record_access(request, who, _action(request, self.right), user_id=user)
        elif "group" in request.path_params and "member" not in request.path_params:  # that change adds its own entry
            owner, user = GROUP_PREFIX + request.path_params["group"], request.query_params.get("user_id")
            member = Scope(namespace=who.namespace, user_id=user or None).user_column  # raises InvalidScope
            named = {"member": member} if member else {}
            await record_access(request, who, _action(request, self.right), user_id=owner, **named)
        return who


async def listener(request: Request, who: Annotated[Caller, Depends(caller)]) -> Caller:
    """Admit to the events of the path's user: a reader, or the bearer of a stream token of that user."""
    user = await named_user(request.path_params["user_id"], anonymous=_is_anonymous(request))
    if who.stream is None:
        who.need(Right.READ)
    elif who.stream.user_id != user:
        why = "this stream token is for another user's events. Create one for this user, or send an API key."
        raise errors.RightMissing(Right.READ, "events of another user", why=why)
    await record_access(request, who, Action.READ, user_id=user)
    return who


Remembering = Annotated[Memory, Depends(get_memory)]
Reader = Annotated[Caller, Depends(Needing(Right.READ))]
Writer = Annotated[Caller, Depends(Needing(Right.WRITE))]
Listener = Annotated[Caller, Depends(listener)]
Operator = Annotated[Caller, Depends(Needing(Right.OPERATE))]
