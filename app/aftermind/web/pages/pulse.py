"""A look at everything every few seconds, kept for a quarter of an hour, so that rates and charts have a past.

Nothing is looked at before somebody has opened the overview, and a while after the last one has left it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from aftermind import errors
from aftermind.faces.health import Health
from aftermind.memory import Memory
from aftermind.telemetry import exposition
from aftermind.web.pages import counting
from aftermind.web.pages.counting import Counts

log = logging.getLogger(__name__)

EVERY_SECONDS = 3.0
KEPT = int(15 * 60 / EVERY_SECONDS)
UNSEEN_SECONDS = 15 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How everything was at a moment, and what had been counted until then."""

    at: datetime
    health: Health
    counts: Counts


class Pulse:
    """The samples of one service."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._task: asyncio.Task[None] | None = None
        self._seen = 0.0
        self._starting = asyncio.Lock()

    async def samples(self) -> Sequence[Sample]:
        """What is known, oldest first, the newest at most some seconds old; and keep looking for a while."""
        self._seen = asyncio.get_running_loop().time()
        async with self._starting:  # two pages at once: one looks
            if self._task is None or self._task.done():
                self._samples.clear()  # a gap is not a rate
                await self._look()
                self._task = asyncio.get_running_loop().create_task(self._run(), name="aftermind pulse")
        return tuple(self._samples)

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while clock() - self._seen < UNSEEN_SECONDS:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self._look()
            except (errors.AftermindError, OSError) as exc:
                log.warning("a look at everything failed", extra={"error": str(exc)})

    async def _look(self) -> None:
        counts = await asyncio.to_thread(lambda: counting.read(exposition.registry()))  # reads a file a process
        self._samples.append(Sample(at=datetime.now(UTC), health=await self._memory.health(), counts=counts))
