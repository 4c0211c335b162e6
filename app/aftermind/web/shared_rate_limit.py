"""Limits per window, shared by all service processes through Redis; without Redis each process counts alone."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from aftermind import errors
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys

RETRY_SECONDS = 1.0  # pause after Redis did not answer; requests do not wait for it then
MAX_WINDOWS = 10_000  # that a process counts locally


@dataclass(slots=True)
class SharedRate:
    """Counts uses by name. `link` None: this process is the only one."""

    link: RedisLink | None
    keys: Keys
    _windows: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)  # end, uses
    _redis_from: float = 0.0

    async def take(self, name: str, *, limit: float, window_seconds: float, what: str) -> None:
        """Count a use of `name`. Raises `TooManyRequests` beyond `limit` in a window, of all processes together."""
        now = time.monotonic()
        end, count = self._windows.get(name, (0.0, 0))
        end, count = (end, count + 1) if now < end else (now + window_seconds, 1)
        self._windows[name] = end, count
        self._windows.move_to_end(name)
        if len(self._windows) > MAX_WINDOWS:
            self._windows.popitem(last=False)
        if count <= limit:
            count = max(count, await self._shared(name, window_seconds))
        if count > limit:
            raise errors.TooManyRequests(what, limit, retry_after=max(1.0, end - now))

    async def close(self) -> None:
        """Close the connection."""
        if self.link is not None:
            await self.link.close()

    async def _shared(self, name: str, window_seconds: float) -> int:
        if self.link is None or time.monotonic() < self._redis_from:
            return 0
        try:
            return int(await Script("rate_count", self.keys)(self.link, name, round(window_seconds * 1000)))
        except errors.RedisUnavailable:
            self._redis_from = time.monotonic() + RETRY_SECONDS
            return 0
