"""Effects on facts when an episode is withdrawn as a source: a poisoned one, or one that was never true."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from aftermind.facts import predicates
from aftermind.facts.apply_assertions import BEGINNING, fold
from aftermind.facts.bitemporal_resolution import Changes, assertions_for, fact_group_key, group_key, reconcile
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import BY_USER, Operation, RecordedAssertion


def undo(
    rows: Sequence[Fact],
    undone: frozenset[EpisodeId],
    *,
    beside: frozenset[EpisodeId] = frozenset(),
    said: Sequence[RecordedAssertion] = (),
    owner: Scope,
    now: datetime,
    new_id: Callable[[], FactId],
) -> Changes:
    """The rows to write so that no fact depends only on the `undone` episodes.

    `rows` are all facts of the owner, superseded ones included, and `said` all their assertions. The facts are computed
    again from the assertions that have other sources, as if these episodes had never existed: facts that they had ended
    are valid again, and so are facts that they had retracted. Nothing is deleted except their assertions.

    Facts that a model extracted from the episodes `beside`, which it saw together with the undone ones, are removed
    too: they are extracted again. Facts stated by a call stay.

    Facts without assertions are judged by their rows: a fact with no other source is retracted, and a fact that it had
    ended is valid again until the next current one; a fact with other sources stays, with the validity from those.
    """
    believed = [fact for fact in rows if fact.superseded_at is None]
    unclaimed = {group_key(one.claim) for one in assertions_for(believed, said)[len(said) :]}
    by_rows = [fact for fact in rows if fact_group_key(fact) in unclaimed]
    changes = _undo_rows(by_rows, undone | beside, now=now, new_id=new_id)

    def undone_sources(extractor: str) -> frozenset[EpisodeId]:
        return undone if extractor == BY_USER else undone | beside

    theirs = [one for one in said if undone_sources(one.extractor).intersection(one.claim.sources)]
    changes.unsaid = [one.id for one in theirs]
    retracted = {
        (group_key(one.claim), one.claim.said_at)
        for one in said
        if one.extractor == BY_USER and one.claim.operation is Operation.RETRACT
    }
    rest = [(each, _without_sources(each, undone_sources(each.extractor))) for each in theirs]
    changes.said = [left for each, left in rest if left.claim.sources or _is_correction(each, retracted)]
    heard = [*(one for one in said if not undone_sources(one.extractor).intersection(one.claim.sources)), *changes.said]
    for group in sorted({group_key(one.claim) for one in theirs} - unclaimed):
        # Of facts that stay the store takes these sources away.
        held = [_left(fact, undone_sources(fact.extractor)) for fact in believed if fact_group_key(fact) == group]
        told = [one for one in heard if group_key(one.claim) == group]
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
        for ended in [each for each in believed.values() if was_ended_by(each, fact)]:
            put(ended, valid_to=_next_start(ended, believed.values()))
    return changes


def _without_sources(one: RecordedAssertion, undone: frozenset[EpisodeId]) -> RecordedAssertion:
    left = tuple(each for each in one.claim.sources if each not in undone)
    return replace(one, claim=replace(one.claim, sources=left))


def _is_correction(one: RecordedAssertion, retracted: Collection[tuple[object, datetime]]) -> bool:
    """Whether a call retracted it, or stated it in place of what it retracted: both stay without the messages."""
    if one.extractor != BY_USER or one.claim.operation is Operation.RETRACT:
        return one.extractor == BY_USER
    return (group_key(one.claim), one.claim.said_at) in retracted


def _left(fact: Fact, undone: frozenset[EpisodeId]) -> Fact:
    return replace(fact, sources=tuple(each for each in fact.sources if each not in undone))


def _without(fact: Fact, rows: Sequence[Fact], undone: frozenset[EpisodeId]) -> Fact | None:
    """The row that this one replaced because of an undone episode: the latest without it."""
    left = set(fact.sources) - undone
    earlier = [row for row in rows if row.superseded_at is not None and _has_same_content(row, fact)]
    sound = [row for row in earlier if row.sources and left.issuperset(row.sources)]
    return max(sound, key=lambda row: row.recorded_at, default=None)


def was_ended_by(earlier: Fact, fact: Fact) -> bool:
    """Whether it stopped because `fact` began: another object of a single-valued predicate or of the same kind ("light
    mode"), or the opposite.
    """
    if earlier.valid_to is None or not predicates.same_text(earlier.subject, fact.subject):
        return False
    is_at_once = earlier.valid_to in (fact.valid_from, earlier.valid_from)
    is_exclusive = predicates.excludes(fact.predicate, fact.object, earlier.object)
    if earlier.predicate == fact.predicate and (fact.cardinality is Cardinality.SINGLE or is_exclusive):
        return earlier.valid_to == fact.valid_from
    is_opposite = predicates.OPPOSITES.get(fact.predicate) == earlier.predicate
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


def _has_same_content(one: Fact, other: Fact) -> bool:
    return (
        one.predicate == other.predicate
        and predicates.same_text(one.subject, other.subject)
        and predicates.same_text(one.object, other.object)
    )
