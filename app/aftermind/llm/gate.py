"""What a provider may be asked, decided together by all processes: budgets a minute, and a breaker.

Budgets are token buckets of one minute's size, kept in Redis: `model_requests_per_minute`, `model_tokens_per_minute`.
The breaker opens when calls fail in a row, whoever made them, or when the provider names a time to wait; when that is
over one call is let through, and what becomes of it decides. Without Redis every call is let through: a budget is worth
less than an answer.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from aftermind import errors
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.script import Script

log = logging.getLogger(__name__)

FAILURES = 5  # in a row: one slow answer stops nobody, and a dead provider costs five deadlines, not a thousand
OPEN = timedelta(seconds=5)  # the first time; doubles up to LONGEST while the probes fail
LONGEST = timedelta(minutes=2)
EARLY = timedelta(seconds=1)  # while the breaker is open, one question a second finds out whether it is well again
REFUSED = timedelta(seconds=60)  # how long a refused key is remembered without being refused again


_early: ContextVar[bool] = ContextVar("aftermind_early", default=False)


@contextmanager
def early() -> Iterator[None]:
    """Calls of the block may find out early whether a provider is well again: somebody waits, and no try is used up.

    Only where the breaker is open because calls failed: `Retry-After`, budgets and refused keys bind all alike.
    """
    token = _early.set(True)
    try:
        yield
    finally:
        _early.reset(token)


_unreported: ContextVar[bool] = ContextVar("aftermind_unreported", default=False)


@contextmanager
def unreported() -> Iterator[None]:
    """Calls of the block shut no gate, however they end: one job chose their model, so they tell nothing of others."""
    token = _unreported.set(True)
    try:
        yield
    finally:
        _unreported.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderState:
    """How a provider is, as all processes know it. `why` is None where it may be asked."""

    provider: str
    why: str | None
    wait_seconds: float
    failures: int


class Gate:
    """The gate before every call of a process. It lets everything through until it is bound to a Redis."""

    def __init__(self, *, requests_per_minute: int = 0, tokens_per_minute: int = 0) -> None:
        self._requests, self._tokens = requests_per_minute, tokens_per_minute
        self._link: RedisLink | None = None
        self._keys: Keys | None = None

    def bind(self, link: RedisLink, keys: Keys) -> None:
        """Share with whoever uses the same Redis."""
        self._link, self._keys = link, keys
        self._admit, self._told = Script("admit", keys), Script("told", keys)

    async def admit(self, provider: str, *, tokens: int = 0) -> None:
        """Take a call's place in the budgets, or raise `ProviderPaused` with the wait."""
        if self._link is None:
            return
        try:
            wait, why = await self._admit(
                self._link, provider, self._requests, self._tokens, tokens, _ms(EARLY) if _early.get() else 0
            )
        except errors.RedisUnavailable:
            return
        if int(wait):
            raise errors.ProviderPaused(provider, _REASONS[why], timedelta(milliseconds=int(wait)))

    async def told(self, provider: str, error: errors.AftermindError | None) -> None:
        """How a call ended. What the provider refuses for the request's own sake says nothing about the provider."""
        if self._link is None or _unreported.get():
            return
        outcome, wait = _outcome(error)
        if outcome is None:
            return
        try:
            opened = await self._told(
                self._link, provider, outcome, _ms(wait), FAILURES, _ms(OPEN), _ms(LONGEST), _ms(REFUSED)
            )
        except errors.RedisUnavailable:
            return
        if int(opened):
            log.warning("provider paused", extra={"provider": provider, "outcome": outcome, "ms": int(opened)})

    async def states(self) -> list[ProviderState]:
        """Every provider that was asked lately. Raises `RedisUnavailable`."""
        if self._link is None or self._keys is None:
            return []
        found = []
        for name in await self._link.call("SMEMBERS", self._keys.providers()):
            fields = await self._link.call("HMGET", self._keys.provider(name.decode()), "open", "why", "failures")
            left = max(0.0, int(fields[0] or 0) / 1000 - time.time())
            why = _REASONS.get(fields[1] or b"") if left else None
            found.append(
                ProviderState(provider=name.decode(), why=why, wait_seconds=left, failures=int(fields[2] or 0))
            )
        return found


_REASONS = {
    b"budget": "the budget of this minute is spent",
    b"breaker": "its calls fail one after the other",
    b"limited": "it limits our rate",
    b"refused": "it refuses our key",
}


def _outcome(error: errors.AftermindError | None) -> tuple[str | None, timedelta]:
    """What the script is told, and for how long the provider itself asks to wait."""
    nothing = timedelta(0)
    if error is None:
        return "ok", nothing
    if isinstance(error, errors.RateLimited):
        return "limited", error.retry_after or nothing
    if isinstance(error, errors.ModelKeyRefused):
        return "refused", nothing
    if isinstance(error, errors.ModelUnavailable):
        return "failed", nothing
    return None, nothing


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
