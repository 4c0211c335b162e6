"""Rows as a store would keep them while claims come in: for tests of the decisions alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from aftermind.facts.bitemporal_resolution import Changes, decide
from aftermind.facts.reextraction_diff import redo
from aftermind.facts.undo import undo
from aftermind.types import EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import Assertion, RecordedAssertion
from aftermind.types.uuid7 import uuid7

OWNER = Scope(user_id="ann")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
START = datetime(2020, 1, 1, tzinfo=UTC)


def new_id() -> FactId:
    """A fresh id."""
    return FactId(uuid7())


@dataclass(slots=True)
class Believing:
    """What is believed and what was said; each call is one transaction. `last` is what it wrote."""

    rows: dict[FactId, Fact] = field(default_factory=dict)
    said: dict[UUID, RecordedAssertion] = field(default_factory=dict)
    last: Changes = field(default_factory=Changes)

    def hear(self, claims: Sequence[Assertion], *, extractor: str = "test") -> None:
        """Claims of a mining."""
        known = list(self.said.values())
        believed = self.facts()
        self._write(decide(claims, believed, said=known, owner=OWNER, now=NOW, extractor=extractor, new_id=new_id))

    def mine_anew(self, claims: Sequence[Assertion], *, of: Sequence[Assertion] | None = None) -> None:
        """Mine messages again, and find these claims in them."""
        mined = frozenset(source for one in of or claims for source in one.sources)
        known = list(self.said.values())
        changes = redo(
            claims, self.facts(), said=known, mined=mined, owner=OWNER, now=NOW, extractor="new", new_id=new_id
        )
        self._write(changes)

    def undo(self, *episodes: EpisodeId) -> None:
        """Let these have never spoken; what stays loses them as sources, as the store does it."""
        undone = frozenset(episodes)
        said = list(self.said.values())
        self._write(undo(self.facts(), undone, said=said, owner=OWNER, now=NOW, new_id=new_id))
        for fact in self.facts():
            self.rows[fact.id] = replace(fact, sources=tuple(each for each in fact.sources if each not in undone))

    def facts(self) -> list[Fact]:
        """What is believed."""
        return list(self.rows.values())

    def beliefs(self) -> set[tuple[object, ...]]:
        """What is believed, without the ids of rows."""
        return {
            (fact.predicate, fact.object, fact.valid_from, fact.valid_to, fact.strength, frozenset(fact.sources))
            for fact in self.rows.values()
        }

    def spans(self) -> list[tuple[str, int | None, int | None]]:
        """Objects and the months from START in which they hold."""

        def month(moment: datetime | None) -> int | None:
            return None if moment is None else (moment - START).days // 30

        rows = sorted(self.rows.values(), key=lambda fact: fact.valid_from or START)
        return [(fact.object, month(fact.valid_from), month(fact.valid_to)) for fact in rows]

    def _write(self, changes: Changes) -> None:
        self.last = changes
        for one in changes.strengthened:
            fact = self.rows[one.fact_id]
            self.rows[one.fact_id] = replace(
                fact,
                strength=fact.strength + 1,
                sources=fact.sources + one.sources,
                confidence=max(fact.confidence, one.confidence),
            )
        for fact_id in changes.superseded:
            del self.rows[fact_id]
        for fact in changes.added:
            assert fact.id not in self.rows
            self.rows[fact.id] = fact
        for id_ in changes.unsaid:
            del self.said[id_]
        for each in changes.said:
            assert each.id not in self.said
            self.said[each.id] = each
