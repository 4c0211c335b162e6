"""The `DeadLetters` and `Replays` protocols: what failed for good, kept whole, and brought back by plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aftermind import errors
from aftermind.ledger.overrides import OverrideRules, check_overrides
from aftermind.types import Job, JobId, JobKind, Json
from aftermind.types.normalise import Limits, json_object
from aftermind.types.replay import (
    MAX_REASON,
    DeadGroup,
    DeadLetter,
    Estimate,
    ItemState,
    JobFilter,
    PlanId,
    ReplayItem,
    ReplayMode,
    ReplayPlan,
    Shadow,
)

RATE = 5.0  # jobs a second: below any live traffic worth the name, and 1,000 dead letters are back in 200 s
MAX_RATE = 1_000.0
CONCURRENCY = 10
MAX_FAILURE_SHARE = 0.3
BREAKER_WINDOW = 50  # the last so many that ended are looked at; from 10 on, so that three bad ones stop nothing
BREAKER_FROM = 10
BURST_SECONDS = 2.0  # of its rate that a plan may catch up with after its replayer was away
SHADOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    """What somebody asks for. `reason` and `actor` are kept for good: who brought them back, and why."""

    name: str
    reason: str
    actor: str
    mode: ReplayMode = ReplayMode.RETRY
    overrides: Mapping[str, Json] | None = None
    rate: float = RATE
    concurrency: int = CONCURRENCY
    max_failure_share: float = MAX_FAILURE_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step of a plan did. `wait_seconds` is when the next may come, None where the plan does not run."""

    replayed: int
    skipped: int
    kinds: Sequence[JobKind]
    wait_seconds: float | None


OVERRIDE_LIMITS = Limits(metadata_bytes=16_777_216, metadata_depth=32)  # twice the largest turn, with its metadata


def check_plan(new: NewPlan, rules: OverrideRules) -> None:
    """Raise `InvalidFilter` where a value of a plan cannot be meant, or an override is not the operator's to use."""
    for name in ("name", "reason", "actor"):
        if not getattr(new, name).strip():
            why = "a plan keeps a name, who started it and why; none may be empty."
            raise errors.InvalidFilter(name, getattr(new, name), why)
    if len(new.reason) > MAX_REASON:
        raise errors.InvalidFilter("reason", new.reason, f"at most {MAX_REASON} characters: a sentence and a ticket.")
    if not 0 < new.rate <= MAX_RATE:
        raise errors.InvalidFilter("rate", new.rate, f"more than 0 and at most {MAX_RATE:g} jobs a second.")
    if new.concurrency < 1:
        raise errors.InvalidFilter("concurrency", new.concurrency, "at least one job at a time.")
    if not 0 < new.max_failure_share <= 1:
        raise errors.InvalidFilter("max_failure_share", new.max_failure_share, "a share: more than 0, at most 1.")
    if new.mode is ReplayMode.EDITED and not new.overrides:
        raise errors.InvalidFilter("overrides", new.overrides, "an edited replay needs what to replace.")
    try:
        json_object(new.overrides or {}, OVERRIDE_LIMITS)
    except errors.InvalidMessage as exc:
        raise errors.InvalidFilter("overrides", new.overrides, exc.why) from exc
    check_overrides(new.mode, new.overrides or {}, rules)


class DeadLetters(Protocol):
    """Jobs that are out of tries. Nothing but a successor, a note or a forget takes one away.

    All raise `StoreUnavailable`.
    """

    async def listed(self, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
        """Those that fit, the latest dead first."""

    async def groups(self, wanted: JobFilter, *, limit: int = 100) -> list[DeadGroup]:
        """Those that fit by kind, reason and fingerprint, the largest group first."""

    async def shown(self, job_id: JobId) -> DeadLetter | None:
        """One job whole, dead or not any more; None where there is no such job."""

    async def discard(self, wanted: JobFilter, *, note: str, actor: str) -> int:
        """Close those that fit, with a note; how many. They stay readable, and can still be replayed by id."""


class Replays(Protocol):
    """Plans. Times are the database's clock, so a plan goes on where its replayer was killed."""

    async def plan(self, wanted: JobFilter, new: NewPlan) -> ReplayPlan:
        """Freeze what fits now into the items of a draft. Nothing is put in before `start`.

        `new.overrides` are options of extractions (`model`, `extractor`, `instructions`); with mode `edited` also the
        `messages` of one store job, which are checked as `remember` checks them, or fewer `episodes` of one embed job.
        Raises `InvalidFilter` where nothing fits, or a value of `new` cannot be meant or is not allowed, and
        `InvalidMessage`.
        """

    async def estimate(self, plan_id: PlanId) -> Estimate:
        """The dry run: counts, times, cost, conflicts. Changes nothing."""

    async def shadow(self, plan_id: PlanId, *, sample: int = SHADOWS) -> list[JobId]:
        """Put in jobs that run a sample of the items without writing; see `shadows` for what they found."""

    async def shadows(self, plan_id: PlanId) -> list[Shadow]:
        """What the shadow runs of a plan found so far. Whoever shows it to somebody calls `looked` first."""

    async def looked(self, plan_id: PlanId, *, actor: str | None = None) -> None:
        """Record in the audit trail that somebody is shown what the shadow runs found, an entry for each user.

        `actor` is who (None: who runs this process).
        """

    async def start(self, plan_id: PlanId, *, rate: float | None = None) -> ReplayPlan:
        """Let a draft or a paused plan run. Raises `ReplayConflict` where it is final."""

    async def pause(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        """Put nothing more in until it is started again. What was put in goes on."""

    async def abort(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        """Put nothing more in, for good. What waited stays a dead letter."""

    async def found(self, plan_id: PlanId, *, namespace: str | None = None) -> ReplayPlan | None:
        """A plan with the counts of its items, or None; of this tenant alone, where one is named."""

    async def listed(self, *, namespace: str | None = None, limit: int = 50) -> list[ReplayPlan]:
        """Plans, the latest first; of this tenant alone, where one is named: one over several is nobody's then."""

    async def items(self, plan_id: PlanId, *, states: Sequence[ItemState] = (), limit: int = 100) -> list[ReplayItem]:
        """Items of a plan in their order."""

    async def running(self) -> list[PlanId]:
        """Plans that a replayer has to do something for."""

    async def step(self, plan_id: PlanId, *, limit: int = 100) -> Step:
        """Note how successors ended, then put in as many as rate and concurrency allow, in one transaction.

        The item moves and its successor is inserted in the same commit, so a replayer that dies in the middle has done
        both or nothing, and two replayers of one plan take turns. Pauses the plan where too many fail again.
        """
