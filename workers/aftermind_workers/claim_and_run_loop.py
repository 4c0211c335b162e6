"""The work loop behind one doorbell: claim and run until nothing is left or the time slice is over."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, partial

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobKind
from aftermind.wire import queues
from aftermind_tasks import job_handlers, retry_policy
from aftermind_tasks.job_runner import Tally
from aftermind_workers import batching
from aftermind_workers.lifecycle import Worker

log = get_logger(__name__)

SHIFT = 5.0  # seconds of one doorbell; then the worker sends another, so that other ones and SIGTERM are served


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where batches of one kind come from. `run_batch` gets whether it runs alone in its process.

    `shard` is that of a Redis Cluster: while it is away, the others are served.
    """

    name: str
    kind: JobKind
    run_batch: Callable[[Worker, bool], Awaitable[batching.Ran | None]]
    last_chance_is_next: Callable[[Worker], Awaitable[bool]]
    shard: int | None = None


def _ledger_source(kind: JobKind, *, replays: bool = False) -> Source:
    async def last_chance_is_next(worker: Worker) -> bool:
        excepted = await batching.unclaimable_namespaces(worker, kind, replays=replays)
        return await worker.runtime.ledger.last_chance_is_next(kind, replays=replays, except_namespaces=excepted)

    return Source(
        name=f"{kind} {replays}",
        kind=kind,
        run_batch=lambda worker, is_alone: batching.run_ledger_batch(
            worker, job_handlers.handler(kind), is_alone, replays=replays
        ),
        last_chance_is_next=last_chance_is_next,
    )


def _pending_source(shard: int, count: int) -> Source:
    async def last_chance_is_next(worker: Worker) -> bool:
        pending, most = worker.runtime.pending, worker.runtime.settings.max_lost_leases
        if pending is None:
            return False
        excepted = await batching.unclaimable_namespaces(worker, JobKind.STORE)
        return await pending.shards[shard].last_chance_is_next(max_lost=most, except_namespaces=excepted)

    return Source(
        name=f"pending {shard}",
        kind=JobKind.STORE,
        run_batch=partial(batching.store_pending_batch, shard=shard),
        last_chance_is_next=last_chance_is_next,
        shard=shard if count > 1 else None,
    )


@cache
def list_sources(queue: str, shards: int) -> tuple[Source, ...]:
    """The sources of a queue, whose pending turns are in this number of shards; 0: the store accepts turns itself."""
    if queue == queues.REPLAY:  # every kind, and of each only what a plan brought back
        return tuple(_ledger_source(kind, replays=True) for kind in job_handlers.KINDS)
    live = tuple(_ledger_source(kind) for kind in job_handlers.KINDS if queues.QUEUE_OF[kind] == queue)
    # Pending turns first: what Redis accepted outnumbers what the ledger accepted, which is asked once a bell.
    return (*(_pending_source(each, shards) for each in range(shards)), *live) if queue == queues.STORE else live


async def serve(worker: Worker, queue: str) -> int:
    """Do the queue's work; how many jobs were finished. Sends another doorbell if the time ends with work left."""
    over = time.monotonic() + SHIFT
    finished = 0
    first = worker.next_source.pop(queue, 0)
    pending = worker.runtime.pending
    sources = list(enumerate(list_sources(queue, 0 if pending is None else len(pending.shards))))
    is_repeated = True
    while is_repeated:
        for place, source in sources[first:] + sources[:first]:
            count, is_more = await _drain(worker, source, over)
            finished += count
            if is_more:  # the next bell begins with the next kind: a kind with much to do does not stop the others
                worker.next_source[queue] = (place + 1) % len(sources)
                await batching.ring_on(worker, queue)
                return finished
        is_repeated = worker.places_of(queue).take_repeat()  # the bells of what came while places were held are spent
    return finished


async def _drain(worker: Worker, source: Source, over: float) -> tuple[int, bool]:
    """Batches of one source, one after the other; how many jobs, and whether there is more."""
    finished = 0
    is_more = True
    while is_more:
        if worker.is_stopping or time.monotonic() > over:
            return finished, True
        if not await _may_claim(worker, source):
            return finished, False
        started = time.monotonic()
        try:
            ran = await worker.solitude.run(
                source.name, partial(source.run_batch, worker), partial(source.last_chance_is_next, worker)
            )
        except errors.Unavailable as exc:
            log.warning("claim failed", extra={"kind": source.kind, "error": str(exc)})
            ran = Tally(pause=retry_policy.OUTAGE_PAUSE), True
        tally, is_more = ran or (Tally(), worker.is_stopping)
        batching.count(worker, source.kind, tally, started, shard=source.shard)
        finished += tally.done + tally.dead
    return finished, False


async def _may_claim(worker: Worker, source: Source) -> bool:
    """Wait where an outage has shut the gate for a moment; False where it or an operator's pause outlasts a shift.

    What waits is rung for again by the reconciler, so nothing is left behind by giving up.
    """
    wait = worker.gates.gate(source.kind, source.shard).wait(time.monotonic())
    if wait > SHIFT or (wait and source.shard is not None) or await worker.pauses.is_paused(source.kind):
        return False
    if wait:
        await worker.pause(wait)
    return not worker.is_stopping
