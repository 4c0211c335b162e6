"""Limits per caller, of one process: requests at the same time, open streams, request rate, bytes of bodies."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aftermind import errors

MAX_IDLE_CALLERS = 10_000  # kept with nothing running; beyond it those are dropped
BURST_SECONDS = 2.0  # of the rate that an idle caller may use immediately


@dataclass(slots=True)
class _Use:
    requests: int = 0
    streams: int = 0
    body_bytes: int = 0
    tokens: float = 0.0
    filled_at: float = field(default_factory=time.monotonic)

    @property
    def is_idle(self) -> bool:
        return not (self.requests or self.streams or self.body_bytes)


@dataclass(slots=True, kw_only=True)
class CallerLimits:
    """Counts what each caller uses. Every limit that is passed raises `TooManyRequests`."""

    max_requests: int
    max_streams: int
    max_body_bytes: int
    requests_per_second: float
    _uses: dict[str, _Use] = field(default_factory=dict)

    @contextmanager
    def request(self, caller_id: str) -> Iterator[None]:
        """Count a request while the block runs."""
        use = self._use(caller_id)
        self._take_token(use)
        if use.requests >= self.max_requests:
            raise errors.TooManyRequests("requests at the same time", self.max_requests, retry_after=1.0)
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1

    @contextmanager
    def stream(self, caller_id: str) -> Iterator[None]:
        """Count a stream while the block runs."""
        use = self._use(caller_id)
        self._take_token(use)
        if use.streams >= self.max_streams:
            raise errors.TooManyRequests("open streams", self.max_streams, retry_after=15.0)
        use.streams += 1
        try:
            yield
        finally:
            use.streams -= 1

    def hold_bytes(self, caller_id: str, count: int) -> None:
        """Count bytes of a body that is held in memory; give them back with a negative count."""
        use = self._use(caller_id)
        if count > 0 and use.body_bytes and use.body_bytes + count > self.max_body_bytes:
            raise errors.TooManyRequests("bytes of bodies in flight", self.max_body_bytes, retry_after=1.0)
        use.body_bytes += count

    def _take_token(self, use: _Use) -> None:
        if not self.requests_per_second:
            return
        now, most = time.monotonic(), max(1.0, self.requests_per_second * BURST_SECONDS)
        use.tokens = min(most, use.tokens + (now - use.filled_at) * self.requests_per_second)
        use.filled_at = now
        if use.tokens < 1.0:
            wait = (1.0 - use.tokens) / self.requests_per_second
            raise errors.TooManyRequests("requests a second", self.requests_per_second, retry_after=wait)
        use.tokens -= 1.0

    def _use(self, caller_id: str) -> _Use:
        found = self._uses.get(caller_id)
        if found is None:
            if len(self._uses) >= MAX_IDLE_CALLERS:
                self._uses = {name: use for name, use in self._uses.items() if not use.is_idle}
            tokens = max(1.0, self.requests_per_second * BURST_SECONDS)
            found = self._uses[caller_id] = _Use(tokens=tokens)
        return found
