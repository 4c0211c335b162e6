"""Time as an event loop experienced it: a busy machine that stalls the loop stalls this clock too.

Bounds on waiting (a deadline is kept, a call returns at once) are checked by it, so that they mean the program and not
the machine.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK_SECONDS = 0.01


class LoopClock:
    """`seconds` is never ahead of a wall clock, and behind it by what the loop was held up."""

    def __init__(self) -> None:
        self._ticks = 0

    @property
    def seconds(self) -> float:
        """Seconds since the clock began."""
        return self._ticks * TICK_SECONDS

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._ticks += 1


@asynccontextmanager
async def loop_clock() -> AsyncIterator[LoopClock]:
    """A clock that runs in the current loop."""
    clock = LoopClock()
    task = asyncio.create_task(clock.run())
    try:
        yield clock
    finally:
        task.cancel()
