"""Who asks: an API key of one namespace, from a header or a browser's session; without any key, this machine alone."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from aftermind import errors
from aftermind.memory import Memory
from aftermind.types.api_key import ApiKey, Right
from aftermind.types.hosts import is_loopback

COOKIE = "aftermind_key"  # of a browser that has signed in
KEPT_SECONDS = 5.0  # how long a checked key is not asked for again: a revoked one is noticed after that
MOST_KEPT = 10_000
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")

bearer = HTTPBearer(auto_error=False, description="A key made by `aftermind keys create`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose rows a request may touch, and what it may do with them. `key` is None where no key was ever made."""

    namespace: str
    rights: frozenset[Right]
    key: ApiKey | None = None

    def need(self, right: Right) -> None:
        """Raise `RightMissing` where the key does not allow it."""
        if right not in self.rights:
            raise errors.RightMissing(right, ", ".join(sorted(self.rights)))


@dataclass(slots=True)
class Door:
    """Checks keys, and remembers for a few seconds what came of it. One a process."""

    memory: Memory
    _kept: dict[bytes, tuple[float, ApiKey | None]] = field(default_factory=dict)  # by hash: a text may be of any size
    _closed_at: float | None = None  # when a key was first seen to exist; there is no way back
    _asked_at: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def check(self, text: str) -> ApiKey | None:
        """The key, or None. Raises `StoreUnavailable`."""
        now, shown = time.monotonic(), hashlib.sha256(text.encode("utf-8", "replace")).digest()
        kept = self._kept.get(shown)
        if kept is not None and kept[0] > now:
            return kept[1]
        found = await self.memory.keys.check(text)
        if len(self._kept) >= MOST_KEPT:  # somebody tries keys; the good ones are back at their next request
            self._kept.clear()
        self._kept[shown] = (now + KEPT_SECONDS, found)
        return found

    async def is_open(self) -> bool:
        """Whether no key was ever made. Raises `StoreUnavailable`: nobody is let in on a guess."""
        if self._closed_at is not None:
            return False
        async with self._lock:
            now = time.monotonic()
            if self._closed_at is None and (self._asked_at is None or now - self._asked_at > KEPT_SECONDS):
                if await self.memory.keys.any():
                    self._closed_at = now
                self._asked_at = now
        return self._closed_at is None


def memory_of(request: Request) -> Memory:
    """The memory of this process."""
    memory: Memory = request.app.state.memory
    return memory


async def caller(
    request: Request, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None
) -> Caller:
    """Who asks. Raises `KeyRefused`, and `StoreUnavailable` where a key cannot be checked."""
    text = shown.credentials if shown is not None else request.cookies.get(COOKIE)
    return await admit(request, text)


async def admit(request: Request, text: str | None) -> Caller:
    """Who a key lets in; without a key, whoever sits at this machine while no key was ever made."""
    door: Door = request.app.state.door
    if text:
        key = await door.check(text)
        if key is None:
            raise errors.KeyRefused("this key opens nothing: it is unknown, revoked or expired.")
        return Caller(namespace=key.namespace, rights=key.rights, key=key)
    if not await door.is_open():
        raise errors.KeyRefused("a key is needed.")
    if not is_of_this_machine(request):
        raise errors.KeyRefused("without any key this service answers the machine that it runs on, and nobody else.")
    return Caller(namespace=door.memory.namespace, rights=frozenset(Right))


def is_of_this_machine(request: Request) -> bool:
    """Whether a request comes from this machine, past no proxy, and to a name of this machine's own.

    The last is against pages of others whose name was bound to 127.0.0.1 (DNS rebinding).
    """
    if any(name in request.headers for name in FORWARDED):
        return False
    return is_loopback(request.client.host if request.client else "") and is_loopback(request.url.hostname or "")


def _needing(right: Right) -> Callable[[Caller], Awaitable[Caller]]:
    async def allowed(who: Annotated[Caller, Depends(caller)]) -> Caller:
        who.need(right)
        return who

    return allowed


Remembering = Annotated[Memory, Depends(memory_of)]
Reader = Annotated[Caller, Depends(_needing(Right.READ))]
Writer = Annotated[Caller, Depends(_needing(Right.WRITE))]
Operator = Annotated[Caller, Depends(_needing(Right.OPERATE))]
