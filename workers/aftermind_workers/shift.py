"""What one bell makes a worker do: claim and run, until nothing is left or the shift is over."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

from aftermind import errors
from aftermind.types import JobId, JobKind
from aftermind.wire import queues
from aftermind_tasks import registry, verdicts
from aftermind_tasks.perform import Tally
from aftermind_workers import batching, metrics
from aftermind_workers.lifecycle import Worker

log = logging.getLogger(__name__)

SHIFT = 5.0  # seconds of one bell; then the worker rings on, so that every bell waiting gets its turn and SIGTERM too

Step = Callable[[Worker], Awaitable[tuple[Tally, bool]]]  # what became of a batch, and whether there may be more


def _ledger_step(kind: JobKind, *, replays: bool = False) -> Step:
    async def step(worker: Worker) -> tuple[Tally, bool]:
        return await batching.ledger_batch(worker, registry.handler(kind), replays=replays)

    return step


def _steps(queue: str) -> tuple[tuple[JobKind, Step], ...]:
    if queue == queues.REPLAY:  # every kind, and of each only what a plan brought back
        return tuple((kind, _ledger_step(kind, replays=True)) for kind in registry.KINDS)
    live = tuple((kind, _ledger_step(kind)) for kind in registry.KINDS if queues.QUEUE_OF[kind] == queue)
    return ((JobKind.STORE, batching.pending_batch), *live) if queue == queues.STORE else live


# Pending turns first: what Redis accepted outnumbers what the ledger accepted, which is asked once a bell.
STEPS: Mapping[str, tuple[tuple[JobKind, Step], ...]] = {queue: _steps(queue) for queue in queues.QUEUES}


async def serve(worker: Worker, queue: str) -> int:
    """Do the queue's work; how many jobs were finished. Rings on where the shift ends with work left."""
    over = time.monotonic() + SHIFT
    finished = 0
    for kind, step in STEPS[queue]:
        count, is_more = await _drain(worker, kind, step, over)
        finished += count
        if is_more:
            await ring_on(worker, queue)
            break
    return finished


async def _drain(worker: Worker, kind: JobKind, step: Step, over: float) -> tuple[int, bool]:
    """Batches of one kind, one after the other; how many jobs, and whether there is more."""
    finished = 0
    is_more = True
    while is_more:
        if worker.is_stopping or time.monotonic() > over:
            return finished, True
        if not await _may_claim(worker, kind):
            return finished, False
        tally, is_more = await _counted(worker, kind, step)
        finished += tally.done + tally.dead
        if tally.pause is not None:
            worker.gates.gate(kind).shut(time.monotonic(), tally.pause)
        elif tally.done:
            worker.gates.gate(kind).opened()
    return finished, False


async def _counted(worker: Worker, kind: JobKind, step: Step) -> tuple[Tally, bool]:
    started = time.monotonic()
    try:
        tally, is_more = await step(worker)
    except errors.Unavailable as exc:
        log.warning("claim failed", extra={"kind": kind, "error": str(exc)})
        return Tally(pause=verdicts.OUTAGE_PAUSE), True
    counts = tally.counts()
    if counts:
        metrics.SECONDS.labels(kind=kind).observe(time.monotonic() - started)
        metrics.BATCH.labels(kind=kind).observe(sum(counts.values()))
    for outcome, count in counts.items():
        metrics.JOBS.labels(kind=kind, outcome=outcome).inc(count)
    return tally, is_more


async def _may_claim(worker: Worker, kind: JobKind) -> bool:
    """Wait where an outage has shut the gate for a moment; False where the pause outlasts a shift.

    What waits is rung for again by the reconciler, so nothing is left behind by giving up.
    """
    wait = worker.gates.gate(kind).wait(time.monotonic())
    if wait > SHIFT:
        return False
    if wait:
        await worker.pause(wait)
    return not worker.is_stopping


async def ring_on(worker: Worker, queue: str) -> None:
    """One more bell for work that is left. Where it cannot be rung, the reconciler will."""
    try:
        await worker.runtime.bells.ring(queue, [JobId(uuid4())])
    except errors.Unavailable as exc:
        log.warning("bell not rung", extra={"queue": queue, "error": str(exc)})
