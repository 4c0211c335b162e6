"""Rate limits of a provider, shared by all processes: budgets per minute, and a circuit breaker.

Budgets are token buckets of one minute's size, stored in Redis: `model_requests_per_minute`, `model_tokens_per_minute`.
The breaker opens when calls of any process fail in a row, or when the provider sets a time to wait; after that one call
is admitted, and its result decides. Large calls have a second breaker, so that long texts of one tenant that time out
pause no ordinary call. Without Redis every call is admitted: a budget is worth less than an answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys

log = get_logger(__name__)

FAILURES = 5  # in a row: one slow answer stops nothing, and a dead provider costs five deadlines, not a thousand
OPEN = timedelta(seconds=5)  # the first time; doubles up to LONGEST while the probes fail
LONGEST = timedelta(minutes=2)
EARLY = timedelta(seconds=1)  # while the breaker is open, one question a second finds out whether it is well again
LARGE_SUFFIX = " (large calls)"
LARGE_TOKENS = 4_000  # of a large call: some 40 times an ordinary message, and more than most extractions show
REFUSED = timedelta(seconds=60)  # how long a refused key is remembered without being refused again
TEST = timedelta(seconds=60)  # after a pause, for which it counts as one: a call tests the provider then


_early: ContextVar[bool] = ContextVar("aftermind_early", default=False)


@contextmanager
def early() -> Iterator[None]:
    """Calls of the block may check early whether a provider has recovered: a user waits, and no attempt is used.

    Only if the breaker is open because calls failed: `Retry-After`, budgets and refused keys always apply.
    """
    token = _early.set(True)
    try:
        yield
    finally:
        _early.reset(token)


_unreported: ContextVar[bool] = ContextVar("aftermind_unreported", default=False)


@contextmanager
def unreported() -> Iterator[None]:
    """Calls of the block do not affect the breaker: one job chose their model, so they have no information about
    others.
    """
    token = _unreported.set(True)
    try:
        yield
    finally:
        _unreported.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderState:
    """State of a provider, shared by all processes. `why` and `remedy` are None if it is available.

    `wait_seconds` is 0 while a call tests whether a paused provider answers again. `is_large_only`: other calls are
    made.
    """

    provider: str
    why: str | None
    remedy: str | None
    wait_seconds: float
    failures: int
    is_large_only: bool = False

    @property
    def pause(self) -> str:
        """The pause in words, with its reason; "" if it is available."""
        if self.why is None:
            return ""
        length = f"paused for {self.wait_seconds:.0f} s" if self.wait_seconds else "being tested after a pause"
        return f"{length}: {self.why}"


def provider_name(kind: str, base_url: str | None) -> str:
    """What errors, budgets and pauses call a provider: its kind, or the host of another address."""
    return kind if base_url is None else base_url.split("//")[-1].split("/")[0].rpartition("@")[2]


class ProviderLimiter:
    """The gate before every call of a process. It lets everything through until it is bound to a Redis."""

    def __init__(self, *, requests_per_minute: int = 0, tokens_per_minute: int = 0) -> None:
        self._requests, self._tokens = requests_per_minute, tokens_per_minute
        self._link: RedisLink | None = None
        self._keys: Keys | None = None

    def bind(self, link: RedisLink, keys: Keys) -> None:
        """Share the state with all users of the same Redis."""
        self._link, self._keys = link, keys
        self._admit, self._told = Script("provider_admit", keys), Script("provider_report", keys)

    async def admit(self, provider: str, *, tokens: int = 0) -> None:
        """Take the place of a call of about `tokens` in the budgets, or raise `ProviderPaused` with the wait."""
        if self._link is None:
            return
        early_ms = _ms(EARLY) if _early.get() else 0
        try:
            if tokens > LARGE_TOKENS:  # first: a call that waits for this breaker takes nothing of the budgets
                wait, why = await self._admit(self._link, _large(provider), 0, 0, 0, early_ms)
                if int(wait):
                    raise errors.ProviderPaused(_large(provider), _REASONS[why], _timedelta(wait), is_large_only=True)
            wait, why = await self._admit(self._link, provider, self._requests, self._tokens, tokens, early_ms)
        except errors.RedisUnavailable:
            return
        if int(wait):
            raise errors.ProviderPaused(provider, _REASONS[why], _timedelta(wait))

    async def report(self, provider: str, error: errors.AftermindError | None, *, tokens: int = 0) -> None:
        """Report the end of a call of about `tokens`.

        A refusal because of the request itself is an answer, which ends a pause as a success does; the failure of a
        large call has no meaning for others. An answer of any size closes both breakers.
        """
        if self._link is None or _unreported.get():
            return
        outcome, wait = _outcome(error)
        if outcome is None:
            return
        try:
            if outcome == "failed" and tokens > LARGE_TOKENS:
                provider = _large(provider)
            limits = (FAILURES, _ms(OPEN), _ms(LONGEST), _ms(REFUSED))
            opened = await self._told(self._link, provider, outcome, _ms(wait), *limits, _large(provider))
        except errors.RedisUnavailable:
            return
        if int(opened):
            log.warning("provider paused", extra={"provider": provider, "outcome": outcome, "ms": int(opened)})

    async def states(self) -> list[ProviderState]:
        """Every provider that was asked lately. Raises `RedisUnavailable`."""
        if self._link is None or self._keys is None:
            return []
        found = []
        seconds, micros = await self._link.call("TIME")
        now = int(seconds) + int(micros) / 1e6
        for name in await self._link.call("SMEMBERS", self._keys.providers()):
            fields = await self._link.call("HMGET", self._keys.provider(name.decode()), "open", "why", "failures")
            left = int(fields[0] or 0) / 1000 - now  # the time of the last pause stays until a call succeeds
            cause = fields[1] or b"" if left > -TEST.total_seconds() else b""
            found.append(
                ProviderState(
                    provider=name.decode(),
                    why=_REASONS.get(cause),
                    remedy=_REMEDIES.get(cause),
                    wait_seconds=max(0.0, left),
                    failures=int(fields[2] or 0),
                    is_large_only=name.decode().endswith(LARGE_SUFFIX),
                )
            )
        return found


_REASONS = {
    b"budget": "the budget of this minute is spent",
    b"breaker": "its calls fail one after the other, without a connection or with an error of the server",
    b"limited": "it limits our rate",
    b"refused": "it refuses our key, or none is set",
}
_REMEDIES = {
    b"budget": "Wait, or raise AFTERMIND_MODEL_REQUESTS_PER_MINUTE or AFTERMIND_MODEL_TOKENS_PER_MINUTE.",
    b"breaker": "Check its address in the workers' environment (OPENAI_BASE_URL), and that it answers there. "
    "`aftermind jobs list` shows the errors. Calls resume by themselves when the pause ends; `aftermind jobs run-now` "
    "then repeats waiting jobs. If no process is configured with it any more, this line is gone within minutes.",
    b"limited": "Wait, or ask the provider for a higher limit.",
    b"refused": "Set or correct the key in the workers' environment (OPENAI_API_KEY).",
}


def _outcome(error: errors.AftermindError | None) -> tuple[str | None, timedelta]:
    """The outcome for the script, and the waiting time that the provider requests."""
    nothing = timedelta(0)
    if error is None or isinstance(error, errors.BadModelRequest | errors.BadModelAnswer | errors.ModelRefused):
        return "ok", nothing  # it answered: a call that tests a paused provider must have a verdict
    if isinstance(error, errors.RateLimited):
        return "limited", error.retry_after or nothing
    if isinstance(error, errors.ModelKeyRefused):
        return "refused", nothing
    if isinstance(error, errors.ModelUnavailable):
        return "failed", nothing
    return None, nothing


def _large(provider: str) -> str:
    """The name of the breaker of its large calls, as operators see it."""
    return f"{provider}{LARGE_SUFFIX}"


def _timedelta(ms: bytes | int) -> timedelta:
    return timedelta(milliseconds=int(ms))


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
