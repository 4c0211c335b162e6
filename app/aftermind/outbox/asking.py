"""The generation of a turn that Redis did not take: asked of the primary, while Redis does not answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aftermind import errors
from aftermind.outbox.background import OneTask
from aftermind.types.erasure import Generation

AGAIN_SECONDS = 1.0  # between two attempts while the primary does not answer either

Ask = Callable[[], Awaitable[int]]


class Asking:
    """Keeps `generation` current for turns that are spooled. `ask` None: what is known counts."""

    def __init__(self, ask: Ask | None = None, generation: Generation | None = None) -> None:
        self._ask, self._generation = ask, generation or Generation()
        self._task = OneTask()
        self._began = self._answered = self._failed = float("-inf")

    def begin(self) -> None:
        """Ask in the background, from the running loop."""
        if self._ask is not None and not self._task.is_running and time.monotonic() - self._failed > AGAIN_SECONDS:
            self._began = time.monotonic()
            self._task.start(self._run)

    async def number(self, *, since: float, timeout: float) -> int | None:
        """The generation as it was `since` then (monotonic) or later; after `timeout` the one that is known, if any."""
        if self._answered < since:
            self.begin()
            left = self._began + timeout - time.monotonic()
            if self._task.is_running and left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._task.ended()
        return self._generation.known

    async def close(self) -> None:
        """Ask no more."""
        await self._task.cancel()

    async def _run(self) -> None:
        assert self._ask is not None
        began = time.monotonic()
        try:
            self._generation.learn(await self._ask())
            self._answered = began
        except errors.AftermindError:
            self._failed = time.monotonic()
