"""CPU time, whatever else the machine does, and how slow the machine is."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

UNIT = 28_000  # squares to add: 1 ms on the machine whose figures the tests name


@cache
def slowness() -> float:
    """How many times longer this machine computes than the one whose figures the tests name; at least 1."""
    return max(1.0, cpu_seconds(lambda: sum(number * number for number in range(UNIT)), runs=20) * 1e3)


def cpu_seconds(call: Callable[[], object], *, runs: int = 3) -> float:
    """The CPU seconds that the thread takes for a call: the least of several runs."""
    taken = []
    for _ in range(runs):
        started = time.thread_time()
        call()
        taken.append(time.thread_time() - started)
    return min(taken)


@contextmanager
def callbacks() -> Iterator[list[float]]:
    """Thread CPU milliseconds of every callback of a loop within the block."""
    taken: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        taken.append((time.thread_time() - started) * 1e3)

    gc.collect()
    gc.freeze()  # a full collection of all that the test suite has loaded takes 70 ms, and is not the callback's
    try:
        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield taken
    finally:
        gc.unfreeze()
