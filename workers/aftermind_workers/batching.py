"""Batches: many jobs in one claim and one transaction, kept alive by heartbeats and settled together."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, JobKind, JobState, Lease, LeaseToken
from aftermind.wire import queues
from aftermind.wire.pending import ClaimedTurn, Pending
from aftermind.wire.redis_keys import LARGE_TURN_BYTES
from aftermind_tasks import job_handlers, per_tenant_batches, retry_policy, store
from aftermind_tasks.job_runner import Handler, Tally, perform
from aftermind_tasks.runtime import Runtime
from aftermind_workers import metrics
from aftermind_workers.fair_share import Hold
from aftermind_workers.lease_heartbeat import LostInOutageError, held
from aftermind_workers.lifecycle import PLACES_OF_BELL, Worker

log = get_logger(__name__)

WINDOW_SECONDS = 5.0  # time for which a doorbell claims and waits; longer jobs continue without it
POLL_SECONDS = 0.25  # between two claims of a process that found nothing, while its bells wait for running jobs

Ran = tuple[Tally, bool]  # how a batch ended, and whether more could be claimed; None instead: nothing could be claimed


async def store_pending_batch(worker: Worker, is_alone: bool, *, shard: int = 0) -> Ran | None:
    """Claim pending turns of a shard, up to a batch and fairest first, and store them.

    A namespace has its share of the process's batches, so that turns of others never wait until one of its ends.
    """
    runtime, places = worker.runtime, worker.store_places
    async with contextlib.AsyncExitStack() as until_stored:
        async with places.claiming:
            if runtime.pending is None or worker.is_stopping:
                return None
            if not places.free or places.full_namespaces() or worker.large_turn.locked():
                places.note_restricted()
            if not places.free:
                return None
            token, pending = LeaseToken(uuid4()), runtime.pending.shards[shard]
            claimed = await _claim_turns(worker, pending, token, is_alone)
            if not claimed:
                return None
            share = _Share(worker, ((turn.owner.namespace, len(turn.payload)) for turn in claimed))
            share.hold = until_stored.enter_context(places.hold(*share.charged()))
            if len(claimed[0].payload) > LARGE_TURN_BYTES and not worker.large_turn.locked():
                await until_stored.enter_async_context(worker.large_turn)
        return await _store_held(runtime, pending, token, claimed, share)


async def unclaimable_namespaces(worker: Worker, kind: JobKind, *, replays: bool = False) -> list[str]:
    """Namespaces that a claim of the kind skips now: paused by an operator, or with their share of the places."""
    places = None
    if kind is JobKind.STORE:
        places = worker.store_places
    elif job_handlers.handler(kind).at_once(worker.runtime.settings) == 1:
        places = worker.replay_places if replays else worker.live_places
    return [*(places.full_namespaces() if places else ()), *await worker.pauses.namespaces(kind)]


async def _claim_turns(worker: Worker, pending: Pending, token: LeaseToken, is_alone: bool) -> list[ClaimedTurn]:
    settings = worker.runtime.settings
    try:
        return await pending.claim(
            worker=worker.runtime.worker,
            token=token,
            for_=timedelta(seconds=settings.lease_seconds),
            turns=settings.store_batch_turns,
            size_bytes=settings.store_batch_bytes,
            max_lost=settings.max_lost_leases,
            alone=is_alone,
            large=not worker.large_turn.locked(),
            except_namespaces=await unclaimable_namespaces(worker, JobKind.STORE),
        )
    except errors.Unavailable:  # it may have been carried out
        worker.runtime.returns.claimed_turns(pending, token)
        raise


async def _claim_jobs(
    worker: Worker,
    kind: JobKind,
    *,
    limit: int,
    replays: bool,
    size_bytes: int | None = None,
    weight: int | None = None,
    alone: bool = False,
    full: Sequence[str] = (),
) -> list[Lease]:
    runtime, claim_id = worker.runtime, uuid4()
    excepted = [*full, *await worker.pauses.namespaces(kind)]
    try:
        return await runtime.ledger.claim(
            kind,
            worker=runtime.worker,
            for_=timedelta(seconds=runtime.settings.lease_seconds),
            limit=limit,
            size_bytes=size_bytes,
            weight=weight,
            replays=replays,
            alone=alone,
            except_namespaces=excepted,
            claim_id=claim_id,
        )
    except errors.Unavailable:  # as above
        runtime.returns.claim(claim_id, runtime.worker)
        raise


class _Share:
    """The namespaces of a batch that are not stored yet, which its place is counted for: the largest of them.

    So a namespace pays for the time that it takes, and not for that of others in its batches.
    """

    def __init__(self, worker: Worker, sizes: Iterable[tuple[str, int]]) -> None:
        self._worker, self._sizes = worker, Counter[str]()
        for namespace, size in sizes:
            self._sizes[namespace] += size
        self.hold: Hold | None = None

    def charged(self) -> frozenset[str]:
        """The namespaces that the place is counted for now."""
        return per_tenant_batches.largest_shares(self._sizes.items())

    def end(self, namespaces: Iterable[str]) -> None:
        """These namespaces are stored."""
        for each in namespaces:
            self._sizes.pop(each, None)
        if self._sizes and self.hold is not None:
            self.hold.charge(self.charged())
            if self._worker.store_places.take_repeat():
                _continue_aside(self._worker, ring_on(self._worker, queues.STORE))


async def _store_held(
    runtime: Runtime, pending: Pending, token: LeaseToken, claimed: list[ClaimedTurn], share: _Share
) -> Ran:
    settings = runtime.settings
    ids, lasts = [turn.job_id for turn in claimed], timedelta(seconds=settings.lease_seconds)

    async def renew() -> bool:
        if await pending.heartbeat(ids, token=token, for_=lasts):
            return True
        job = await runtime.ledger.job(ids[0])  # the running batch may have stored it, and reports it now
        return job is not None and job.state is JobState.DONE

    try:
        async with held(renew, job_id=ids[0], every=settings.heartbeat_seconds, lasts=settings.lease_seconds):
            return await store.store_pending(runtime, claimed, on_stored=share.end)
    except LostInOutageError:
        runtime.returns.turns(pending, ids, token)
        return Tally(snoozed=len(claimed), pause=retry_policy.OUTAGE_PAUSE), True
    except errors.LeaseLost:
        return Tally(lost=len(claimed)), True


async def run_ledger_batch(worker: Worker, handler: Handler, is_alone: bool, *, replays: bool) -> Ran | None:
    """Claim jobs of one kind from the ledger, live ones or what a replay put in, and run them.

    Jobs of handlers that take one at a time run side by side, `PLACES_OF_BELL` of each bell.
    """
    runtime = worker.runtime
    if worker.is_stopping:
        return None
    if handler.kind is JobKind.STORE:
        return await _run_store_batch(worker, handler, is_alone, replays=replays)
    limit = handler.at_once(runtime.settings)
    if limit == 1 and not is_alone:
        return await _Window(worker, handler, replays=replays).run()

    async def claim(left_out: Sequence[str]) -> list[Lease]:
        return await _claim_jobs(
            worker, handler.kind, limit=limit, weight=handler.weight, replays=replays, alone=is_alone, full=left_out
        )

    turns = worker.turns.setdefault((handler.kind, replays), per_tenant_batches.Turns(weight=handler.weight))
    leases, is_more = await turns.claim(claim)
    if not leases:
        return None
    return await _perform_held(worker, handler, leases), is_more or len(leases) == limit or _are_suspects(leases)


async def _run_store_batch(worker: Worker, handler: Handler, is_alone: bool, *, replays: bool) -> Ran | None:
    """Turns of the ledger, up to as many and as large as those of `store_pending_batch`, with the same shares."""
    settings, places = worker.runtime.settings, worker.store_places
    with contextlib.ExitStack() as until_stored:
        async with places.claiming:
            if worker.is_stopping:
                return None
            if not places.free or places.full_namespaces():
                places.note_restricted()
            if not places.free:
                return None
            leases = await _claim_jobs(
                worker,
                handler.kind,
                limit=handler.at_once(settings),
                size_bytes=settings.store_batch_bytes,
                replays=replays,
                alone=is_alone,
                full=places.full_namespaces(),
            )
            if not leases:
                return None
            share = _Share(worker, ((lease.job.scope.namespace, len(lease.job.raw or b"")) for lease in leases))
            share.hold = until_stored.enter_context(places.hold(*share.charged()))
        return await _perform_held(worker, handler, leases, on_part=share.end), True


class _Window:
    """Jobs of one doorbell that run one by one, `PLACES_OF_BELL` concurrently: each that ends makes space for the next.

    So a long job occupies one slot of a doorbell, and no other job waits for it.
    """

    def __init__(self, worker: Worker, handler: Handler, *, replays: bool) -> None:
        self._worker, self._handler, self._replays = worker, handler, replays
        self._places = worker.replay_places if replays else worker.live_places
        self._running: set[asyncio.Task[Tally]] = set()
        self._tally = Tally()
        self._is_more = False  # whether more jobs could be claimed, as far as the last claim shows
        self._over = time.monotonic() + WINDOW_SECONDS

    async def run(self) -> Ran | None:
        """How they ended, and whether more could be claimed; None if nothing could be claimed."""
        try:
            await self._claim()
            was_any = bool(self._running)
            while self._running and (self._worker.is_stopping or time.monotonic() < self._over):
                ended, _ = await asyncio.wait(self._running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._running -= ended
                self._tally = sum((task.result() for task in ended), self._tally)
                if self._is_more or time.monotonic() >= self._places.look_at:
                    await self._claim_more()
        except BaseException:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            raise
        for task in self._running:
            self._leave(task)
        return (self._tally, self._is_more or self._tally.pause is not None) if was_any else None

    async def _claim(self) -> None:
        """Claim and start as many jobs as there are free slots."""
        places = self._places
        async with places.claiming:
            if not places.free or places.full_namespaces():
                places.note_restricted()
            room = min(PLACES_OF_BELL - len(self._running), places.free)
            if room <= 0 or not self._may_claim():
                return
            leases = await _claim_jobs(
                self._worker, self._handler.kind, limit=room, replays=self._replays, full=places.full_namespaces()
            )
            for lease in leases:
                self._running.add(asyncio.create_task(self._run(lease)))
            await asyncio.sleep(0)  # each holds its place now
        self._is_more = len(leases) == room or (bool(leases) and _are_suspects(leases))
        if not self._is_more:
            places.look_at = time.monotonic() + POLL_SECONDS

    async def _claim_more(self) -> None:
        """Claim next to running jobs, which an outage of the ledger does not end: their answers are paid."""
        try:
            await self._claim()
        except errors.Unavailable as exc:
            log.warning("claim failed", extra={"kind": self._handler.kind, "error": str(exc)})
            self._tally += Tally(pause=retry_policy.OUTAGE_PAUSE)

    def _may_claim(self) -> bool:
        worker, now = self._worker, time.monotonic()
        is_paused = self._tally.pause is not None or worker.gates.gate(self._handler.kind).wait(now) > 0
        return not (worker.is_stopping or is_paused or worker.solitude.is_wanted or now > self._over)

    async def _run(self, lease: Lease) -> Tally:
        with self._worker.solitude.shared(), self._places.hold(lease.job.scope.namespace):
            return await _perform_held(self._worker, self._handler, [lease])

    def _leave(self, task: "asyncio.Task[Tally]") -> None:
        """Let a job continue without its doorbell."""
        started = time.monotonic()

        async def rest() -> None:
            count(self._worker, self._handler.kind, await task, started)
            if self._places.take_repeat():
                queue = queues.REPLAY if self._replays else queues.QUEUE_OF[self._handler.kind]
                await ring_on(self._worker, queue)

        _continue_aside(self._worker, rest())


def _continue_aside(worker: Worker, work: Coroutine[Any, Any, None]) -> None:
    """Work that outlasts its doorbell; the process waits for it when it stops."""
    leftover = asyncio.create_task(work)
    worker.leftover.add(leftover)
    leftover.add_done_callback(worker.leftover.discard)


async def ring_on(worker: Worker, queue: str) -> None:
    """One more bell for work that is left. If it cannot be sent, the reconciler sends one."""
    try:
        await worker.runtime.bells.ring(queue, [JobId(uuid4())])
    except errors.Unavailable as exc:
        log.warning("doorbell not sent", extra={"queue": queue, "error": str(exc)})


def count(worker: Worker, kind: JobKind, tally: Tally, started: float, *, shard: int | None = None) -> None:
    """Add jobs that ended to the metrics, and stop claiming their kind for the pause that an outage asked for."""
    counts = tally.counts()
    if counts:
        metrics.SECONDS.labels(kind=kind).observe(time.monotonic() - started)
        metrics.BATCH.labels(kind=kind).observe(sum(counts.values()))
    for outcome, number in counts.items():
        metrics.JOBS.labels(kind=kind, outcome=outcome).inc(number)
    if tally.pause is not None:
        worker.gates.gate(kind, shard).shut(time.monotonic(), tally.pause)
    elif tally.done:
        worker.gates.gate(kind, shard).opened()


async def _perform_held(
    worker: Worker, handler: Handler, leases: list[Lease], on_part: Callable[[Iterable[str]], None] | None = None
) -> Tally:
    runtime, settings = worker.runtime, worker.runtime.settings

    async def renew() -> bool:
        if await runtime.ledger.heartbeat(leases, for_=timedelta(seconds=settings.lease_seconds)):
            return True
        mine = leases[0].job
        job = await runtime.ledger.job(mine.id)  # the running batch may have closed it, and reports it now
        return job is not None and job.state is JobState.DONE and job.attempts == mine.attempts

    try:
        job_id, settings = leases[0].job.id, runtime.settings
        async with held(renew, job_id=job_id, every=settings.heartbeat_seconds, lasts=settings.lease_seconds):
            return await perform(runtime, handler, leases, on_part=on_part)
    except LostInOutageError:
        runtime.returns.jobs(leases)
        return Tally(snoozed=len(leases), pause=retry_policy.OUTAGE_PAUSE)
    except errors.LeaseLost:
        return Tally(lost=len(leases))


def _are_suspects(leases: list[Lease]) -> bool:
    """Jobs that have lost a lease are claimed in small batches, so a short batch does not mean that the queue
    is empty.
    """
    return leases[0].job.lost_leases > 0
