"""The store job: turns become episodes and follow-up jobs in one transaction; watermark and events come after it."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from uuid import UUID

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.events.types import MemoryUpdateFailed
from aftermind.ledger.backoff import backoff
from aftermind.ledger.protocol import Failure, Tried
from aftermind.ranking import tokenizer
from aftermind.telemetry import tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, JobKind, Lease, Turn
from aftermind.types.tombstone import without_erased
from aftermind.wire.pending import ClaimedTurn
from aftermind.wire.turn_encoding import decode_owned_turn, encode_turn
from aftermind_tasks import job_events, per_tenant_batches, retry_policy, store_turns
from aftermind_tasks.job_events import BatchStart
from aftermind_tasks.job_outcome_types import Dead, Done, Outcome, Retry, Snooze
from aftermind_tasks.job_runner import Tally, find_cause
from aftermind_tasks.runtime import Runtime
from aftermind_tasks.turn_preparation import Prepared, prepare

log = get_logger(__name__)

_Readable = tuple[ClaimedTurn, Turn]
OnStored = Callable[[Iterable[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """A pending turn to be dead-lettered: it cannot be read, or lost too many leases."""

    claimed: ClaimedTurn
    turn: Turn | None
    failure: Failure


async def split(runtime: Runtime, leases: Sequence[Lease]) -> dict[str, Sequence[Lease]]:
    """By tenant, the smallest first: a slow or refused one holds no other."""
    groups: dict[str, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.job.scope.namespace, []).append(lease)
    sizes = {name: sum(len(lease.job.raw or b"") for lease in group) for name, group in groups.items()}
    return {name: groups[name] for name in sorted(groups, key=sizes.__getitem__)}


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Store turns of one tenant that the ledger accepted (`accept="postgres"`): their jobs close in the same
    transaction.
    """
    start = BatchStart.now(runtime)
    turns = {lease.job.id: _decode_turn(lease) for lease in leases}
    with _traced(list(turns.values())):
        async with job_events.storing(runtime, list(turns.values()), start):
            prepared = await prepare(runtime, list(turns.values()))
            with tokenizer.indexed(prepared.terms):
                async with runtime.db.transaction(namespace=leases[0].job.scope.namespace) as tx:
                    held = await runtime.ledger.finish_all(tx, leases)
                    fresh = {turn.job_id: job_id for job_id, turn in turns.items() if job_id in held}
                    rest = [turns[job_id] for job_id in fresh.values()]
                    effects = await store_turns.write_under_locks(runtime, tx, rest, prepared, start, closed=fresh)
        await runtime.after_commit(effects.owners, effects.events, effects.ring)
    _observe(runtime, effects.turns)
    return {job_id: Done() for job_id in held}


def _decode_turn(lease: Lease) -> Turn:
    job = lease.job
    jobs = {job.id, job.origin_job_id}
    with suppress(ValueError):  # the first job's id: a turn that is retried twice has neither of the others
        jobs.add(JobId(UUID(job.effect_key.partition("#")[0])))
    is_replay = job.origin_job_id is not None
    return decode_owned_turn(
        job.raw or b"", owner=job.scope, jobs=jobs, accepted_at=job.created_at, is_replay=is_replay
    )


async def store_pending(
    runtime: Runtime, claimed: Sequence[ClaimedTurn], *, on_stored: OnStored | None = None
) -> tuple[Tally, bool]:
    """Store turns that Redis accepted and clear them there; whether more of them could be claimed now.

    `on_stored` is called with the namespaces whose turns are stored and cleared while those of others are not.
    Never raises but for cancellation, which hands back what is not stored yet.
    """
    try:
        return await _store_claimed(runtime, claimed, on_stored)
    except asyncio.CancelledError:
        await asyncio.shield(_release(runtime, claimed, after=timedelta(0), counts=False))
        raise
    except Exception:  # the edge of a batch: leases that run out would count against turns that did nothing
        log.exception("turns not stored", extra={"turns": len(claimed)})
        await _release(runtime, claimed, after=retry_policy.OUTAGE_PAUSE, counts=False)
        return Tally(snoozed=len(claimed)), True


async def _store_claimed(
    runtime: Runtime, claimed: Sequence[ClaimedTurn], on_stored: OnStored | None
) -> tuple[Tally, bool]:
    numbered = await _numbered(runtime, claimed)
    if numbered is None:
        return Tally(snoozed=len(claimed), pause=retry_policy.OUTAGE_PAUSE), True
    readable, hopeless = _sorted(numbered)
    tally = Tally()
    for each in hopeless:
        tally += await _mark_dead(runtime, each)
    if not readable:
        return tally, True
    last = per_tenant_batches.largest_shares((one.owner.namespace, len(one.payload)) for one, _ in readable)
    parts = {
        name: [each for each in readable if (each[0].owner.namespace in last) is is_last]
        for name, is_last in (("small", False), ("large", True))
    }
    is_more = False

    async def add(results: Mapping[str, tuple[Tally, bool] | Exception]) -> None:
        nonlocal tally, is_more
        for result in results.values():
            if isinstance(result, Exception):
                raise result
            tally, is_more = tally + result[0], is_more or result[1]

    works = {name: partial(_store, runtime, part, on_stored) for name, part in parts.items() if part}
    await per_tenant_batches.run_each(works, add)
    return tally, is_more


async def _numbered(runtime: Runtime, claimed: Sequence[ClaimedTurn]) -> Sequence[ClaimedTurn] | None:
    """The turns with the generation of those that came before this Redis heard of any; None: they were handed back."""
    if runtime.pending is None or not any(one.is_early for one in claimed):
        return claimed
    try:
        floor, last = await runtime.db.generation_floor(), await runtime.db.generation()
        _, begun = await runtime.pending.shard_of(claimed[0].owner).raise_generation(last, begun=floor)
    except errors.Unavailable as exc:
        log.warning("turns wait for their generation", extra={"turns": len(claimed), "error": str(exc)})
        await _release(runtime, claimed, after=retry_policy.OUTAGE_PAUSE, counts=False)
        return None
    return [replace(one, generation=begun) if one.is_early else one for one in claimed]


def _sorted(claimed: Sequence[ClaimedTurn]) -> tuple[list[tuple[ClaimedTurn, Turn]], list[Hopeless]]:
    readable: list[tuple[ClaimedTurn, Turn]] = []
    hopeless: list[Hopeless] = []
    for one in claimed:
        try:
            turn = one.turn()
        except (errors.UnknownPayload, errors.ForeignPayload) as exc:
            hopeless.append(Hopeless(claimed=one, turn=None, failure=retry_policy.to_failure(exc)))
            continue
        if one.poison:
            hopeless.append(Hopeless(claimed=one, turn=turn, failure=retry_policy.worker_lost(one.lost_leases)))
        else:
            readable.append((one, turn))
    return readable, hopeless


async def _store(
    runtime: Runtime, claimed: Sequence[_Readable], on_stored: OnStored | None = None
) -> tuple[Tally, bool]:
    """Commit the turns of each tenant; where that is refused, halves of the tenant's, down to the turn that is bad.

    Whether more may wait.
    """
    batch = _Batch(runtime, claimed, on_stored)
    failed = await batch.store()
    tally, is_more = Tally(done=batch.done), bool(failed) or batch.runnable > 0
    for namespace, error in failed.items():
        tally += await _refused(runtime, batch.groups[namespace], error)
    # Later turns have their own doorbell, or a waiting one: another check would find nothing.
    return tally, is_more


class _Batch:
    """Turns that are prepared together and committed tenant by tenant."""

    def __init__(self, runtime: Runtime, claimed: Sequence[_Readable], on_stored: OnStored | None = None) -> None:
        self._on_stored = on_stored
        self._runtime, self._turns, self._start = runtime, [turn for _, turn in claimed], BatchStart.now(runtime)
        self.groups: dict[str, list[_Readable]] = {}
        for one, turn in claimed:
            self.groups.setdefault(turn.scope.namespace, []).append((one, turn))
        self.done, self.runnable = 0, 0
        self._failed: dict[str, Exception] = {}

    async def store(self) -> Mapping[str, Exception]:
        """Commit and settle them; returns by namespace why a tenant's turns were not."""
        runtime, turns = self._runtime, self._turns
        try:
            with _traced(turns):
                async with job_events.storing(runtime, turns, self._start):
                    prepared = await prepare(runtime, turns)
                    with tokenizer.indexed(prepared.terms):
                        works = {name: partial(self._write, name, prepared) for name in sorted(self.groups)}
                        await per_tenant_batches.run_each(works, self._settle)
        except Exception as exc:  # the edge of a job: whatever it is, it is judged and recorded
            self._failed |= dict.fromkeys(self.groups, exc)
        return self._failed

    async def _write(self, namespace: str, prepared: Prepared) -> store_turns.Effects:
        turns = [turn for _, turn in self.groups[namespace]]
        return await store_turns.write(self._runtime, turns, prepared, self._start)

    async def _settle(self, results: Mapping[str, store_turns.Effects | Exception]) -> None:
        """What follows the commits of tenants: for all together, and if that fails for each alone."""
        self._failed |= {name: result for name, result in results.items() if isinstance(result, Exception)}
        written = {name: result for name, result in results.items() if not isinstance(result, Exception)}
        if not written:
            return
        effects = store_turns.Effects.of(list(written.values()))
        ids = [turn.job_id for name in written for _, turn in self.groups[name]]
        try:
            for stone in effects.erased:  # Redis counted a turn that came late, under keys with the owner's name
                if self._runtime.pending is not None:
                    await self._runtime.pending.forget(stone)
            self.runnable = await self._runtime.after_commit(
                effects.owners, effects.events, effects.ring, settle=ids, watermark=effects.watermark
            )
        except Exception as exc:  # as above
            if len(written) == 1 or isinstance(exc, errors.Unavailable):
                self._failed |= dict.fromkeys(written, exc)
                return
            for name, result in written.items():
                await self._settle({name: result})
            return
        await self._note_lost_leases(written)
        self.done += len(ids)
        if self._on_stored is not None:
            self._on_stored(written)
        _observe(self._runtime, effects.turns)

    async def _note_lost_leases(self, written: Mapping[str, store_turns.Effects]) -> None:
        """Leases that workers lost with these turns, which only Redis has counted: of those that were stored."""
        for name in written:
            lost = {
                turn.job_id: Tried(
                    attempts=one.attempts, lost_leases=one.lost_leases, worker=one.former_worker, since=one.accepted_at
                )
                for one, turn in self.groups[name]
                if one.lost_leases
            }
            if lost:
                self._runtime.observer.leases_lost(sum(each.lost_leases for each in lost.values()))
                with suppress(errors.AftermindError):  # the turns are stored, and this is a note
                    async with self._runtime.db.transaction(namespace=name) as tx:
                        await self._runtime.ledger.note_lost_leases(tx, lost)


async def _refused(runtime: Runtime, claimed: Sequence[_Readable], error: Exception) -> Tally:
    """Turns of one tenant that were not stored: they wait if none can be stored, else the bad one is searched."""
    outcome = retry_policy.judge(await find_cause(runtime, error))
    if isinstance(outcome, Snooze):
        log.warning("turns wait", extra={"turns": len(claimed), "error": str(error)})
        await _release(runtime, [one for one, _ in claimed], after=outcome.after, counts=False)
        return Tally(snoozed=len(claimed), pause=None if outcome.is_own else outcome.after)
    if len(claimed) == 1:
        return await _judged(runtime, *claimed[0], error)
    middle = len(claimed) // 2
    halves = [await _store(runtime, half) for half in (claimed[:middle], claimed[middle:])]
    return sum((tally for tally, _ in halves), Tally())


def _traced(turns: Sequence[Turn]) -> AbstractContextManager[None]:
    return tracing.continued("aftermind.store", [turn.trace for turn in turns], **{"aftermind.turns": len(turns)})


def _observe(runtime: Runtime, turns: Sequence[Turn]) -> None:
    now = runtime.clock.utc_now()
    for turn in turns:
        runtime.observer.fresh("stored", (now - turn.remembered_at).total_seconds())


async def _judged(runtime: Runtime, one: ClaimedTurn, turn: Turn, exc: Exception) -> Tally:
    """One turn failed, and that is its own fault."""
    outcome = retry_policy.judge(exc)
    ids = {"job_id": str(one.job_id), "namespace": turn.scope.namespace, "session_id": turn.scope.session_id}
    log.warning("turn not stored", extra={**ids, "error": retry_policy.to_failure(exc).error})
    failure = outcome.failure if isinstance(outcome, Retry | Dead) else retry_policy.to_failure(exc)
    if isinstance(outcome, Dead) or one.attempts >= runtime.settings.max_attempts:
        return await _mark_dead(runtime, Hopeless(claimed=one, turn=turn, failure=failure))
    runtime.observer.failed(JobKind.STORE, failure.reason_code)
    settings = runtime.settings
    wait = backoff(
        one.attempts,
        base=timedelta(seconds=settings.backoff_base_seconds),
        cap=timedelta(seconds=settings.backoff_cap_seconds),
        random=random.random,
    )
    await _release(runtime, [one], after=wait, counts=True)
    return Tally(retried=1)


async def _mark_dead(runtime: Runtime, hopeless: Hopeless) -> Tally:
    """The dead letter with its payload is committed first; then, and only then, pending is cleared.

    What was forgotten while a worker held it is in no dead letter: the tombstones are read under the owner's lock.
    """
    one, failure = hopeless.claimed, hopeless.failure
    event = MemoryUpdateFailed(
        id=f"{one.job_id}:dead:{one.attempts}",
        scope=one.owner,
        at=runtime.clock.utc_now(),
        job_id=str(one.job_id),
        kind=JobKind.STORE.value,
        error=failure.error,
        attempts=one.attempts,
        dead_letter_id=str(one.job_id),
    )
    try:
        async with runtime.db.transaction(namespace=one.owner.namespace) as tx:
            payload = await _not_forgotten(runtime, tx, hopeless)
            if payload is None:
                await runtime.ledger.record_forgotten(tx, one.owner, [one.job_id])
            is_buried = payload is not None and await runtime.ledger.dead_letter_turn(
                tx, one.job_id, one.owner, payload, failure, tried=_tried(runtime, one)
            )
            events = await runtime.events.append(tx, [event]) if is_buried else []
        await runtime.after_commit({one.owner}, events, {}, settle=[one.job_id])
    except errors.Unavailable as exc:
        log.warning("turn not dead-lettered", extra={"job_id": str(one.job_id), "error": str(exc)})
        is_own = isinstance(await find_cause(runtime, exc), errors.StatementAborted)
        await _release(runtime, [one], after=retry_policy.OUTAGE_PAUSE, counts=False)
        return Tally(snoozed=1, pause=None if is_own else retry_policy.OUTAGE_PAUSE)
    if payload is None:
        return Tally(done=1)
    runtime.observer.on_dead_letter(one, failure.reason_code)
    ids = {"job_id": str(one.job_id), "namespace": one.owner.namespace}
    log.error("turn dead-lettered", extra={**ids, "reason": failure.reason_code})
    return Tally(dead=1)


def _tried(runtime: Runtime, one: ClaimedTurn) -> Tried:
    lost = min(one.lost_leases, one.attempts)
    return Tried(attempts=one.attempts, lost_leases=lost, worker=runtime.worker, since=one.accepted_at)


async def _not_forgotten(runtime: Runtime, tx: Transaction, hopeless: Hopeless) -> bytes | None:
    """The payload without forgotten content; None if nothing is left. An unreadable one is kept unchanged."""
    stones = await runtime.store.tombstones(tx, [hopeless.claimed.owner])
    turn = hopeless.turn
    if turn is None:
        return hopeless.claimed.payload
    rest = without_erased(turn, stones)
    return hopeless.claimed.payload if rest is turn else None if rest is None else encode_turn(rest)


async def _release(runtime: Runtime, claimed: Sequence[ClaimedTurn], *, after: timedelta, counts: bool) -> None:
    if runtime.pending is None or not claimed:
        return
    try:
        await runtime.pending.shard_of(claimed[0].owner).release(
            [one.job_id for one in claimed], token=claimed[0].token, after=after, counts=counts
        )
    except errors.RedisUnavailable as exc:
        log.warning("turns not handed back", extra={"turns": len(claimed), "error": str(exc)})
        runtime.returns.turns(
            runtime.pending.shard_of(claimed[0].owner), [one.job_id for one in claimed], claimed[0].token
        )
