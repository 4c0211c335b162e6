"""Sample all metrics every few seconds and keep 15 minutes of them, for rates and charts.

Sampling starts when the overview is opened, and stops some time after the last viewer has left.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from aftermind import errors
from aftermind.api.health import Health
from aftermind.memory import Memory
from aftermind.telemetry import exposition
from aftermind.telemetry.logger import get_logger
from aftermind.web.pages import metric_deltas
from aftermind.web.pages.metric_deltas import Counts

log = get_logger(__name__)

EVERY_SECONDS = 3.0
SAMPLES_KEPT = int(15 * 60 / EVERY_SECONDS)
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
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._seen = 0.0
        self._starting = asyncio.Lock()

    async def samples(self) -> Sequence[Sample]:
        """The samples, oldest first, the newest at most some seconds old; keeps sampling for some time."""
        self._seen = asyncio.get_running_loop().time()
        async with self._starting:  # with two concurrent pages, one starts the sampler
            if self._task is None or self._task.done():
                self._samples.clear()  # a gap is not a rate
                await self._take_sample()
                self._task = asyncio.get_running_loop().create_task(self._run(), name="aftermind pulse")
        return tuple(self._samples)

    async def close(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while clock() - self._seen < UNSEEN_SECONDS:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self._take_sample()
            except (errors.AftermindError, OSError) as exc:
                log.warning("health sample failed", extra={"error": str(exc)})

    async def _take_sample(self) -> None:
        counts = await asyncio.to_thread(lambda: metric_deltas.read(exposition.registry()))  # reads a file a process
        self._samples.append(Sample(at=datetime.now(UTC), health=await self._memory.health(), counts=counts))
