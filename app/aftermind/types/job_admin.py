"""What operators see of jobs and do to them: timelines, latencies by stage, pauses, and actions on many jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import NewType
from uuid import UUID

from aftermind.types.job import JobKind, JobState
from aftermind.types.scope import EpisodeId, FactId, JobId, Scope

JobActionId = NewType("JobActionId", UUID)


class JobAction(StrEnum):
    """What an operator does to jobs.

    run_now  scheduled jobs and retries are due now
    discard  unfinished jobs are cancelled, running ones too, and dead letters are closed; with a note
    restore  discarded jobs are what they were: dead letters, or queued
    """

    RUN_NOW = "run_now"
    DISCARD = "discard"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobActionResult:
    """How many jobs an action has changed. `id` restores all of a `discard`; None for the other actions."""

    action: JobAction
    changed: int
    id: JobActionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPause:
    """Jobs that workers do not claim: of a kind (None: of every kind), in a namespace (None: in every namespace)."""

    kind: JobKind | None
    namespace: str | None
    reason: str
    actor: str
    created_at: datetime

    @property
    def is_of_key(self) -> bool:
        """Whether an API key made it, or a session of one: names of the operating system have no space."""
        return self.actor.startswith(("key ", "session of key "))

    def covers(self, kind: str, namespace: str) -> bool:
        """Whether jobs of this kind wait for its end in this namespace."""
        return self.kind in (None, kind) and self.namespace in (None, namespace)

    def summary(self) -> str:
        """The pause in one line: operator, time (UTC) and reason."""
        return f"paused by {self.actor} since {self.created_at.astimezone(UTC):%Y-%m-%d %H:%M}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedHold:
    """Why jobs waited until `ended_at`: a pause that was ended, a discard that was restored, or a claim given back.

    `job_id` is the discarded job, or that of the claim; None for a pause. Of pauses and discards `reason` names the
    operator too, and `ended_by` is the one that ended it. A wait after a claim ends by itself: its `ended_by` is None.
    """

    kind: JobKind | None
    namespace: str | None
    job_id: JobId | None = None
    reason: str
    created_at: datetime
    ended_at: datetime
    ended_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCount:
    """How many unfinished jobs, dead letters or discarded jobs of a kind there are. `scheduled`: not due yet."""

    kind: JobKind
    state: JobState
    count: int
    scheduled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLatency:
    """Seconds from acceptance (of a turn) or creation (of a later job) to completion, of jobs completed lately.

    A turn's acceptance is by the clock of the agent's host.
    """

    kind: JobKind
    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """An accepted turn that waits in Redis for its store job, without its content. `worker` holds it now, or None."""

    job_id: JobId
    owner: Scope
    accepted_at: datetime
    size_bytes: int
    attempts: int
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """A step of a turn's processing, from `at` to `ended_at`; without `ended_at` it is a moment, or is not over.

    A job lasts from its creation (a store job: from the acceptance of its turn) to its end, waits included; an attempt
    from its claim to its end; a pause or a wait while the job could not run. Acceptance, facts and events are moments.
    """

    name: str
    at: datetime
    ended_at: datetime | None = None
    job_id: JobId | None = None
    state: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A turn's processing, step by step: accepted, stored, embedded, extracted, facts, events, pauses and waits.

    `job_id` is its store job; `turns` are the store jobs of all turns that the job asked for works on.
    """

    job_id: JobId
    owner: Scope
    accepted_at: datetime
    turns: tuple[JobId, ...]
    episode_ids: tuple[EpisodeId, ...]
    fact_ids: tuple[FactId, ...]
    steps: tuple[TimelineStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """Metrics of the whole deployment over an interval that ended at `at`.

    `series` is named as `/metrics` has it: counters and buckets hold their increase, gauges their value at the end (of
    an hour: the highest).
    """

    at: datetime
    over: timedelta
    series: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSummary:
    """A namespace in the list of tenants. Usage of models is that of today (UTC). `users` beyond 10,000 is 10,001.

    `users` has groups and forgotten users too, of which an id remains; `memory.users` lists those with content.
    `cost_usd` leaves out `unpriced_models`: those that had no price.
    `oldest_due_at` is when its longest waiting job was due; `last_job_at` when a job of the last day was created.
    """

    namespace: str
    users: int
    unfinished_jobs: int
    dead_letters: int
    oldest_due_at: datetime | None
    last_job_at: datetime | None
    calls: int
    tokens: int
    cost_usd: float
    unpriced_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a model has cost a namespace in a day (UTC), for a kind of job; `is_cost_unknown`: it had no price."""

    namespace: str
    day: date
    kind: JobKind
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    cost_usd: float
    is_cost_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A worker, reconciler or service, as it announced itself: every ten seconds.

    `settings` are those in force that decide what it derives, as `name=value`. `is_silent`: it was not
    stopped, and no heartbeat came for half a minute. It is frozen, cut off or killed, and listed for ten minutes.
    """

    name: str
    version: str
    queues: tuple[str, ...]
    started_at: datetime
    heartbeat_at: datetime
    peak_memory_bytes: int
    settings: tuple[str, ...]
    is_silent: bool = False
