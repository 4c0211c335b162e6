"""Many jobs, one claim, one transaction: a batch taken, held by heartbeat while it runs, and closed."""

import asyncio
from datetime import timedelta
from uuid import uuid4

from aftermind import errors
from aftermind.types import JobState, Lease, LeaseToken
from aftermind.wire.keys import LARGE_TURN_BYTES
from aftermind.wire.pending import ClaimedTurn, Pending
from aftermind_tasks import store, verdicts
from aftermind_tasks.perform import Handler, Tally, perform
from aftermind_workers.lease import LostInOutageError, while_held
from aftermind_workers.lifecycle import Worker

AT_ONCE = 4  # leases of one-job handlers that one bell runs side by side: they wait for models, not for each other


async def pending_batch(worker: Worker) -> tuple[Tally, bool]:
    """Store what is pending: up to a batch of turns, fairest first. Whether more could be claimed."""
    pending, most = worker.runtime.pending, worker.runtime.settings.max_lost_leases
    if pending is None:
        return Tally(), False
    done = await worker.solitude.run(
        "pending",
        lambda alone: _pending_batch(worker, pending, alone=alone),
        lambda: pending.last_chance_is_next(max_lost=most),
    )
    return done or (Tally(), worker.is_stopping)


async def ledger_batch(worker: Worker, handler: Handler, *, replays: bool = False) -> tuple[Tally, bool]:
    """Run a batch of one kind from the ledger: live work, or what a replay put in. Whether more could be claimed.

    Handlers that take one job at a time run `AT_ONCE` side by side.
    """
    ledger = worker.runtime.ledger
    done = await worker.solitude.run(
        f"{handler.kind} {replays}",
        lambda alone: _ledger_batch(worker, handler, replays=replays, alone=alone),
        lambda: ledger.last_chance_is_next(handler.kind, replays=replays),
    )
    return done or (Tally(), worker.is_stopping)


async def _pending_batch(worker: Worker, pending: Pending, *, alone: bool) -> tuple[Tally, bool] | None:
    runtime, settings = worker.runtime, worker.runtime.settings
    if worker.is_stopping:
        return None
    may_take_large = not worker.large_turn.locked()
    if may_take_large:
        await worker.large_turn.acquire()
    try:
        token = LeaseToken(uuid4())
        claimed = await pending.claim(
            worker=runtime.worker,
            token=token,
            for_=timedelta(seconds=settings.lease_seconds),
            turns=settings.store_batch_turns,
            size_bytes=settings.store_batch_bytes,
            max_lost=settings.max_lost_leases,
            alone=alone,
            large=may_take_large,
        )
        if may_take_large and not (claimed and len(claimed[0].payload) > LARGE_TURN_BYTES):
            worker.large_turn.release()
            may_take_large = False
        return await _store_claimed(worker, pending, claimed, token) if claimed else None
    finally:
        if may_take_large:
            worker.large_turn.release()


async def _store_claimed(
    worker: Worker, pending: Pending, claimed: list[ClaimedTurn], token: LeaseToken
) -> tuple[Tally, bool]:
    runtime, settings = worker.runtime, worker.runtime.settings
    lasts = timedelta(seconds=settings.lease_seconds)
    ids = [turn.job_id for turn in claimed]

    async def renew() -> bool:
        if await pending.heartbeat(ids, token=token, for_=lasts):
            return True
        job = await runtime.ledger.job(ids[0])  # the work itself may have stored it, and tells of it now
        return job is not None and job.state is JobState.DONE

    try:
        return await while_held(
            store.store_pending(runtime, claimed),
            renew,
            job_id=ids[0],
            every=settings.heartbeat_seconds,
            lasts=settings.lease_seconds,
        )
    except LostInOutageError:
        runtime.returns.turns(ids, token)
        return Tally(snoozed=len(claimed), pause=verdicts.OUTAGE_PAUSE), True
    except errors.LeaseLost:
        return Tally(lost=len(claimed)), True


async def _ledger_batch(worker: Worker, handler: Handler, *, replays: bool, alone: bool) -> tuple[Tally, bool] | None:
    runtime = worker.runtime
    if worker.is_stopping:
        return None
    at_once = handler.at_once(runtime.settings)
    limit = at_once if at_once > 1 else AT_ONCE
    lasts = timedelta(seconds=runtime.settings.lease_seconds)
    leases = await runtime.ledger.claim(
        handler.kind, worker=runtime.worker, for_=lasts, limit=limit, replays=replays, alone=alone
    )
    if not leases:
        return None
    parts = [leases] if at_once > 1 else [[lease] for lease in leases]
    tallies = await asyncio.gather(*(_held(worker, handler, part) for part in parts))
    return sum(tallies, Tally()), len(leases) == limit or _are_suspects(leases)


async def _held(worker: Worker, handler: Handler, leases: list[Lease]) -> Tally:
    runtime, settings = worker.runtime, worker.runtime.settings

    async def renew() -> bool:
        if await runtime.ledger.heartbeat(leases, for_=timedelta(seconds=settings.lease_seconds)):
            return True
        mine = leases[0].job
        job = await runtime.ledger.job(mine.id)  # the work itself may have closed it, and tells of it now
        return job is not None and job.state is JobState.DONE and job.attempts == mine.attempts

    try:
        return await while_held(
            perform(runtime, handler, leases),
            renew,
            job_id=leases[0].job.id,
            every=settings.heartbeat_seconds,
            lasts=settings.lease_seconds,
        )
    except LostInOutageError:
        runtime.returns.jobs(leases)
        return Tally(snoozed=len(leases), pause=verdicts.OUTAGE_PAUSE)
    except errors.LeaseLost:
        return Tally(lost=len(leases))


def _are_suspects(leases: list[Lease]) -> bool:
    """Jobs that have lost a lease are claimed few at once, so a short batch does not mean that nothing is left."""
    return leases[0].job.lost_leases > 0
