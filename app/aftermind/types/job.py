"""Background work: its kinds, its states, and which state may follow which."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import orjson

from aftermind import errors
from aftermind.types.message import Json
from aftermind.types.scope import JobId, LeaseToken, Scope


class JobKind(StrEnum):
    """What a job does; each has one handler and one queue. `SHADOW` is the dry run of a replay, which writes no facts;
    `INDEX` brings an external vector index up to date.
    """

    STORE = "store"
    EMBED = "embed"
    INDEX = "index"
    EXTRACT = "extract"
    SUMMARISE = "summarise"
    PROFILE = "profile"
    FORGET = "forget"
    SHADOW = "shadow"


SUSPECTS = 8  # of a batch this part: jobs that lost a lease, any of which may be what took the worker away


def together(limit: int, lost: int, *, most: int, alone: bool) -> int:
    """Number of jobs to claim together, from batches of `limit`, by their lost leases; `most` lost leases make a dead
    letter.

    After the first lost lease it is a part of a batch, so that the jobs of a killed worker are not processed one by
    one. The last time it is one, and none for a worker that is not `alone`: see `is_last_chance`.
    """
    if lost == 0:
        return limit
    if is_last_chance(lost, most=most):
        return 1 if alone else 0
    return max(1, limit // SUSPECTS)


def is_last_chance(lost: int, *, most: int) -> bool:
    """Whether one more lost lease makes the job a dead letter.

    It then needs a process without other jobs: otherwise a crash caused by one job would dead-letter both.
    """
    return 0 < lost >= most - 1


LEASE_LOST = "lease_lost"  # the reason of an attempt whose lease ran out; of a job that lost too many: `worker_lost`
# The reason of a completed store job whose messages were all forgotten since, by id or time: its idempotency key stays
# in use while the job is kept, so that neither a retry nor a repeated import brings them back.
TURN_FORGOTTEN = "forgotten"
MODEL_KINDS = frozenset({JobKind.EMBED, JobKind.EXTRACT, JobKind.SUMMARISE, JobKind.PROFILE})  # one call or more
SERIAL_KINDS = frozenset({JobKind.EXTRACT, JobKind.SUMMARISE, JobKind.PROFILE})  # one running job a session


class JobState(StrEnum):
    """State of a job. The same eight words in code, tables, API and console.

    queued     may be claimed once `run_at` has passed (a debounce and a snooze set a later `run_at`)
    running    a worker has a lease
    retrying   failed, and waits for its next attempt at `run_at`
    done       its effect is committed
    dead       a dead letter: attempts used, or it cannot succeed; kept until an operator acts
    replayed   a dead letter that has a successor
    discarded  cancelled or closed by an operator, with a note; it can be restored until it is pruned
    forgotten  its content has been forgotten
    """

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    DEAD = "dead"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    FORGOTTEN = "forgotten"

    @property
    def is_final(self) -> bool:
        """Whether nothing but an operator changes it any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)


def failed_state(kind: JobKind) -> JobState:
    """State of a job that has failed for good. A dry run, which writes nothing, is no dead letter."""
    return JobState.DISCARDED if kind is JobKind.SHADOW else JobState.DEAD


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.DEAD, JobState.DISCARDED, JobState.FORGOTTEN}),
    JobState.RUNNING: frozenset(
        {
            *(JobState.DONE, JobState.RETRYING, JobState.QUEUED, JobState.DEAD, JobState.FORGOTTEN),
            *(JobState.RUNNING, JobState.DISCARDED),
        }
    ),
    JobState.RETRYING: frozenset(
        {JobState.RUNNING, JobState.DEAD, JobState.FORGOTTEN, JobState.QUEUED, JobState.DISCARDED}
    ),
    JobState.DONE: frozenset({JobState.FORGOTTEN}),
    JobState.DEAD: frozenset({JobState.REPLAYED, JobState.DISCARDED, JobState.FORGOTTEN}),
    JobState.REPLAYED: frozenset({JobState.FORGOTTEN}),
    JobState.DISCARDED: frozenset({JobState.QUEUED, JobState.DEAD, JobState.REPLAYED, JobState.FORGOTTEN}),
    JobState.FORGOTTEN: frozenset(),
}


def check_transition(before: JobState, after: JobState) -> None:
    """Raise `Bug` where `after` may not follow `before`."""
    if after not in TRANSITIONS[before]:
        raise errors.Bug(f"a job cannot change from {before} to {after}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be put into the ledger.

    `effect_key` is unique per (namespace, kind): a second job with the key of one that is not final joins it, so a
    doubled enqueue changes nothing. Where `debounce` joins it, its payload is laid over the one that is there.
    """

    id: JobId
    kind: JobKind
    scope: Scope
    payload: Mapping[str, Json] = field(default_factory=dict)
    effect_key: str
    delay: timedelta | None = None  # from the moment of the enqueue, by the ledger's clock
    follows: tuple[JobId, ...] = ()  # the store jobs whose follow-up work it does, for their receipts
    origin_job_id: JobId | None = None
    replay_plan_id: str | None = None
    weight: int = 1  # what its work costs; the unit is its kind's: characters to embed, entries to index


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the ledger.

    `attempts` counts claims, the current one included; `lost_leases` counts those that ended without a result. `answer`
    is a model's answer, kept until the job is done so that a retry does not call and pay again.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}  # `raw`
    id: JobId
    kind: JobKind
    scope: Scope
    state: JobState
    payload: Mapping[str, Json]
    effect_key: str
    attempts: int
    lost_leases: int
    run_at: datetime
    created_at: datetime
    updated_at: datetime
    reason_code: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    answer: Mapping[str, Json] | None = None
    note: str | None = None  # reason for waiting, or a remark about the result
    raw: bytes | None = None  # a turn that the ledger accepted, or bytes that could not be read
    origin_job_id: JobId | None = None
    worker: str | None = None  # that runs it, or ran it last

    @property
    def detail(self) -> str:
        """In one line: the worker of a running job, the note of a discarded one; of others the last error, or why the
        last claim was given back while its wait lasts, and how many leases were lost.

        What a job waits for now is in `job_admin.hold_reasons`.
        """
        if self.state is JobState.RUNNING:
            return f"running at {self.worker}"
        if self.state is JobState.DISCARDED:
            return self.note or ""
        times = "1 time" if self.lost_leases == 1 else f"{self.lost_leases:,} times"
        lost = f"{LEASE_LOST}: {times}" if self.lost_leases else ""
        why = None if self.state is JobState.DONE else self.error or describe_note(self)
        return ", ".join(filter(None, (why, lost)))


def describe_note(job: Any) -> str | None:  # Any: `Job`, or a row with its columns
    """The note; of a job that waits, when its last claim was given back and why, and None once that wait is over.

    The note is of that time: since then a budget may have been raised, or a provider have answered.
    """
    note: str | None = job.note
    if note is None or job.state not in (JobState.QUEUED, JobState.RETRYING):
        return note
    now, since = datetime.now(UTC), job.updated_at.astimezone(UTC)
    day = "" if since.date() == now.date() else f"{since:%Y-%m-%d} "
    return f"given back at {day}{since:%H:%M:%S}: {note}" if job.run_at > now else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on a job until `until`; `token` is the fence of its effect."""

    job: Job
    token: LeaseToken
    until: datetime
    worker: str
    weight: int = 1  # the job's, see `NewJob`


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """State of a job that follows a store job; `reason` is why it waits or has ended, None if nothing is stored."""

    state: JobState
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One claim of a job, how it ended, and what its model calls cost; `latency_ms` is the time that they took."""

    job_id: JobId
    number: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error_class: str | None = None
    error: str | None = None
    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    calls: int = 0
    latency_ms: float = 0.0


def session_key(scope: Scope) -> str:
    """An effect key of the user's session: no two (user, session) pairs share one, whatever their ids are."""
    return orjson.dumps([scope.user_column, scope.session_id]).decode()


def to_dollars(usd: float) -> str:
    """An amount; one below a cent in enough digits to differ from nothing."""
    return f"${usd:,.2f}" if usd == 0 or usd >= 0.01 else f"${usd:.2g}" if usd >= 0.0001 else "under $0.0001"
