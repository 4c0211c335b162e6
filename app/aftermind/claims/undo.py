"""What becomes of facts when an episode is no longer to be drawn from: a poisoned one, or one that was never true."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from aftermind.claims import predicates
from aftermind.claims.decide import Changes
from aftermind.claims.folding import BEGINNING
from aftermind.types import Cardinality, EpisodeId, Fact, FactId


def undo(rows: Sequence[Fact], undone: frozenset[EpisodeId], *, now: datetime, new_id: Callable[[], FactId]) -> Changes:
    """The rows to write so that nothing is believed on the word of the `undone` episodes alone.

    `rows` are all facts of the owner, superseded ones included. A fact that rests on them alone is believed no more,
    and what it had ended goes on, until the next that is believed. One that rests on others too stays, with the
    validity that it had by those. Nothing is deleted. What cannot be told from rows is not restored: a fact that an
    undone episode took back ("I never lived there") without putting another in its place.
    """
    believed = {fact.id: fact for fact in rows if fact.superseded_at is None}
    changes = Changes()
    gone = [fact for fact in believed.values() if fact.sources and undone.issuperset(fact.sources)]
    shared = [fact for fact in believed.values() if undone.intersection(fact.sources) and fact not in gone]
    for fact in gone:
        del believed[fact.id]
        changes.superseded[fact.id] = None

    def put(fact: Fact, **changed: object) -> None:
        copied = replace(fact, id=new_id(), recorded_at=now, **changed)  # type: ignore[arg-type]
        del believed[fact.id]
        believed[copied.id] = copied
        if any(fresh.id == fact.id for fresh in changes.added):  # put a moment ago
            changes.added = [fresh for fresh in changes.added if fresh.id != fact.id]
            changes.superseded = {old: copied.id if by == fact.id else by for old, by in changes.superseded.items()}
        else:
            changes.superseded[fact.id] = copied.id
        changes.added.append(copied)

    for fact in shared:
        before = _without(fact, rows, undone)
        if before is not None and (before.valid_from, before.valid_to) != (fact.valid_from, fact.valid_to):
            left = tuple(each for each in fact.sources if each not in undone)
            ends = before.valid_to or _next_start(before, [row for row in believed.values() if row is not fact])
            put(fact, sources=left, valid_from=before.valid_from, valid_to=ends, strength=max(1, fact.strength - 1))
    for fact in gone:
        for ended in [each for each in believed.values() if _was_ended_by(each, fact)]:
            put(ended, valid_to=_next_start(ended, believed.values()))
    return changes


def _without(fact: Fact, rows: Sequence[Fact], undone: frozenset[EpisodeId]) -> Fact | None:
    """The row that this one took the place of when an undone episode spoke: the latest that knew nothing of it."""
    left = set(fact.sources) - undone
    earlier = [row for row in rows if row.superseded_at is not None and _says_the_same(row, fact)]
    sound = [row for row in earlier if row.sources and left.issuperset(row.sources)]
    return max(sound, key=lambda row: row.recorded_at, default=None)


def _was_ended_by(earlier: Fact, fact: Fact) -> bool:
    """Whether it stopped because `fact` began: another object of a single-valued predicate, or the opposite."""
    if earlier.valid_to is None or not predicates.same_text(earlier.subject, fact.subject):
        return False
    is_at_once = earlier.valid_to in (fact.valid_from, earlier.valid_from)
    if earlier.predicate == fact.predicate and fact.cardinality is Cardinality.SINGLE:
        return earlier.valid_to == fact.valid_from
    is_opposite = predicates.opposite(fact.predicate) == earlier.predicate
    return is_opposite and is_at_once and predicates.same_text(earlier.object, fact.object)


def _next_start(fact: Fact, believed: Iterable[Fact]) -> datetime | None:
    """When the next believed object of a single-valued predicate begins."""
    if fact.cardinality is not Cardinality.SINGLE:
        return None
    begins = fact.valid_from or BEGINNING
    later = [
        row.valid_from
        for row in believed
        if row.id != fact.id and row.predicate == fact.predicate and predicates.same_text(row.subject, fact.subject)
    ]
    return min((start for start in later if start is not None and start >= begins), default=None)


def _says_the_same(one: Fact, other: Fact) -> bool:
    return (
        one.predicate == other.predicate
        and predicates.same_text(one.subject, other.subject)
        and predicates.same_text(one.object, other.object)
    )
