"""Runs a batch of leases: perform, decide the outcome, record it. Called by the claiming code."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from aftermind import errors
from aftermind.ledger.backoff import backoff
from aftermind.ledger.replay_overrides import has_options
from aftermind.settings import Settings
from aftermind.telemetry import log_format, tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, JobKind, JobState, Lease
from aftermind.types.job import failed_state
from aftermind_tasks import extraction_call, job_events, per_tenant_batches, retry_policy
from aftermind_tasks.job_outcome_types import Dead, Done, Outcome, Retry, Snooze
from aftermind_tasks.runtime import Runtime

log = get_logger(__name__)
Outcomes = Mapping[JobId, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """What runs a kind of job.

    `run` gets at most `at_once` leases and answers for each; the jobs it answers `Done` for it has closed itself, in
    the transaction of their effect. What it raises is judged for all of them, after a batch has been halved to find
    the one that is bad; of `SomeFailed` for those that it names. `deadline` bounds a run, in seconds. `split` divides a
    batch into parts, each with a name, that are run and judged apart. `weight` is that of one claim: see
    `Ledger.claim`.
    """

    kind: JobKind
    run: Callable[[Runtime, Sequence[Lease]], Awaitable[Outcomes]]
    at_once: Callable[[Settings], int]
    deadline: Callable[[Settings], float]
    split: Callable[[Runtime, Sequence[Lease]], Awaitable[Mapping[str, Sequence[Lease]]]] | None = None
    weight: int | None = None


class SomeFailed(Exception):
    """A run has an outcome for some of its jobs (`done`) and failed for the rest, for the reason `error`."""

    def __init__(self, done: Outcomes, error: Exception) -> None:
        self.done, self.error = done, error
        super().__init__(str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How a batch ended. `pause` is the longest wait that an outage asked for, None where there was none."""

    done: int = 0
    retried: int = 0
    snoozed: int = 0
    dead: int = 0
    lost: int = 0
    pause: timedelta | None = None

    def __add__(self, other: "Tally") -> "Tally":
        pauses = [pause for pause in (self.pause, other.pause) if pause is not None]
        return Tally(
            done=self.done + other.done,
            retried=self.retried + other.retried,
            snoozed=self.snoozed + other.snoozed,
            dead=self.dead + other.dead,
            lost=self.lost + other.lost,
            pause=max(pauses, default=None),
        )

    def counts(self) -> Mapping[str, int]:
        """By outcome, without the zeros."""
        named = {"done": self.done, "retried": self.retried, "snoozed": self.snoozed}
        named |= {"dead": self.dead, "lost": self.lost}
        return {name: count for name, count in named.items() if count}


async def perform(
    runtime: Runtime,
    handler: Handler,
    leases: Sequence[Lease],
    *,
    on_part: Callable[[Iterable[str]], None] | None = None,
) -> Tally:
    """Run the handler on leases and write each outcome down. Raises nothing but cancellation, which hands them back.

    `on_part` is called with the names of the parts (`Handler.split`) that have ended while others run.
    """
    try:
        await job_events.started(runtime, leases)
        with (
            log_format.bound(kind=handler.kind, **_ids(leases)),
            tracing.continued(f"aftermind.{handler.kind}", _traces(leases), **{"aftermind.jobs": len(leases)}),
        ):
            outcomes = await _all_outcomes(runtime, handler, leases, on_part)
    except asyncio.CancelledError:
        await _hand_back(runtime, leases)
        raise
    tally = Tally()
    for lease in leases:
        tally += await _record(runtime, lease, outcomes.get(lease.job.id))
    return tally


def _ids(leases: Sequence[Lease]) -> Mapping[str, str | None]:
    """Whose lines these are, as far as the batch is one's."""
    scopes = {lease.job.scope for lease in leases}
    if len(scopes) > 1:
        return {}
    scope = scopes.pop()
    job_id = str(leases[0].job.id) if len(leases) == 1 else None
    return {"job_id": job_id, "namespace": scope.namespace, "session_id": scope.session_id}


def _traces(leases: Sequence[Lease]) -> list[str | None]:
    found = (lease.job.payload.get(tracing.KEY) for lease in leases)
    return [each if isinstance(each, str) else None for each in found]


async def find_cause(runtime: Runtime, error: Exception) -> Exception:
    """The error by which a job is judged: an aborted statement is an outage where the store takes no writes at all."""
    if isinstance(error, errors.StatementAborted) and not await runtime.db.takes_writes():
        return errors.StoreUnavailable(error.what, f"it takes no writes: {error.why}")
    return error


async def _all_outcomes(
    runtime: Runtime, handler: Handler, leases: Sequence[Lease], on_part: Callable[[Iterable[str]], None] | None
) -> Outcomes:
    """Of a batch whose jobs are of one tenant, or that is not divided, else of its parts."""
    if handler.split is None or len(_namespaces(leases)) == 1:
        return await _outcomes(runtime, handler, leases)
    try:
        parts = await handler.split(runtime, leases)
    except Exception as exc:  # as below
        return await _judged(runtime, handler, leases, exc)
    found: dict[JobId, Outcome] = {}

    async def add(outcomes: Mapping[str, Outcomes | Exception]) -> None:
        for of_part in outcomes.values():
            if isinstance(of_part, Exception):
                raise of_part
            found.update(of_part)
        if on_part is not None:
            on_part(outcomes)

    works = {name: partial(_outcomes, runtime, handler, part) for name, part in parts.items()}
    await per_tenant_batches.run_each(works, add)
    return found


async def _outcomes(runtime: Runtime, handler: Handler, leases: Sequence[Lease]) -> Outcomes:
    try:
        async with asyncio.timeout(handler.deadline(runtime.settings)):
            return await handler.run(runtime, leases)
    except errors.LeaseLost:
        if len(leases) == 1:
            return {}
        return await _halved(runtime, handler, leases)
    except SomeFailed as exc:
        rest = [lease for lease in leases if lease.job.id not in exc.done]
        return {**exc.done, **await _judged(runtime, handler, rest, exc.error)}
    except Exception as exc:  # the edge of a job: whatever it is, it is judged and recorded
        return await _judged(runtime, handler, leases, exc)


async def _judged(runtime: Runtime, handler: Handler, leases: Sequence[Lease], error: Exception) -> Outcomes:
    cause = await find_cause(runtime, error)
    outcomes = {
        lease.job.id: retry_policy.judge(cause, before=lease.job.reason_code, is_own=has_options(lease.job.payload))
        for lease in leases
    }
    await _count(runtime, leases, error)
    snoozes = [outcome for outcome in outcomes.values() if isinstance(outcome, Snooze)]
    is_own = any(snooze.is_own for snooze in snoozes) and len(_namespaces(leases)) > 1  # others need not wait
    is_own = is_own or retry_policy.is_smaller_possible(cause)
    if len(leases) > 1 and (is_own or len(snoozes) < len(leases)):
        return await _halved(runtime, handler, leases)
    log.warning(
        "job waits" if len(snoozes) == len(leases) else "job failed",
        extra={"job_id": str(leases[0].job.id), "kind": handler.kind, "error": retry_policy.to_failure(cause).error},
    )
    return outcomes


def _namespaces(leases: Sequence[Lease]) -> set[str]:
    return {lease.job.scope.namespace for lease in leases}


async def _halved(runtime: Runtime, handler: Handler, leases: Sequence[Lease]) -> Outcomes:
    """One bad job never fails its neighbours: each half is tried again, down to the job that is bad.

    Jobs of a tenant stay together, so that others are soon apart from them.
    """
    leases = sorted(leases, key=lambda lease: lease.job.scope.namespace)
    middle = len(leases) // 2
    first = await _outcomes(runtime, handler, leases[:middle])
    return {**first, **await _outcomes(runtime, handler, leases[middle:])}


async def _count(runtime: Runtime, leases: Sequence[Lease], error: Exception) -> None:
    """What was paid for although nothing came of it."""
    usage = error.usage if isinstance(error, errors.AftermindError) else None
    if usage is not None:
        with suppress(errors.Unavailable):
            await runtime.ledger.spend([(leases[0], extraction_call.spent(usage))])
        runtime.observer.spent(leases[0].job.kind, extraction_call.spent(usage))


async def _record(runtime: Runtime, lease: Lease, outcome: Outcome | None) -> Tally:
    try:
        return await _written(runtime, lease, outcome)
    except errors.LeaseLost:
        return Tally(lost=1)
    except errors.Unavailable as exc:
        log.warning("outcome not written", extra={"job_id": str(lease.job.id), "error": str(exc)})
        runtime.returns.jobs([lease])
        is_own = isinstance(await find_cause(runtime, exc), errors.StatementAborted)
        return Tally(snoozed=1, pause=None if is_own else retry_policy.OUTAGE_PAUSE)


async def _written(runtime: Runtime, lease: Lease, outcome: Outcome | None) -> Tally:
    match outcome:
        case None:
            return Tally(lost=1)
        case Done():
            runtime.observer.attempt_ended(lease, outcome)
            return Tally(done=1)
        case Snooze(after=after, why=why, is_own=is_own):
            await runtime.ledger.snooze(lease, after=after, why=why)
            return Tally(snoozed=1, pause=None if is_own else after)
        case Retry(failure=failure, after=after):
            if lease.job.attempts >= runtime.settings.max_attempts:
                return await _mark_dead(runtime, lease, Dead(failure=failure))
            wait = after if after is not None else _backoff(runtime, lease)
            await runtime.ledger.retry(lease, failure, after=wait)
            runtime.observer.attempt_ended(lease, outcome)
            return Tally(retried=1)
        case Dead() as dead:
            return await _mark_dead(runtime, lease, dead)


async def _mark_dead(runtime: Runtime, lease: Lease, dead: Dead) -> Tally:
    async with runtime.db.transaction(namespace=lease.job.scope.namespace) as tx:
        await runtime.ledger.mark_dead(tx, lease, dead.failure)
        is_dead = failed_state(lease.job.kind) is JobState.DEAD
        failed = [job_events.failed(runtime, lease.job, dead.failure)] if is_dead else []
        events = await runtime.events.append(tx, failed)
    await runtime.after_commit(set(), events, {})
    runtime.observer.attempt_ended(lease, dead)
    ids = {"kind": lease.job.kind.value, **_ids([lease])}
    if is_dead:
        log.error("job dead-lettered", extra={**ids, "reason": dead.failure.reason_code})
    else:
        log.warning("dry run failed", extra={**ids, "reason": dead.failure.reason_code})
    return Tally(dead=1)


def _backoff(runtime: Runtime, lease: Lease) -> timedelta:
    settings = runtime.settings
    return backoff(
        lease.job.attempts,
        base=timedelta(seconds=settings.backoff_base_seconds),
        cap=timedelta(seconds=settings.backoff_cap_seconds),
        random=random.random,
    )


async def _hand_back(runtime: Runtime, leases: Sequence[Lease]) -> None:
    """A shutdown: the attempts do not count. One call, for a stopping worker has little time."""
    try:
        await asyncio.shield(runtime.ledger.return_leases(leases, why="shutdown"))
    except errors.Unavailable:
        runtime.returns.jobs(leases)
