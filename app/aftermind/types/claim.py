"""What somebody said about the world, before it is decided what becomes of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A claim as it is kept: with the canonical predicate, the cardinality that was decided, and who drew it.

    What is believed is what folding everything that was said, in the order in which it was said, gives. `place` orders
    claims of one message.
    """

    id: UUID
    claim: Claim
    extractor: str
    place: int = 0

    @property
    def order(self) -> tuple[datetime, bool, str, int]:
        """Where it stands among others: by its time; then by its message, a call behind all messages."""
        sources = self.claim.sources
        return self.claim.said_at, not sources, min(map(str, sources), default=""), self.place
