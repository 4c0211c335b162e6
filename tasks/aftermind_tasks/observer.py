"""What happens to jobs, told to whoever counts. Handlers know this seam, and nothing of metrics."""

from typing import Literal

from aftermind.ledger.base import Spent
from aftermind.types import JobKind, Lease
from aftermind.wire.pending import ClaimedTurn
from aftermind_tasks.outcomes import Outcome

Stage = Literal["stored", "embedded", "mined"]


class Observer:
    """Tells nobody: what a store inside one process uses. Nothing here may raise, or wait."""

    def fresh(self, stage: Stage, seconds: float) -> None:
        """A turn has come so far, so many seconds after it was handed over."""

    def spent(self, kind: JobKind, spent: Spent) -> None:
        """What a model call of this kind of job has cost."""

    def failed(self, kind: JobKind, reason_code: str) -> None:
        """An attempt to store a pending turn failed; there is another."""

    def ended(self, lease: Lease, outcome: Outcome) -> None:
        """How a job of the ledger was answered for; written down already."""

    def buried(self, turn: ClaimedTurn, reason_code: str) -> None:
        """A pending turn became a dead letter."""
