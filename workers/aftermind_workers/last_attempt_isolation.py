"""Runs batches of a process concurrently, and a job on its last attempt alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

ASK_SECONDS = 1.0  # between two questions of one kind: most claims that give nothing find nothing waiting either


class Solitude:
    """Runs batches concurrently, and alone if one more lost lease would dead-letter them
    (`types.job.is_last_chance`).
    """

    def __init__(self, *, ask_seconds: float = ASK_SECONDS) -> None:
        self._running = 0
        self._idle, self._open = asyncio.Event(), asyncio.Event()  # none runs; none waits to be alone
        self._idle.set()
        self._open.set()
        self._ask_seconds = ask_seconds
        self._ask_at: dict[str, float] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether a job waits until all others of the process have ended: none is to begin."""
        return not self._open.is_set()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Work that runs concurrently with other work. Enter it if `is_wanted` was false, without an await in
        between.
        """
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def run(
        self,
        kind: str,
        batch: Callable[[bool], Awaitable[T | None]],
        last_chance_is_next: Callable[[], Awaitable[bool]],
    ) -> T | None:
        """The result of `batch(False)`, which is None if it could claim nothing.

        Then, if a last chance is next, wait until all other work has ended and return the result of `batch(True)`.
        One caller at a time waits for that; the others get None. After `last_chance_is_next` has returned False, it is
        not called again for `ask_seconds` (for each `kind`). After True it is: while a last chance is next, other
        claims get nothing.
        """
        await self._open.wait()
        with self.shared():
            done = await batch(False)
        if done is not None or not await self._is_next(kind, last_chance_is_next) or self.is_wanted:
            return done
        self._open.clear()
        try:
            await self._idle.wait()
            # Another process may have taken it by now: nothing else has to run alone.
            return await batch(True) if await last_chance_is_next() else None
        finally:
            self._open.set()

    async def _is_next(self, kind: str, last_chance_is_next: Callable[[], Awaitable[bool]]) -> bool:
        now = time.monotonic()
        if now < self._ask_at.get(kind, now):
            return False
        self._ask_at[kind] = now + self._ask_seconds
        is_next = await last_chance_is_next()
        if is_next:
            self._ask_at.pop(kind, None)
        return is_next
