"""The store job: turns become episodes and follow-up jobs in one transaction; watermark and events come after it."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta

from aftermind import errors
from aftermind.db.protocol import Transaction
from aftermind.events.types import MemoryUpdateFailed
from aftermind.ledger.backoff import backoff
from aftermind.ledger.protocol import Failure, Tried
from aftermind.ranking import tokenizer
from aftermind.telemetry import tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, JobKind, Lease, Turn
from aftermind.types.tombstone import without_erased
from aftermind.wire.payloads import decode_owned_turn, encode_turn
from aftermind.wire.pending import ClaimedTurn
from aftermind_tasks import job_events, retry_policy, store_effects
from aftermind_tasks.job_outcomes import Dead, Done, Outcome, Retry, Snooze
from aftermind_tasks.job_runner import Tally
from aftermind_tasks.runtime import Runtime
from aftermind_tasks.turn_preparation import prepare

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """A pending turn to be dead-lettered: it cannot be read, or lost too many leases."""

    claimed: ClaimedTurn
    turn: Turn | None
    failure: Failure


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Store turns that the ledger accepted (`accept="postgres"`): their jobs close in the same transaction."""
    started = time.monotonic()
    turns = {lease.job.id: _decode_turn(lease) for lease in leases}
    with _traced(list(turns.values())):
        async with job_events.storing(runtime, list(turns.values())):
            prepared = await prepare(runtime, list(turns.values()))
            with tokenizer.indexed(prepared.terms):
                async with runtime.db.transaction(namespace=leases[0].job.scope.namespace) as tx:
                    held = await runtime.ledger.finish_all(tx, leases)
                    fresh = {turn.job_id: job_id for job_id, turn in turns.items() if job_id in held}
                    rest = [turns[job_id] for job_id in fresh.values()]
                    effects = await store_effects.write_under_locks(runtime, tx, rest, prepared, started, closed=fresh)
        await runtime.after_commit(effects.owners, effects.events, effects.ring)
    _observe(runtime, effects.turns)
    return {job_id: Done() for job_id in held}


def _decode_turn(lease: Lease) -> Turn:
    job = lease.job
    return decode_owned_turn(job.raw or b"", owner=job.scope, jobs=(job.id, job.origin_job_id))


async def store_pending(runtime: Runtime, claimed: Sequence[ClaimedTurn]) -> tuple[Tally, bool]:
    """Store turns that Redis accepted and clear them there; whether more of them could be claimed now.

    Never raises but for cancellation, which hands back what is not stored yet.
    """
    try:
        numbered = await _numbered(runtime, claimed)
        if numbered is None:
            return Tally(snoozed=len(claimed), pause=retry_policy.OUTAGE_PAUSE), True
        readable, hopeless = _sorted(numbered)
        tally = Tally()
        for each in hopeless:
            tally += await _mark_dead(runtime, each)
        if not readable:
            return tally, True
        last = largest_shares((one.owner.namespace, len(one.payload)) for one, _ in readable)
        parts = [
            [each for each in readable if (each[0].owner.namespace in last) is is_last] for is_last in (False, True)
        ]
        is_more = False
        for part in filter(None, parts):
            stored, is_more = await _store(runtime, part)
            tally += stored
        return tally, is_more
    except asyncio.CancelledError:
        await asyncio.shield(_release(runtime, claimed, after=timedelta(0), counts=False))
        raise


async def _numbered(runtime: Runtime, claimed: Sequence[ClaimedTurn]) -> Sequence[ClaimedTurn] | None:
    """The turns with the generation of those that came before this Redis heard of any; None: they were handed back."""
    if runtime.pending is None or not any(one.is_early for one in claimed):
        return claimed
    try:
        floor, last = await runtime.db.generation_floor(), await runtime.db.generation()
        _, begun = await runtime.pending.raise_generation(last, begun=floor)
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


def largest_shares(turns: Iterable[tuple[str, int]]) -> frozenset[str]:
    """Of turns of a batch, each with its namespace and size: namespaces with more than the mean share, or all if there
    are none.

    The others are committed before them, so that no small tenant's turn waits for a tenant that fills the batch.
    """
    sizes: Counter[str] = Counter()
    for namespace, size in turns:
        sizes[namespace] += size
    mean = sizes.total() / len(sizes)
    return frozenset(namespace for namespace, size in sizes.items() if size > mean) or frozenset(sizes)


async def _store(runtime: Runtime, claimed: Sequence[tuple[ClaimedTurn, Turn]]) -> tuple[Tally, bool]:
    """Commit all; where that is refused, halves, down to the turn that is bad. Whether more may wait."""
    started = time.monotonic()
    turns = [turn for _, turn in claimed]
    try:
        with _traced(turns):
            async with job_events.storing(runtime, turns):
                prepared = await prepare(runtime, turns)
                with tokenizer.indexed(prepared.terms):
                    effects = await store_effects.write(runtime, turns, prepared, started)
            ids = [turn.job_id for turn in turns]
            runnable = await runtime.after_commit(
                effects.owners, effects.events, effects.ring, settle=ids, watermark=effects.watermark
            )
    except errors.Unavailable as exc:
        pause = retry_policy.OUTAGE_PAUSE
        log.warning("turns wait", extra={"turns": len(claimed), "error": str(exc)})
        await _release(runtime, [one for one, _ in claimed], after=pause, counts=False)
        return Tally(snoozed=len(claimed), pause=pause), True
    except Exception as exc:  # the edge of a job: whatever it is, it is judged and recorded
        if len(claimed) > 1:
            middle = len(claimed) // 2
            halves = [await _store(runtime, half) for half in (claimed[:middle], claimed[middle:])]
            return sum((tally for tally, _ in halves), Tally()), True
        return await _judged(runtime, *claimed[0], exc), True
    _observe(runtime, effects.turns)
    # Later turns have their own doorbell, or a waiting one: another check would find nothing.
    return Tally(done=len(claimed)), runnable > 0


def _traced(turns: Sequence[Turn]) -> AbstractContextManager[None]:
    return tracing.continued("aftermind.store", [turn.trace for turn in turns], **{"aftermind.turns": len(turns)})


def _observe(runtime: Runtime, turns: Sequence[Turn]) -> None:
    now = runtime.clock.utc_now()
    for turn in turns:
        runtime.observer.fresh("stored", (now - turn.remembered_at).total_seconds())


async def _judged(runtime: Runtime, one: ClaimedTurn, turn: Turn, exc: Exception) -> Tally:
    outcome = retry_policy.judge(exc, attempts=one.attempts)
    ids = {"job_id": str(one.job_id), "namespace": turn.scope.namespace, "session_id": turn.scope.session_id}
    log.warning("turn not stored", extra={**ids, "error": retry_policy.to_failure(exc).error})
    if isinstance(outcome, Snooze):
        await _release(runtime, [one], after=outcome.after, counts=False)
        return Tally(snoozed=1, pause=outcome.after)
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
        await _release(runtime, [one], after=retry_policy.OUTAGE_PAUSE, counts=False)
        return Tally(snoozed=1, pause=retry_policy.OUTAGE_PAUSE)
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
        await runtime.pending.release(
            [one.job_id for one in claimed], token=claimed[0].token, after=after, counts=counts
        )
    except errors.RedisUnavailable as exc:
        log.warning("turns not handed back", extra={"turns": len(claimed), "error": str(exc)})
        runtime.returns.turns([one.job_id for one in claimed], claimed[0].token)
