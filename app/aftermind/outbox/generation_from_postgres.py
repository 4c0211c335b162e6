"""The erasure generation of a turn that Redis did not take, read from the primary while Redis does not answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aftermind import errors
from aftermind.outbox.single_background_task import OneTask
from aftermind.types.tombstone import Generation

RETRY_SECONDS = 1.0  # between two attempts while the primary does not answer either

Ask = Callable[[], Awaitable[int]]


class GenerationLookup:
    """Keeps `generation` current for spooled turns. With `ask` None the current value is used."""

    def __init__(self, ask: Ask | None = None, generation: Generation | None = None) -> None:
        self._ask, self._generation = ask, generation or Generation()
        self.task = OneTask()
        self._began = self._answered = self._failed = float("-inf")
        self._received: int | None = None  # 0 is an answer too: every erasure to come has a higher number

    @property
    def is_unknown(self) -> bool:
        """Whether neither the primary nor Redis has answered yet."""
        return self._received is None and self._generation.known is None

    def begin_once(self) -> None:
        """Ask in the background unless the primary has answered before: a lower bound for turns spooled later."""
        if self._received is None:
            self.begin()

    def begin(self) -> None:
        """Ask in the background, from the running loop."""
        if self._ask is not None and not self.task.is_running and time.monotonic() - self._failed > RETRY_SECONDS:
            self._began = time.monotonic()
            self.task.start(self._run)

    async def number(self, *, since: float, timeout: float) -> int | None:
        """The generation as of `since` (monotonic) or later; after `timeout` the last one received, if any."""
        if self._answered < since:
            self.begin()
            left = self._began + timeout - time.monotonic()
            if self.task.is_running and left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self.task.wait()
        return self._received if self._generation.known is None else self._generation.known

    async def _run(self) -> None:
        assert self._ask is not None
        began = time.monotonic()
        try:
            self._received = await self._ask()
            self._generation.learn(self._received)
            self._answered = began
        except errors.AftermindError:
            self._failed = time.monotonic()
