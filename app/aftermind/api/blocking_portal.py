"""An event loop in a separate thread, for callers without one."""

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  # registers the end of its threads, before ours below
import os
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

from anyio.from_thread import BlockingPortal

from aftermind import errors
from aftermind.outbox import single_background_task

T = TypeVar("T")

_lock = threading.Lock()
_open: dict[int, BlockingPortal] = {}  # by process: a fork has its own
OF_MAIN_THREAD = "aftermind iteration of the main thread"
CANCEL_SECONDS = 5.0  # work in a thread cannot be cancelled, and the process is to end


API = (
    "Use the async API: `from aftermind import Memory`, then `await memory.recall(…)`; for an agent, "
    "`await agent.arun(…)`."
)


class Blocking(Generic[T]):
    """A blocking object and its asynchronous counterpart."""

    def __init__(self, behind: T) -> None:
        self._behind = behind

    def __repr__(self) -> str:
        return repr(self._behind)


def to_async(given: T | Blocking[T]) -> T:
    """Return the asynchronous counterpart of a blocking object; others as they are."""
    return given._behind if isinstance(given, Blocking) else given


def call(work: Callable[[], Awaitable[T]], *, instead: str = API) -> T:
    """Run a coroutine on the portal's loop and wait for its result.

    Raises `InvalidInput` inside a running event loop, which would be blocked; `instead` is what to use there.
    """
    _refuse_inside_a_loop(instead)
    return _portal().call(work)


def iterate(make: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
    """What the async generator yields, each item when it is asked for. Closing this one closes that one first."""
    _refuse_inside_a_loop()
    results: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
    wanted = asyncio.Semaphore(0)  # without it a stream that is closed early would have made more than its caller got

    async def pump() -> None:
        try:
            async with aclosing(make()) as items:
                async for item in items:
                    results.put((item,))
                    await wanted.acquire()
        except BaseException as exc:  # handed to the caller's thread, which raises it
            results.put(exc)
            if not isinstance(exc, Exception):
                raise
        else:
            results.put(None)

    async def start() -> asyncio.Task[None]:
        # Not a task of anyio, whose cancellation would also interrupt what the generator does when it is closed.
        return asyncio.create_task(pump(), name=OF_MAIN_THREAD if is_main else None)

    is_main, portal = threading.current_thread() is threading.main_thread(), _portal()
    pumping = portal.call(start)
    try:
        while (found := results.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0]
            pumping.get_loop().call_soon_threadsafe(wanted.release)
    finally:
        _end(pumping, portal)
        if not results.empty() and isinstance(failure := results.get(), Exception):
            raise failure


def _end(task: asyncio.Task[None], portal: BlockingPortal) -> None:
    """Cancel a task and wait for its end, which can take as long as remembering a turn."""
    if task.done() or _open.get(os.getpid()) is not portal:  # its loop has ended, or is of the parent process
        return
    if _is_in_a_loop():  # the garbage collector closes a generator in any thread; it must not block a loop
        task.set_name(OF_MAIN_THREAD)
        task.get_loop().call_soon_threadsafe(task.cancel)
    else:
        portal.call(_cancel, [task])


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
    """Before threads end: of a memory that was not closed. Its jobs stay with its store, for the next process.

    Before that, unfinished iterations of the main thread: an agent's stream remembers the part that was sent.
    """
    known = _open.get(os.getpid())
    if known is not None:
        with suppress(RuntimeError):  # it has stopped
            known.call(_cancel_named, OF_MAIN_THREAD)
            known.call(_cancel_named, single_background_task.NAME)


async def _cancel_named(name: str) -> None:
    await _cancel([task for task in asyncio.all_tasks() if task.get_name() == name], seconds=CANCEL_SECONDS)


async def _cancel(tasks: Sequence[asyncio.Task[None]], *, seconds: float | None = None) -> None:
    for task in tasks:
        if not task.cancelling():  # a second time would interrupt its end
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


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
    if _is_in_a_loop():
        raise errors.InvalidInput(
            f"this call blocks, and its thread runs an event loop (as in Jupyter or an async function). {instead}"
        )


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _after_fork() -> None:
    """The parent may have held the lock in another thread when it forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
