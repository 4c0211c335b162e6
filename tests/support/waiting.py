"""The only way that a test waits: for something to become true, with a deadline and a name."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")
FIRST_PAUSE = 0.005  # seconds; doubles up to the longest, so that quick things are seen quickly and slow ones cheaply
LONGEST_PAUSE = 0.1
# A predicate that starts a psql or opens a connection is called less often: else the waiting tests of four processes
# take the processor from what they wait for.
PAUSE_PER_LOOK, LONGEST_COSTLY_PAUSE = 6.0, 0.5
PATIENCE_SECONDS = 180.0  # only a failing test waits so long: a busy machine must not fail one

# Deadlines that protect users from a slow server. On a busy machine a test exceeds the defaults now and then: a turn is
# spooled, a block degraded. A test of such a deadline sets its own.
PATIENT_SETTINGS = {
    "AFTERMIND_REMEMBER_BUDGET_SECONDS": "20",
    "AFTERMIND_REDIS_TIMEOUT_SECONDS": "20",
    "AFTERMIND_RECALL_BUDGET_SECONDS": "60",
    "AFTERMIND_QUERY_EMBEDDING_BUDGET_SECONDS": "30",
    "AFTERMIND_DB_TIMEOUT_SECONDS": "60",
    "AFTERMIND_DB_CONNECT_TIMEOUT_SECONDS": "60",
}


class NeverHappened(AssertionError):
    """What a test waited for did not become true in time."""

    def __init__(self, description: str, timeout: float, last: object) -> None:
        self.description, self.timeout, self.last = description, timeout, last
        super().__init__(f"waited {timeout:g} s for: {description} (last seen: {last!r})")


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], *, timeout: float = ..., description: str) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], *, timeout: float = ..., description: str) -> T: ...
async def wait_until(
    predicate: Callable[[], T | Awaitable[T]], *, timeout: float = PATIENCE_SECONDS, description: str
) -> T:
    """Call a plain or async predicate until its answer is true, and return that answer."""
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        began = time.monotonic()
        answer = predicate()
        found: T = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found
        if time.monotonic() > deadline:
            raise NeverHappened(description, timeout, found)
        looking = time.monotonic() - began
        await asyncio.sleep(pause)
        pause = _next_pause(pause, looking)


def wait_until_sync(predicate: Callable[[], T], *, timeout: float = PATIENCE_SECONDS, description: str) -> T:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        began = time.monotonic()
        if found := predicate():
            return found
        if time.monotonic() > deadline:
            raise NeverHappened(description, timeout, found)
        looking = time.monotonic() - began
        time.sleep(pause)
        pause = _next_pause(pause, looking)


def _next_pause(last: float, looking: float) -> float:
    """Seconds until the next look, after one that took `looking`."""
    longest = max(LONGEST_PAUSE, min(looking * PAUSE_PER_LOOK, LONGEST_COSTLY_PAUSE))
    return min(last * 2, longest)
