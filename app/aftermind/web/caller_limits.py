"""Limits per caller, of one process: requests at the same time, open streams, bytes of bodies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aftermind import errors

MAX_IDLE_CALLERS = 10_000  # kept with nothing running; beyond it those are dropped


@dataclass(slots=True)
class _Use:
    requests: int = 0
    streams: int = 0
    body_bytes: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.requests or self.streams or self.body_bytes)


@dataclass(slots=True, kw_only=True)
class CallerLimits:
    """Counts what each caller uses. Every limit that is passed raises `TooManyRequests`."""

    max_requests: int
    max_streams: int
    max_body_bytes: int
    _uses: dict[str, _Use] = field(default_factory=dict)

    @contextmanager
    def request(self, caller_id: str) -> Iterator[None]:
        """Count a request while the block runs."""
        use = self._use(caller_id)
        if use.requests >= self.max_requests:
            raise errors.TooManyRequests("concurrent requests", self.max_requests, retry_after=1.0)
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1

    @contextmanager
    def stream(self, caller_id: str) -> Iterator[None]:
        """Count a stream while the block runs."""
        use = self._use(caller_id)
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
            raise errors.TooManyRequests("bytes of request bodies", self.max_body_bytes, retry_after=1.0)
        use.body_bytes += count

    def _use(self, caller_id: str) -> _Use:
        found = self._uses.get(caller_id)
        if found is None:
            if len(self._uses) >= MAX_IDLE_CALLERS:
                self._uses = {name: use for name, use in self._uses.items() if not use.is_idle}
            found = self._uses[caller_id] = _Use()
        return found
