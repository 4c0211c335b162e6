"""What becomes of facts when an episode is no longer to be drawn from: a poisoned one, or one that was never true."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from aftermind.claims import predicates
from aftermind.claims.decide import Changes, claims_of, group_of, group_of_fact, reconcile
from aftermind.claims.folding import BEGINNING, fold
from aftermind.claims.redo import TOLD
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.claim import Said


def undo(
    rows: Sequence[Fact],
    undone: frozenset[EpisodeId],
    *,
    beside: frozenset[EpisodeId] = frozenset(),
    said: Sequence[Said] = (),
    owner: Scope,
    now: datetime,
    new_id: Callable[[], FactId],
) -> Changes:
    """What to write so that nothing is believed on the word of the `undone` episodes alone.

    `rows` are all facts of the owner, superseded ones included, and `said` every claim that is kept of them. What is
    believed is folded anew from the claims that others tell too, as if these episodes had never spoken: what they had
    ended goes on, and what they had taken back is believed again. Nothing is deleted but their claims.

    What a model drew from the episodes `beside`, which it was shown together with the undone ones, goes too: it will be
    drawn again without them. What a call stated stays.

    Facts that no claim was kept of (a former release wrote them) are told by their rows: one that rests on these
    episodes alone is believed no more, and what it had ended goes on until the next that is believed; one that rests on
    others too stays, with the validity that it had by those. What such a release was told never to have been is not
    restored.
    """
    believed = [fact for fact in rows if fact.superseded_at is None]
    unclaimed = {group_of(one.claim) for one in claims_of(believed, said)[len(said) :]}
    by_rows = [fact for fact in rows if group_of_fact(fact) in unclaimed]
    changes = _undo_rows(by_rows, undone | beside, now=now, new_id=new_id)

    def gone(extractor: str) -> frozenset[EpisodeId]:
        return undone if extractor == TOLD else undone | beside

    theirs = [one for one in said if gone(one.extractor).intersection(one.claim.sources)]
    changes.unsaid = [one.id for one in theirs]
    changes.said = [one for each in theirs if (one := _without_sources(each, gone(each.extractor))) is not None]
    heard = [*(one for one in said if not gone(one.extractor).intersection(one.claim.sources)), *changes.said]
    for group in sorted({group_of(one.claim) for one in theirs} - unclaimed):
        # Of facts that stay the store takes these sources away.
        held = [_left(fact, gone(fact.extractor)) for fact in believed if group_of_fact(fact) == group]
        told = [one for one in heard if group_of(one.claim) == group]
        reconcile(held, fold(told, owner=owner, now=now), changes, new_id)
    return changes


def _undo_rows(
    rows: Sequence[Fact], undone: frozenset[EpisodeId], *, now: datetime, new_id: Callable[[], FactId]
) -> Changes:
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


def _without_sources(one: Said, undone: frozenset[EpisodeId]) -> Said | None:
    """The claim as others tell it; None where nobody else does."""
    left = tuple(each for each in one.claim.sources if each not in undone)
    return replace(one, claim=replace(one.claim, sources=left)) if left else None


def _left(fact: Fact, undone: frozenset[EpisodeId]) -> Fact:
    return replace(fact, sources=tuple(each for each in fact.sources if each not in undone))


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
