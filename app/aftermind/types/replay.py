"""Dead letters by group, and the plans that bring them back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

from aftermind import errors
from aftermind.types.job import Attempt, Job, JobKind, JobState, to_dollars
from aftermind.types.message import Json
from aftermind.types.scope import JobId
from aftermind.types.timestamps import why_unusable

PlanId = NewType("PlanId", str)

MAX_REASON = 500  # characters of a plan's reason: a sentence and a ticket

MAX_DEAD_LETTERS = 1_000_000  # of one list


class ReplayMode(StrEnum):
    """Mode of a replay.

    retry      the same job again, with all attempts
    edited     the same job with some fields of its payload replaced
    reextract  facts are extracted again from the job's episodes, by another prompt or model; the former are superseded
    """

    RETRY = "retry"
    EDITED = "edited"
    REEXTRACT = "reextract"


class PlanState(StrEnum):
    """State of a plan: `draft` until started; `running` and `paused` can alternate; the other states are final."""

    DRAFT = "draft"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of it."""
        return self in (PlanState.DONE, PlanState.ABORTED)


class ItemState(StrEnum):
    """State of an item of a plan.

    waiting    its successor is not enqueued yet
    replayed   its successor is in the ledger, and not final yet
    done       its successor is done
    failed     its successor is a dead letter, which replaces the original entry
    discarded  its job was discarded after the plan was created, and stays so
    skipped    nothing was enqueued; `note` has the reason
    """

    WAITING = "waiting"
    REPLAYED = "replayed"
    DONE = "done"
    FAILED = "failed"
    DISCARDED = "discarded"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are meant. What is None or empty does not narrow; all that is given has to fit.

    Without `states`, each call means those that it is about: dead letters, or jobs of any state. `error` is text that
    the error holds, without regard to case; `lease_lost` also finds jobs that lost a lease, whatever became of them.
    `since` and `until` bound when the job died (of any other job: when it changed last). `action_id` is that of the
    operator's action which discarded the job. A `user_id` without `namespace` is refused: there may be one of that name
    in each.
    """

    ids: tuple[JobId, ...] = ()
    states: tuple[JobState, ...] = ()
    kinds: tuple[JobKind, ...] = ()
    reasons: tuple[str, ...] = ()
    fingerprint: str | None = None
    error: str | None = None
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    action_id: UUID | None = None

    def __post_init__(self) -> None:
        if self.user_id is not None and self.namespace is None:
            raise errors.InvalidFilter("user_id", self.user_id, "name the namespace that the user belongs to as well.")
        for name in ("since", "until"):
            moment = getattr(self, name)
            why = None if moment is None else why_unusable(moment)
            if why is not None:
                raise errors.InvalidFilter(name, moment, why)
        if self.since and self.until and self.until < self.since:
            raise errors.InvalidFilter("until", self.until, "it is before `since`.")

    def to_json(self) -> dict[str, Json]:
        """The set fields, stored with the plan for display; the plan itself uses its fixed list of items."""
        named: dict[str, Json] = {name: getattr(self, name) for name in self.__slots__}
        for name, value in named.items():
            if isinstance(value, tuple):
                named[name] = [str(each) for each in value]
            elif isinstance(value, datetime):
                named[name] = value.isoformat()
            elif isinstance(value, UUID):
                named[name] = str(value)
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One dead letter with all details: the job, every attempt, the bytes of its payload if there are any, and its
    successors.
    """

    job: Job
    attempts: tuple[Attempt, ...]
    raw: bytes | None
    note: str | None
    successors: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters that failed alike: 5,000 of them are one line."""

    kind: JobKind
    reason_code: str
    fingerprint: str
    error: str
    count: int
    namespaces: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The jobs to replay, the rate and the reason. Its items are fixed when it is created: later dead letters are not
    in it.

    `rate` is in jobs per second, `concurrency` the maximum number of unfinished successors. The plan pauses
    automatically if more than `max_failure_share` of the last 50 finished items, at least ten, are dead again; `note`
    then has the reason. `successors` has the states of the successors of items that are `replayed`.
    """

    id: PlanId
    name: str
    reason: str
    actor: str
    mode: ReplayMode
    filter: Mapping[str, Json]
    overrides: Mapping[str, Json]
    rate: float
    concurrency: int
    max_failure_share: float
    state: PlanState
    note: str | None
    frozen_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    counts: Mapping[ItemState, int] = field(default_factory=dict)
    successors: Mapping[JobState, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many items it has."""
        return sum(self.counts.values())

    @property
    def is_successful(self) -> bool:
        """Whether the plan is done and no job failed."""
        return self.state is PlanState.DONE and not self.counts.get(ItemState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem:
    """One job of a plan and its successor. `kind` is None if the job was deleted."""

    plan_id: PlanId
    job_id: JobId
    kind: JobKind | None
    place: int
    state: ItemState
    new_job_id: JobId | None
    new_state: JobState | None
    note: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Dry run of a plan.

    Tokens and cost are averages of earlier jobs of a kind. They leave `unestimated_calls` of the `model_calls` out:
    those of a kind without such a job, and steps of a re-embedding. `cost_usd` is None without a price. `seconds` is at
    the plan's rate. `conflicts` counts items whose work an unfinished job already does, `newer_facts` those of sessions
    with later extractions, `refused` those that cannot be replayed (forgotten, discarded since the plan was created, or
    not dead letters any more).
    """

    items: int
    by_kind: Mapping[JobKind, int]
    namespaces: int
    oldest: datetime | None
    newest: datetime | None
    seconds: float
    model_calls: int
    tokens: int
    cost_usd: float | None
    unestimated_calls: int
    conflicts: int
    newer_facts: int
    refused: int

    def describe_calls(self) -> str:
        """The number of model calls, and what they cost as far as it can be estimated."""
        calls, rest = self.model_calls, self.unestimated_calls
        if not calls:
            return "0"
        if rest == calls:
            return f"{calls:,}, tokens and price unknown: no earlier job like these used any"
        cost = "price unknown" if self.cost_usd is None else to_dollars(self.cost_usd)
        return f"{calls:,}, about {self.tokens:,} tokens, {cost}" + (
            f"; {rest:,} of them not estimated" if rest else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunResult:
    """What one item would change, found by running it without writing: facts that would be added and superseded."""

    job_id: JobId
    state: JobState
    added: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    error: str | None = None
