"""One event loop per worker process, in a thread, for all tasks of that process.

Celery 5.7 does not support coroutines. Its threads pass theirs to this loop and wait, so the whole process shares
database connections, model clients and batches.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from typing import Any, TypeVar

from aftermind import errors

T = TypeVar("T")

ENDING_ROUNDS = 3  # of cancelling tasks when the loop ends: one that ends may begin another one


class LoopThread:
    """A running loop that other threads hand coroutines to.

    `start` and `stop` may be called once each, from any thread but the loop's own. What still runs at `stop` is
    cancelled and waited for, so that leases are handed back.
    """

    def __init__(self, name: str = "aftermind-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self.call_soon = self._loop.call_soon_threadsafe  # a plain function, on the loop's thread
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread and wait until its loop runs."""
        self._thread.start()
        self._started.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:  # Any: send and yield types
        """Run it on the loop and wait for what it returns or raises.

        After `timeout` seconds it is cancelled and TimeoutError raised. Raises `Bug` on the loop's own thread, which
        would wait for itself for ever.
        """
        return self.wait(self.submit(coroutine), timeout=timeout)

    @staticmethod
    def wait(future: "Future[T]", *, timeout: float | None = None) -> T:
        """Wait for a coroutine that was passed to `submit`."""
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise
        except FutureCancelled as exc:
            raise asyncio.CancelledError from exc

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Hand it over without waiting."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise errors.Bug("a coroutine of the worker's loop cannot wait for the same loop.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cancel_tasks(self) -> set[asyncio.Task[Any]]:  # Any: tasks of any result
        """Cancel all running tasks, on the loop's thread; the loop keeps running."""
        running = asyncio.all_tasks(self._loop)
        for task in running:
            task.cancel()
        return running

    def stop(self, *, timeout: float = 10.0) -> None:
        """Cancel what runs, let it clean up, and end the thread; after `timeout` seconds leave it behind."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._started.set)
        try:
            self._loop.run_forever()
        finally:
            self._wind_up()
            self._loop.close()

    def _wind_up(self) -> None:
        for _ in range(ENDING_ROUNDS):
            # gather keeps the loop running until each task has released its lease.
            self._loop.run_until_complete(asyncio.gather(*self.cancel_tasks(), return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
