"""A health check whose result all requests within a second share: it costs 40 ms, and probes need no key."""

import asyncio
import time
from dataclasses import dataclass, field

from aftermind.api.health import Health
from aftermind.memory import Memory

FRESH_SECONDS = 1.0  # shorter than what any probe or scrape waits between two requests


@dataclass(slots=True)
class SharedHealth:
    """The last check while it is fresh; requests that arrive during one share its result."""

    memory: Memory
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _found: Health | None = None
    _at: float = 0.0

    async def get(self) -> Health:
        """The health, at most a second old."""
        async with self._lock:
            if self._found is None or time.monotonic() - self._at > FRESH_SECONDS:
                self._found = await self.memory.health()
                self._at = time.monotonic()
            return self._found
