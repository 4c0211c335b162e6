"""What somebody said about the world, before it is decided what becomes of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from aftermind.types.fact import Cardinality
from aftermind.types.scope import EpisodeId


class Operation(StrEnum):
    """What a claim does: `assert` says that it is (or was) so, `retract` that it never was."""

    ASSERT = "assert"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement drawn from episodes.

    `said_at` is when it was said: the latest moment from which it was true, where `valid_from` does not say more.
    `valid_to` set means that it has ended ("I no longer work there"). `cardinality` None leaves it to the predicate.
    """

    subject: str
    predicate: str
    object: str
    said_at: datetime
    operation: Operation = Operation.ASSERT
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    confidence: float = 1.0
    cardinality: Cardinality | None = None
    sources: tuple[EpisodeId, ...] = ()
    quote: str | None = None

    @property
    def starts_at(self) -> datetime | None:
        """From when it is taken to be true: as said, else when it was said; None for what only has an end."""
        return self.valid_from or (None if self.valid_to else self.said_at)
