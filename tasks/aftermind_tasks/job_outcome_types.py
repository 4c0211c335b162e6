"""The outcomes that a handler can return."""

from dataclasses import dataclass
from datetime import timedelta

from aftermind.ledger.protocol import Failure, ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The effect is committed, and the job closed with it."""

    note: str | None = None
    spent: ModelUsage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Failed, and worth another try `after` so long; None leaves the wait to the back-off."""

    failure: Failure
    after: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snooze:
    """Not failed: an outage, a budget or a pause. Counts neither attempt nor lost lease.

    `is_own`: it is this job's alone, so others of its kind need not wait with it.
    """

    after: timedelta
    why: str
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """Cannot succeed: dead-letter it immediately."""

    failure: Failure


Outcome = Done | Retry | Snooze | Dead
