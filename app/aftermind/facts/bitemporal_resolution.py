"""Bi-temporal resolution: assertions and current facts give the rows to write.

Valid time and transaction time are separate (Snodgrass, *Developing Time-Oriented Database Applications in SQL*, 1999):
the content of a row never changes. To end a fact, the open row is superseded and a row with an end is added.

All assertions are kept, and the facts result from applying them in the order in which they were *made*. So it does not
matter in which order, how often or by which worker they were extracted: a retraction that arrives before its assertion,
and a return that arrives before the departure, give the same result as in order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from aftermind.facts import predicates
from aftermind.facts.apply_assertions import Folding, apply_assertions, effective_start, fold
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import Assertion, Operation, RecordedAssertion

Group = tuple[str, str]  # a subject as it is compared, and a predicate; one that ends it counts as the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengthen:
    """The assertion is repeated."""

    fact_id: FactId
    sources: tuple[EpisodeId, ...]
    confidence: float


@dataclass(slots=True, kw_only=True)
class Changes:
    """Rows to write for a list of claims, in one transaction.

    `superseded` are rows whose belief ends, each with the row that follows it, if one does. `never_believed` are rows
    of facts that the claims state and take back: they are superseded when they are recorded. `said` are claims to keep
    and `unsaid` those to keep no longer; `believed` is all that is believed then about what the claims are about.
    """

    added: list[Fact] = field(default_factory=list)
    superseded: dict[FactId, FactId | None] = field(default_factory=dict)
    never_believed: list[Fact] = field(default_factory=list)
    strengthened: list[Strengthen] = field(default_factory=list)
    said: list[RecordedAssertion] = field(default_factory=list)
    unsaid: list[UUID] = field(default_factory=list)
    believed: list[Fact] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.superseded or self.strengthened)

    def states(self, claim: Assertion) -> bool:
        """Whether the claim counts: it states something itself, or is an end that a fact has."""
        if claim.operation is not Operation.END:
            return True
        return any(
            fact_group_key(fact) == group_key(claim) and not set(claim.sources).isdisjoint(fact.sources)
            for fact in self.believed
            if fact.valid_to is not None
        )


def decide(
    claims: Iterable[Assertion],
    believed: Sequence[Fact],
    *,
    said: Sequence[RecordedAssertion] = (),
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
    unsaid: frozenset[UUID] = frozenset(),
) -> Changes:
    """The changes for `claims`, given the owner's `believed` facts and all assertions (`said`) about the same subjects.

    An assertion that was stored before, from the same episodes, changes nothing. `unsaid` are assertions to be removed.
    `cardinalities` are those set by the namespace. A current fact without an assertion counts as its
    own assertion.
    """
    kept = assertions_for(believed, said)
    new = _fresh(claims, kept, extractor, new_id, cardinalities or {}, unsaid=unsaid)
    touched = {group_key(one.claim) for one in new} | {group_key(one.claim) for one in kept if one.id in unsaid}
    changes = Changes(unsaid=[one.id for one in said if one.id in unsaid])
    known = {one.id for one in said}
    for group in sorted(touched):
        mine = [one for one in (*kept, *new) if group_key(one.claim) == group and one.id not in unsaid]
        changes.said += [one for one in mine if one.id not in known]
        rows = [fact for fact in believed if fact_group_key(fact) == group]
        applied = apply_assertions(mine, owner=owner, now=now)
        if applied.dropped:
            before = apply_assertions([one for one in kept if group_key(one.claim) == group], owner=owner, now=now)
            _record_dropped(rows, before, applied, changes, new_id)
        reconcile(rows, list(applied.rows.values()), changes, new_id)
    return changes


def _record_dropped(
    believed: Sequence[Fact], before: Folding, after: Folding, changes: Changes, new_id: Callable[[], FactId]
) -> None:
    """Give each fact that these claims are the first to drop a row in the history, with all its sources.

    So the history has the fact whether or not its correction was extracted together with it.
    """
    recorded = {(*_content_key(fact), frozenset(fact.sources)) for fact in before.dropped.values()}
    rows = {_content_key(fact): fact for fact in believed}
    for fact in after.dropped.values():
        if (*_content_key(fact), frozenset(fact.sources)) in recorded:
            continue
        row = rows.get(_content_key(fact))
        if row is not None and set(row.sources) <= set(fact.sources):
            _strengthen(row, fact, changes)
        else:
            changes.never_believed.append(replace(fact, id=new_id(), superseded_at=fact.recorded_at))


def group_key(claim: Assertion) -> Group:
    """What a claim is about: claims of one group can change each other's facts, and no others."""
    return to_group(claim.subject, claim.predicate)


def fact_group_key(fact: Fact) -> Group:
    """The group key of a fact."""
    return to_group(fact.subject, fact.predicate)


def to_group(subject: str, predicate: str) -> Group:
    """The group of a subject and a predicate."""
    name = predicates.canonical(predicate)
    return predicates.folded(subject), min(name, predicates.OPPOSITES.get(name) or name)


def _fresh(
    claims: Iterable[Assertion],
    kept: Sequence[RecordedAssertion],
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality],
    *,
    unsaid: frozenset[UUID],
) -> list[RecordedAssertion]:
    """The claims as they will be kept, without those that are kept already."""
    seen = {_key(one.claim) for one in kept if one.id not in unsaid}
    found: list[RecordedAssertion] = []
    for place, claim in enumerate(claims):
        name = predicates.canonical(claim.predicate)
        # The namespace's setting has precedence over the built-in value, and that over the assertion.
        decided = cardinalities.get(name) or predicates.cardinality(name, claim.cardinality)
        one = replace(claim, predicate=name, cardinality=decided, quote=None)
        if _key(one) not in seen:
            seen.add(_key(one))
            found.append(RecordedAssertion(id=UUID(str(new_id())), claim=one, extractor=extractor, place=place))
    return found


def _key(claim: Assertion) -> tuple[object, ...]:
    about = (predicates.folded(claim.subject), claim.predicate, predicates.folded(claim.object), claim.operation)
    return (*about, claim.said_at, claim.valid_from, claim.valid_to, claim.latest_at, frozenset(claim.sources))


def assertions_for(believed: Sequence[Fact], said: Sequence[RecordedAssertion]) -> list[RecordedAssertion]:
    """The stored assertions, and assertions made from current facts that have none."""
    told = {(group_key(one.claim), predicates.folded(one.claim.object)) for one in said}
    unsaid = [
        RecordedAssertion(id=UUID(str(fact.id)), claim=_claimed(fact), extractor=fact.extractor)
        for fact in believed
        if (fact_group_key(fact), predicates.folded(fact.object)) not in told
    ]
    return [*said, *unsaid]


def _claimed(fact: Fact) -> Assertion:
    return Assertion(
        subject=fact.subject,
        predicate=fact.predicate,
        object=fact.object,
        said_at=fact.valid_from or fact.recorded_at,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
        confidence=fact.confidence,
        cardinality=fact.cardinality,
        sources=fact.sources,
    )


def reconcile(believed: Sequence[Fact], wanted: Sequence[Fact], changes: Changes, new_id: Callable[[], FactId]) -> None:
    """Make the `believed` rows of a group equal to `wanted`, by additions to `changes`.

    Rows with the same content stay, strengthened if they have more sources; the others are superseded.
    """
    left = {_content_key(fact): fact for fact in believed}
    gone = {fact.id: fact for fact in believed}
    for fact in wanted:
        old = left.pop(_content_key(fact), None)
        if old is None or not set(old.sources) <= set(fact.sources):
            added = replace(fact, id=new_id())
            changes.added.append(added)
            changes.believed.append(added)
            continue
        del gone[old.id]
        changes.believed.append(replace(fact, id=old.id, recorded_at=old.recorded_at))
        _strengthen(old, fact, changes)
    for old in gone.values():
        changes.superseded[old.id] = _follower(old, changes.added)


def _strengthen(old: Fact, fact: Fact, changes: Changes) -> None:
    """Give a row the further sources of a fact, and its strength."""
    fresh = tuple(source for source in fact.sources if source not in old.sources)
    for time in range(max(fact.strength - old.strength, 1 if fresh else 0)):
        sources = fresh if time == 0 else ()
        changes.strengthened.append(Strengthen(fact_id=old.id, sources=sources, confidence=fact.confidence))


def resolve_after_erasure(
    groups: Collection[Group],
    believed: Iterable[Fact],
    assertions: Iterable[RecordedAssertion],
    *,
    owner: Scope,
    now: datetime,
    new_id: Callable[[], FactId],
) -> tuple[list[Fact], list[Fact]]:
    """The `believed` rows to delete, and the rows to write, so that the facts of `groups` are those of `assertions`.

    Unlike `reconcile`, which keeps a changed row as history: what was derived from erased messages must not stay there.
    A row that changes is deleted and written again under its id.
    """
    rows = {group: list[Fact]() for group in groups}
    claims = {group: list[RecordedAssertion]() for group in groups}
    for fact in believed:
        rows.get(fact_group_key(fact), []).append(fact)
    for one in assertions:
        claims.get(group_key(one.claim), []).append(one)
    deleted: list[Fact] = []
    written: list[Fact] = []
    for group, mine in claims.items():
        left: dict[tuple[object, ...], list[Fact]] = {}
        for fact in rows[group]:
            left.setdefault(_content_key(fact)[:3], []).append(fact)
        for fact in fold(assertions_for(rows[group], mine), owner=owner, now=now):
            same = left.get(_content_key(fact)[:3], [])
            if not same:
                written.append(replace(fact, id=new_id()))
                continue
            old = min(same, key=lambda each: abs(effective_start(each) - effective_start(fact)))
            same.remove(old)
            fresh = replace(fact, id=old.id, scope=old.scope, recorded_at=old.recorded_at)
            if set(fresh.sources) != set(old.sources) or replace(fresh, sources=old.sources) != old:
                deleted.append(old)
                written.append(fresh)
        deleted += [fact for same in left.values() for fact in same]
    return deleted, written


def _content_key(fact: Fact) -> tuple[object, ...]:
    about = (predicates.folded(fact.subject), fact.predicate, predicates.folded(fact.object))
    return (*about, fact.valid_from, fact.valid_to)


def _follower(old: Fact, added: Sequence[Fact]) -> FactId | None:
    """The row that now has the same object: the nearest in time."""
    same = [fact for fact in added if _content_key(fact)[:3] == _content_key(old)[:3]]
    return (
        min(same, key=lambda fact: abs(effective_start(fact) - effective_start(old)), default=old).id if same else None
    )
