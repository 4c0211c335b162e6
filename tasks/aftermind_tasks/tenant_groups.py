"""Work of several tenants in one batch: each tenant's fails alone, and a slow one delays few others."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

LANES = 3  # works at a time, and so connections of one batch, while some wait for locks
# A statement takes some 5 ms. The results of a faster batch are delivered together: one call to Redis for all tenants.
SLOW_SECONDS = 0.1


def largest_shares(sizes: Iterable[tuple[str, int]]) -> frozenset[str]:
    """Of items of a batch, each with its namespace and size: namespaces with more than the mean share, or all if there
    are none.

    The others are done before them, so that no small tenant waits for a tenant that fills the batch.
    """
    totals: Counter[str] = Counter()
    for namespace, size in sizes:
        totals[namespace] += size
    mean = totals.total() / len(totals)
    return frozenset(namespace for namespace, size in totals.items() if size > mean) or frozenset(totals)


async def run_each(
    works: Mapping[str, Callable[[], Awaitable[T]]], deliver: Callable[[Mapping[str, T | Exception]], Awaitable[None]]
) -> None:
    """Run all works in order, and call `deliver` with what each returned or raised. Raises what `deliver` raises.

    One runs at a time, but the next one overtakes a slow one, up to `LANES` at a time. Results are delivered together,
    but none waits for a slow work.
    """
    waiting, ended = list(works.items())[::-1], dict[str, T | Exception]()
    running: dict[asyncio.Task[T | Exception], str] = {}
    delivered_at = time.monotonic()
    try:
        while waiting or running:
            if waiting and len(running) < LANES:
                name, work = waiting.pop()
                running[asyncio.create_task(_run(work))] = name
            done, _ = await asyncio.wait(running, timeout=SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            ended |= {running.pop(task): task.result() for task in done}
            is_last = not (waiting or running)
            if ended and (is_last or time.monotonic() - delivered_at > SLOW_SECONDS):
                await deliver(ended)
                ended, delivered_at = {}, time.monotonic()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _run(work: Callable[[], Awaitable[T]]) -> T | Exception:
    try:
        return await work()
    except Exception as exc:  # the edge of a tenant's work: the caller judges it
        return exc
