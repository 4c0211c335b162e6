"""One background task of a process at a time, whichever loop it runs on."""

import asyncio
import os
from collections.abc import Callable, Coroutine

NAME = "aftermind background work"


class OneTask:
    """Starts work that is not running yet. A task of a loop that was closed, or of the parent process, is forgotten."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._pid = os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether it has work left, as far as this process can determine."""
        task = self._task
        return task is not None and self._pid == os.getpid() and not task.done() and not task.get_loop().is_closed()

    def start(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run it on the running loop, unless it runs."""
        if not self.is_running:
            self._pid = os.getpid()
            self._task = asyncio.get_running_loop().create_task(work(), name=NAME)

    async def wait(self) -> None:
        """Wait until it has ended; returns immediately if it runs on another loop."""
        if self._is_here():
            assert self._task is not None
            await asyncio.wait([self._task])

    async def cancel(self) -> None:
        """End it, wherever it runs."""
        task, here = self._task, self._is_here()
        if task is None or not self.is_running:
            return
        if here:
            task.cancel()
            await asyncio.wait([task])
        else:
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._task = None

    def _is_here(self) -> bool:
        return self.is_running and self._task is not None and self._task.get_loop() is asyncio.get_running_loop()
