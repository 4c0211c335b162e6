"""Events of jobs: started, completed, failed, for every kind."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.events.types import MemoryUpdateCompleted, MemoryUpdateFailed, MemoryUpdateStarted
from aftermind.ledger.protocol import Failure
from aftermind.telemetry.logger import get_logger
from aftermind.types import Job, JobKind, Lease, Turn
from aftermind.types.job import MODEL_KINDS
from aftermind_tasks.runtime import Runtime

log = get_logger(__name__)

EARLY_SECONDS = 0.05  # a store that has not committed by then is announced live; most have, and pay nothing for it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStart:
    """When work on a batch of turns began: its events are dated from it, so that a start never follows its end."""

    at: datetime
    monotonic: float

    @classmethod
    def now(cls, runtime: Runtime) -> "BatchStart":
        """The present moment."""
        return cls(at=runtime.clock.utc_now(), monotonic=time.monotonic())

    def elapsed(self) -> timedelta:
        """Time since then, whatever the wall clock did."""
        return timedelta(seconds=time.monotonic() - self.monotonic)


async def started(runtime: Runtime, leases: Sequence[Lease]) -> None:
    """Commit and publish that these jobs have begun, where they ask a model. Best effort: the work begins anyhow.

    A separate row costs nothing next to a model call. The start of a store is a row of its effect.
    """
    asking = [lease for lease in leases if lease.job.kind in MODEL_KINDS]
    if not asking:
        return
    now = runtime.clock.utc_now()
    try:
        namespaces = {lease.job.scope.namespace for lease in asking}
        async with runtime.db.transaction(namespace=min(namespaces)) as tx:
            held = await runtime.ledger.hold(tx, asking)  # of a user who was forgotten since, nothing is kept
            events = await runtime.events.append(
                tx,
                [
                    MemoryUpdateStarted(
                        id=f"{job.id}:started:{job.attempts}",
                        scope=job.scope,
                        at=now,
                        job_id=str(job.id),
                        kind=job.kind.value,
                    )
                    for job in (lease.job for lease in asking)
                    if job.id in held
                ],
            )
        await runtime.events.publish(events)
    except errors.Unavailable as exc:  # a row that was committed is published by the relay
        log.warning("start not announced", extra={"jobs": len(asking), "error": str(exc)})


@asynccontextmanager
async def storing(runtime: Runtime, turns: Sequence[Turn], start: BatchStart) -> AsyncIterator[None]:
    """Publish live that turns are being stored, where the block takes longer than `EARLY_SECONDS`."""
    telling = asyncio.create_task(_late(runtime, turns, start))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _late(runtime: Runtime, turns: Sequence[Turn], start: BatchStart) -> None:
    await asyncio.sleep(EARLY_SECONDS)
    with suppress(errors.Unavailable):
        await runtime.events.publish([store_started(turn, start) for turn in turns])


def store_started(turn: Turn, start: BatchStart) -> MemoryUpdateStarted:
    """That a turn is being stored; live and in the record the same event."""
    job, count = str(turn.job_id), len(turn.messages)
    return MemoryUpdateStarted(id=f"{job}:started", scope=turn.scope, at=start.at, job_id=job, message_count=count)


def store_completed(turn: Turn, start: BatchStart) -> MemoryUpdateCompleted:
    """That a turn is stored, by the transaction that records it."""
    job, elapsed = str(turn.job_id), start.elapsed()
    return MemoryUpdateCompleted(
        id=f"{job}:completed",
        scope=turn.scope,
        at=start.at + elapsed,
        job_id=job,
        message_count=len(turn.messages),
        duration_ms=elapsed.total_seconds() * 1_000,
    )


def completed(runtime: Runtime, job: Job) -> MemoryUpdateCompleted:
    """Completion of a job whose kind has no specific event."""
    return MemoryUpdateCompleted(
        id=f"{job.id}:completed:{job.attempts}",
        scope=job.scope,
        at=runtime.clock.utc_now(),
        job_id=str(job.id),
        kind=job.kind.value,
    )


def failed(runtime: Runtime, job: Job, failure: Failure) -> MemoryUpdateFailed:
    """That a job is a dead letter."""
    return MemoryUpdateFailed(
        id=f"{job.id}:dead:{job.attempts}",
        scope=job.scope,
        at=runtime.clock.utc_now(),
        job_id=str(job.id),
        kind=job.kind.value,
        error=failure.error,
        attempts=job.attempts,
        dead_letter_id=str(job.id),
    )


async def expire_leases(runtime: Runtime) -> Counter[JobKind]:
    """Hand on jobs whose lease ran out; those that lost too many are dead letters, with their event; how many of each
    kind.
    """

    async def announce(tx: Transaction, buried: Sequence[tuple[Job, Failure]]) -> None:
        await runtime.events.append(tx, [failed(runtime, job, failure) for job, failure in buried])

    return await runtime.ledger.expire_leases(on_buried=announce)
