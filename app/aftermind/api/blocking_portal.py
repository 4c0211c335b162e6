"""An event loop in a separate thread, for callers without one."""

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  # registers the end of its threads, before ours below
import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from anyio.from_thread import BlockingPortal

from aftermind import errors
from aftermind.outbox import single_background_task

T = TypeVar("T")

_lock = threading.Lock()
_open: dict[int, BlockingPortal] = {}  # by process: a fork has its own
CANCEL_SECONDS = 5.0  # work in a thread cannot be cancelled, and the process is to end


API = (
    "Use the async API: `from aftermind import Memory`, then `await memory.recall(…)`; for an agent, "
    "`await agent.arun(…)`."
)


def call(work: Callable[[], Awaitable[T]], *, instead: str = API) -> T:
    """Run a coroutine on the portal's loop and wait for its result.

    Raises `InvalidInput` inside a running event loop, which would be blocked; `instead` is what to use there.
    """
    _refuse_inside_a_loop(instead)
    return _portal().call(work)


def iterate(make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """What the async iterator yields, as it comes. Closing the generator ends the iterator too."""
    _refuse_inside_a_loop()
    results: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()

    async def pump() -> None:
        try:
            async for item in make():
                results.put((item,))
        except Exception as exc:  # handed to the caller's thread, which raises it
            results.put(exc)
        else:
            results.put(None)

    pumping = _portal().start_task_soon(pump)
    try:
        while (found := results.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0]
    finally:
        pumping.cancel()


def _portal() -> BlockingPortal:
    with _lock:
        known = _open.get(os.getpid())
        if known is None:
            known = _open[os.getpid()] = _started()  # for as long as the process lives
        return known


def _started() -> BlockingPortal:
    # Not anyio's start_blocking_portal: its generator is closed by the garbage collector at interpreter exit, or in a
    # fork, and then waits forever for a thread that has ended.
    opened: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            opened.set_result(portal)
            await portal.sleep_until_stopped()

    threading.Thread(target=asyncio.run, args=(serve(),), name="aftermind-portal", daemon=True).start()
    return opened.result()


def _cancel_background_work() -> None:
    """Before threads end: of a memory that was not closed. Its jobs stay with its store, for the next process."""
    known = _open.get(os.getpid())
    if known is not None:
        with suppress(RuntimeError):  # it has stopped
            known.call(_cancel_tasks)


async def _cancel_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == single_background_task.NAME]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)


# Not `atexit`, which comes after the executors' threads have ended: background work then failed with a log line.
# Functions of this kind are called in reverse order, so before that of `concurrent.futures.thread`.
threading._register_atexit(_cancel_background_work)  # type: ignore[attr-defined]


@atexit.register
def _stop() -> None:
    """While threads still run: an unfinished iteration is cancelled, and the loop closed."""
    known = _open.pop(os.getpid(), None)
    if known is not None:
        with suppress(RuntimeError):  # it has stopped
            known.call(known.stop, True)


def _refuse_inside_a_loop(instead: str = API) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise errors.InvalidInput(
        f"this call blocks, and its thread runs an event loop (as in Jupyter or an async function). {instead}"
    )


def _after_fork() -> None:
    """The parent may have held the lock in another thread when it forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
