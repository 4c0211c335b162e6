"""Records of the jobs of one process, and their changes: pure functions from record to record."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from operator import itemgetter
from typing import ClassVar
from uuid import UUID

from aftermind.db.record_store_journals.row_codec import Table
from aftermind.ledger.protocol import Backlog, DailyUsage, Failure, ModelUsage, Tried
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, LeaseToken, NewJob, Scope, Turn
from aftermind.types.job_admin import EndedHold, JobPause

UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)
WAITING = (JobState.QUEUED, JobState.RETRYING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job as it is kept: its lease, its place in the fair order (None before its time), its attempts.

    `opening` names the process that leased it; `edited` is a dead turn with other messages, for the
    replay that is to store those. A discarded job has the action that discarded it, and its `former_state`.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}
    job: Job
    token: LeaseToken | None = None
    until: datetime | None = None
    place: int | None = None
    due_by: datetime | None = None
    plan: str | None = None
    opening: str | None = None
    weight: int = 1
    attempts: tuple[Attempt, ...] = field(default=())
    edited: bytes | None = None
    action_id: UUID | None = None
    former_state: JobState | None = None


TABLES = {
    "jobs": Table(JobId, Record),
    "follows": Table(JobId, tuple[JobId, ...]),
    "job_pauses": Table(tuple[str, str], JobPause),  # by namespace and kind; "" is every one
    "hold_history": Table(UUID, EndedHold),
    "spending": Table(tuple[Scope, date, JobKind, str | None], DailyUsage),
}


def make_attempts(job_id: JobId, tried: Tried, failure: Failure, now: datetime) -> tuple[Attempt, ...]:
    """The attempts of a pending turn as rows; the end and the error are recorded only for the last one."""

    def one(number: int) -> Attempt:
        begun = Attempt(
            job_id=job_id, number=number, worker="", started_at=tried.since, ended_at=None, outcome="failed"
        )
        if number <= tried.lost_leases:
            return replace(begun, outcome="lost")
        if number < tried.attempts:
            return begun
        ended = replace(begun, worker=tried.worker, ended_at=now, outcome="dead")
        return replace(ended, error_class=failure.error_class, error=failure.error)

    return tuple(one(number) for number in range(1, tried.attempts + 1))


def lost_attempts(job_id: JobId, tried: Tried) -> tuple[Attempt, ...]:
    """The attempts of workers that crashed; the name of the last one is known."""
    numbers = range(1, tried.lost_leases + 1)
    workers = ["" if number < tried.lost_leases else tried.worker for number in numbers]
    return tuple(
        Attempt(job_id=job_id, number=number, worker=worker, started_at=tried.since, ended_at=None, outcome="lost")
        for number, worker in zip(numbers, workers, strict=True)
    )


def counted(record: Record, spent: ModelUsage) -> Record:
    """The record with what its last attempt cost."""
    if not record.attempts:
        return record
    last = record.attempts[-1]
    counted = replace(
        last,
        model=last.model or spent.model,
        tokens_in=last.tokens_in + spent.tokens_in,
        tokens_out=last.tokens_out + spent.tokens_out,
        cost_usd=last.cost_usd + spent.cost_usd,
        calls=last.calls + spent.calls,
        latency_ms=last.latency_ms + spent.latency_ms,
    )
    return replace(record, attempts=(*record.attempts[:-1], counted))


def together(one: ModelUsage, other: ModelUsage) -> ModelUsage:
    """Both costs, of one model."""
    return replace(
        one,
        calls=one.calls + other.calls,
        tokens_in=one.tokens_in + other.tokens_in,
        tokens_out=one.tokens_out + other.tokens_out,
        cost_usd=one.cost_usd + other.cost_usd,
        latency_ms=one.latency_ms + other.latency_ms,
    )


def end_attempt(record: Record, now: datetime, outcome: str, failure: Failure | None) -> Record:
    """The record with its last attempt ended."""
    if not record.attempts:
        return record
    last = replace(
        record.attempts[-1],
        ended_at=now,
        outcome=outcome,
        error_class=failure.error_class if failure else None,
        error=failure.error if failure else None,
    )
    return replace(record, attempts=(*record.attempts[:-1], last))


def failed(job: Job, failure: Failure) -> Job:
    """The job with the failure on it."""
    answer = job.answer if failure.answer is None else failure.answer
    return replace(
        job, reason_code=failure.reason_code, error=failure.error, fingerprint=failure.fingerprint, answer=answer
    )


def worker_lost(times: int) -> Failure:
    """The error of a job that lost too many leases."""
    error = f"{times} workers ended without a word while they held it"
    return Failure(reason_code="worker_lost", error_class="WorkerLost", error=error, fingerprint="worker_lost")


def new_job(job: NewJob, now: datetime, *, run_at: datetime) -> Job:
    """A job as it is put in."""
    new = make_job(job.id, job.kind, job.scope, JobState.QUEUED, job.effect_key, now)
    return replace(new, payload=dict(job.payload), run_at=run_at, origin_job_id=job.origin_job_id)


def make_store_job(turn: Turn, now: datetime, state: JobState, payload: bytes | None) -> Job:
    """The store job of a turn."""
    job = make_job(turn.job_id, JobKind.STORE, turn.scope, state, str(turn.job_id), now, raw=payload)
    return job if turn.content_hash is None else replace(job, payload={"hash": turn.content_hash})


def make_job(
    id_: UUID,
    kind: JobKind,
    scope: Scope,
    state: JobState,
    effect_key: str,
    now: datetime,
    *,
    raw: bytes | None = None,
    attempts: int = 0,
) -> Job:
    """Create a job without attempts."""
    return Job(
        id=JobId(id_),
        kind=kind,
        scope=scope,
        state=state,
        payload={},
        effect_key=effect_key,
        attempts=attempts,
        lost_leases=0,
        run_at=now,
        created_at=now,
        updated_at=now,
        raw=raw,
    )


def order_by_start(runnable: Sequence[Record]) -> list[Record]:
    """Jobs by the weight that their namespace has before them, else in their order: equal shares for namespaces."""
    totals: Counter[str] = Counter()
    starts: list[tuple[int, Record]] = []
    for record in runnable:
        namespace = record.job.scope.namespace
        starts.append((totals[namespace], record))
        totals[namespace] += record.weight
    return [record for _, record in sorted(starts, key=itemgetter(0))]


def created(job: Job) -> tuple[datetime, JobId]:
    """What orders jobs by their age."""
    return job.created_at, job.id


def count_backlog(
    kind: JobKind,
    jobs: Sequence[Job],
    now: datetime,
    *,
    paused: Set[str | None] = frozenset(),
    ended: Sequence[EndedHold] = (),
) -> Backlog:
    """The backlog of a kind. `paused` are namespaces whose jobs wait for an operator; None is every one. `ended` are
    the pauses of the kind that were ended.
    """
    last: dict[tuple[str | None, JobKind | None], EndedHold] = {}
    for pause in sorted(ended, key=lambda each: each.ended_at):
        last[pause.namespace, pause.kind] = pause

    def runnable_since(job: Job) -> datetime:
        """Since its time, later by what it waited of its last pause."""
        of_job = [pause for pause in last.values() if pause.namespace in (None, job.scope.namespace)]
        ends = [min(pause.ended_at, job.run_at + (pause.ended_at - pause.created_at)) for pause in of_job]
        return max([job.run_at, *ends])

    runnable = [job for job in jobs if job.state in WAITING and job.run_at <= now]
    claimable = [] if None in paused else [job for job in runnable if job.scope.namespace not in paused]
    return Backlog(
        kind=kind,
        runnable=len(runnable),
        oldest_wait=max((now - runnable_since(job) for job in claimable), default=None),
        running=sum(job.state is JobState.RUNNING for job in jobs),
        waiting=sum(job.state in WAITING and job.run_at > now for job in jobs),
        dead=sum(job.state is JobState.DEAD for job in jobs),
    )
