"""Recalls of this process, counted for the history: handed over once a minute, in the background."""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.telemetry.metrics import QUICK
from aftermind.types import RecallBlock

log = get_logger(__name__)

SEND_SECONDS = 60.0  # after the first recall of an interval

Send = Callable[[Mapping[str, Sequence[int]]], Awaitable[None]]


class RecallCounts:
    """Counts by serving node: degraded recalls, then recalls by bucket of `QUICK`.

    Counting takes about a microsecond. What cannot be sent is dropped: it is a statistic.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._counts: dict[str, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def add(self, block: RecallBlock) -> None:
        """Count a recall that has ended, on the loop that it ran on."""
        if not self._counts:
            self._timer = asyncio.get_running_loop().call_later(SEND_SECONDS, self._begin)
        counts = self._counts.setdefault(block.served_by.value, [0] * (len(QUICK) + 2))
        counts[0] += block.degraded is not None
        counts[1 + bisect_left(QUICK, block.duration_ms / 1_000)] += 1

    async def close(self) -> None:
        """Send what is counted."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None and self._sending.get_loop() is asyncio.get_running_loop():
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._flush()

    def _begin(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._flush(), name="aftermind recall counts")

    async def _flush(self) -> None:
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            await self._send(counts)
        except errors.AftermindError as exc:
            log.debug("recall counts dropped", extra={"error": str(exc)})
