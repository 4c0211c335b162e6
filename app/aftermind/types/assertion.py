"""Assertions: statements about the world, before they are resolved to facts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from aftermind.types.fact import Cardinality
from aftermind.types.scope import EpisodeId

BY_USER = "user"  # the extractor of what a call states: no extraction retracts it


class Operation(StrEnum):
    """Effect of an assertion: `assert` states that it is (or was) true, `retract` that it never was.

    `end` ends at `valid_to` what another assertion states, whichever is extracted first; alone it states nothing. With
    an empty object, `end` and `retract` are of every object of the predicate. A `retract` with `valid_from` or
    `valid_to` is of what was true within that time.
    """

    ASSERT = "assert"
    RETRACT = "retract"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One statement drawn from episodes.

    `said_at` is the time of the statement: the latest moment from which it was true, unless `valid_from` is more
    precise. `valid_to` means that it has ended ("I no longer work there"). A stated time may be a period ("in 2025",
    "today"): then `valid_from`, or of an end `valid_to`, is its earliest moment, and `latest_at` its latest, at most
    `said_at`. With `cardinality` None the predicate decides.
    """

    subject: str
    predicate: str
    object: str
    said_at: datetime
    operation: Operation = Operation.ASSERT
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    latest_at: datetime | None = None
    confidence: float = 1.0
    cardinality: Cardinality | None = None
    sources: tuple[EpisodeId, ...] = ()
    quote: str | None = None

    @property
    def starts_at(self) -> datetime | None:
        """Start of validity: as stated, else the time of the statement; None for a statement that only has an end."""
        return self.valid_from or (None if self.valid_to else self.said_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAssertion:
    """A stored assertion: with the canonical predicate, the resolved cardinality, and its extractor.

    The facts result from applying all assertions in the order of their times. `place` orders assertions of one message.
    """

    id: UUID
    claim: Assertion
    extractor: str
    place: int = 0

    @property
    def order(self) -> tuple[datetime, bool, str, int]:
        """Sort key: by time, then by message; assertions of API calls follow those of messages."""
        sources = self.claim.sources
        return (
            self.claim.said_at,
            self.extractor == BY_USER or not sources,
            min(map(str, sources), default=""),
            self.place,
        )
