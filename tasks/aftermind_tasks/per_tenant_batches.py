"""Batches divided by tenant: the work of each tenant fails alone, and a slow tenant delays few others."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aftermind.types import Lease

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


@dataclass(slots=True)
class Turns:
    """Claims of one kind by a process: a tenant whose jobs cost more than a claim may pays with its next turns.

    So an expensive job delays other tenants once, and not again before they had as much (deficit round robin, Shreedhar
    and Varghese, 1996; here the turn is taken first). `weight` is that of one claim, None: all jobs cost the same.
    """

    weight: int | None
    _debts: dict[str, int] = field(default_factory=dict)

    async def claim(self, claim: Callable[[Sequence[str]], Awaitable[list[Lease]]]) -> tuple[list[Lease], bool]:
        """Call `claim` with the namespaces that it is to leave out; the leases, and whether more jobs may be left.

        Namespaces with debts are left out while others have jobs.
        """
        owing = list(self._debts)
        leases = await claim(owing)
        if owing and not leases:
            self._debts.clear()
            leases = await claim(())
        spent = self._count(leases)
        return leases, bool(owing) or (self.weight is not None and spent >= self.weight)

    def _count(self, leases: Iterable[Lease]) -> int:
        if self.weight is None:
            return 0
        spent: Counter[str] = Counter()
        for lease in leases:
            spent[lease.job.scope.namespace] += lease.weight
        owed = Counter(self._debts)
        owed.update(spent)
        self._debts = {namespace: debt - self.weight for namespace, debt in owed.items() if debt > self.weight}
        return spent.total()


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
