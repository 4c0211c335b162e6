"""The `DeadLetters` and `Replays` protocols: what failed for good, kept whole, and brought back by plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftermind import errors
from aftermind.ledger.replay_overrides import OverrideRules, check_overrides
from aftermind.types import JobKind, JobState, Json
from aftermind.types.replay import MAX_REASON, JobFilter, ReplayMode
from aftermind.types.validation import Limits, json_object

RATE = 5.0  # jobs a second: below any live traffic worth the name, and 1,000 dead letters are back in 200 s
MAX_RATE = 1_000.0
CONCURRENCY = 10
MAX_FINISHED_PLANS = 100  # older ones are deleted when a plan is created
MAX_FAILURE_SHARE = 0.3
# the number of last finished items that is checked; from 10 on, so that three failures stop nothing
BREAKER_WINDOW = 50
BREAKER_FROM = 10
BURST_SECONDS = 2.0  # of its rate that a plan may catch up with after its replayer was away
SHADOWS = 20
DEAD = (JobState.DEAD.value,)
LISTED_AS_DEAD = (JobState.DEAD, JobState.DISCARDED, JobState.REPLAYED)
CLOSABLE_AGAIN = (JobState.DEAD.value, JobState.DISCARDED.value)  # what may be named by id
DISCARDED_SINCE = "it was discarded after the plan was created"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    """Request for a plan. `reason` and `actor` are stored permanently."""

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
            why = "a plan needs a name, an actor and a reason; none may be empty."
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


def matching_states(wanted: JobFilter) -> Sequence[str]:
    """Dead letters; what is named by id may have been discarded before."""
    if wanted.states:
        return [state.value for state in wanted.states if state in LISTED_AS_DEAD]
    return CLOSABLE_AGAIN if wanted.ids else DEAD


def check_note(note: str, actor: str) -> None:
    """Raise `InvalidFilter` without a reason or an actor."""
    if not note.strip() or not actor.strip():
        raise errors.InvalidFilter(
            "note", note, "a reason and an actor are required; both are stored with the dead letter."
        )
