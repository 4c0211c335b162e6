"""Batches of one process beside each other, and now and then one that must have it to itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiorwlock import RWLock

T = TypeVar("T")

ASK_SECONDS = 1.0  # between two questions of one kind: most claims that give nothing find nothing waiting either


class Solitude:
    """Runs batches side by side, and alone what would be buried next (`types.job.is_last_chance`)."""

    def __init__(self, *, ask_seconds: float = ASK_SECONDS) -> None:
        self._running = RWLock()  # read: side by side; write: alone, and before it all others end
        self._one = asyncio.Lock()  # who waits to be alone: one at a time, so that others run in between
        self._ask_seconds = ask_seconds
        self._asked_at: dict[str, float] = {}

    async def run(
        self,
        kind: str,
        batch: Callable[[bool], Awaitable[T | None]],
        last_chance_is_next: Callable[[], Awaitable[bool]],
    ) -> T | None:
        """What `batch` answers, which is told whether it is alone, and answers None where it could claim nothing.

        Then, if a last chance is next, it waits until the others have ended and runs with none beside it. None, too,
        where somebody waits for that already. `kind` is asked about once in a while; the reconciler rings again.
        """
        async with self._running.reader:
            done = await batch(False)
        if done is not None or self._one.locked() or not self._is_time(kind) or not await last_chance_is_next():
            return done
        async with self._one, self._running.writer:
            # Another process may have taken it meanwhile: nothing else has to run alone.
            return await batch(True) if await last_chance_is_next() else None

    def _is_time(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._asked_at.get(kind, -self._ask_seconds) < self._ask_seconds:
            return False
        self._asked_at[kind] = now
        return True
