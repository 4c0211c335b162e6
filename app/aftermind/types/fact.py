"""Facts with two time axes: when they were true, and when they were believed."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from aftermind import errors
from aftermind.types.scope import EpisodeId, FactId, Scope

USER = "user"  # the subject of facts about the user, where messages have no names


class Cardinality(StrEnum):
    """Whether a subject has one object of a predicate at a time (`lives_in`) or several (`likes`)."""

    SINGLE = "single"
    MULTI = "multi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A bi-temporal (subject, predicate, object), as in Snodgrass's valid time and transaction time.

    `valid_from`/`valid_to`: true in the world, half-open, None = unknown or still so. `recorded_at`/`superseded_at`:
    believed by us. `confidence` is 0 to 1; `strength` counts the independent claims. `sources` are the episodes it came
    from, `extractor` the name and version of what derived it.
    """

    id: FactId
    scope: Scope
    subject: str
    predicate: str
    object: str
    confidence: float = 1.0
    cardinality: Cardinality = Cardinality.MULTI
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    recorded_at: datetime
    superseded_at: datetime | None = None
    strength: int = 1
    sources: tuple[EpisodeId, ...] = field(default=())
    extractor: str = "user"

    def __post_init__(self) -> None:
        for name in ("subject", "predicate", "object"):
            if not getattr(self, name).strip():
                raise errors.InvalidFact(
                    name, getattr(self, name), "a fact needs a subject, a predicate and an object."
                )
        if not 0.0 <= self.confidence <= 1.0:
            raise errors.InvalidFact("confidence", self.confidence, "it must be between 0 and 1.")
        if self.valid_from and self.valid_to and self.valid_to < self.valid_from:
            raise errors.InvalidFact("valid_to", self.valid_to, "a fact cannot end before it begins.")

    def __repr__(self) -> str:
        times = "" if self.valid_from is None else f", from {self.valid_from:%Y-%m-%d}"
        times += "" if self.valid_to is None else f", until {self.valid_to:%Y-%m-%d}"
        superseded = "" if self.superseded_at is None else ", superseded"
        return f"<Fact {self.text!r}{times}, confidence {self.confidence:.2f}{superseded}>"

    def is_valid_at(self, moment: datetime) -> bool:
        """Whether it was true in the world at `moment`; open ends count as true."""
        begun = self.valid_from is None or self.valid_from <= moment
        return begun and (self.valid_to is None or moment < self.valid_to)

    def is_believed_at(self, moment: datetime) -> bool:
        """Whether we believed it at `moment`."""
        return self.recorded_at <= moment and (self.superseded_at is None or moment < self.superseded_at)

    @property
    def names_user(self) -> bool:
        """Whether it is the name of the user."""
        return (self.subject, self.predicate) == (USER, "name")

    @property
    def text(self) -> str:
        """The fact as a short sentence, for ranking and rendering."""
        return f"{self.subject} {self.predicate.replace('_', ' ')} {self.object}"


def period(fact: Fact) -> str:
    """The start and end of a fact in brackets, after a space; empty if it has neither."""
    since = [] if fact.valid_from is None else [f"since {fact.valid_from.date()}"]
    until = [] if fact.valid_to is None else [f"until {fact.valid_to.date()}"]
    return f" ({', '.join([*since, *until])})" if since or until else ""
