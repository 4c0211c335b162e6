"""Interface through which handlers report job results. Handlers use this interface, and no metrics library."""

from typing import Literal

from aftermind.ledger.protocol import ModelUsage
from aftermind.types import JobKind, Lease
from aftermind.wire.pending import ClaimedTurn
from aftermind_tasks.job_outcome_types import Outcome

Stage = Literal["stored", "embedded", "mined"]


class Observer:
    """Reports nothing: for a store inside one process. Its methods must neither raise nor wait."""

    def fresh(self, stage: Stage, seconds: float) -> None:
        """A turn has reached a stage, this number of seconds after it was accepted."""

    def spent(self, kind: JobKind, spent: ModelUsage) -> None:
        """What a model call of this kind of job has cost."""

    def failed(self, kind: JobKind, reason_code: str) -> None:
        """An attempt to store a pending turn failed; there is another."""

    def leases_lost(self, count: int) -> None:
        """This number of leases was lost with pending turns that are stored now."""

    def attempt_ended(self, lease: Lease, outcome: Outcome) -> None:
        """How a job of the ledger was answered for; written down already."""

    def on_dead_letter(self, turn: ClaimedTurn, reason_code: str) -> None:
        """A pending turn became a dead letter."""
