"""An event loop in a separate thread, for callers without one."""

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from anyio.from_thread import BlockingPortal

from aftermind import errors

T = TypeVar("T")

_lock = threading.Lock()
_open: dict[int, BlockingPortal] = {}  # by process: a fork has its own


def call(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine on the portal's loop and wait for its result.

    Raises `InvalidInput` inside a running event loop, which would be blocked.
    """
    _refuse_inside_a_loop()
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


@atexit.register
def _stop() -> None:
    """While threads still run: an unfinished iteration is cancelled, and the loop closed."""
    known = _open.pop(os.getpid(), None)
    if known is not None:
        with suppress(RuntimeError):  # it has stopped
            known.call(known.stop, True)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise errors.InvalidInput(
        "aftermind.sync blocks, and this thread runs an event loop (as in Jupyter or an async function). Use the async "
        "API: `from aftermind import Memory`, then `await memory.recall(…)`; for an agent, `await agent.arun(…)`."
    )


def _after_fork() -> None:
    """The parent may have held the lock in another thread when it forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
