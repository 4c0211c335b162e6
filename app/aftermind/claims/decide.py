"""Bi-temporal decisions: what was said and what is believed give the rows to write.

Valid time and transaction time are kept apart (Snodgrass, *Developing Time-Oriented Database Applications in SQL*,
1999): a row is never changed in what it says. Whoever learns that a fact has ended ends the *belief* in the open row
and believes one that has an end.

Everything said is kept, and what is believed is the fold of it in the order in which it was *said*. So it does not
matter in which order, how often or by which worker it was mined: a retraction that comes before the claim it takes
back, and a return that comes before the move away, end where they would have ended in order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from aftermind.claims import predicates
from aftermind.claims.folding import fold, start_of
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.claim import Claim, Said

Group = tuple[str, str]  # a subject as it is compared, and a predicate; one that ends it counts as the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengthen:
    """The same claim once more."""

    fact_id: FactId
    sources: tuple[EpisodeId, ...]
    confidence: float


@dataclass(slots=True, kw_only=True)
class Changes:
    """Rows to write for a list of claims, in one transaction.

    `superseded` are rows whose belief ends, each with the row that follows it, if one does. `said` are claims to keep
    and `unsaid` those to keep no longer; `believed` is all that is believed then about what the claims are about.
    """

    added: list[Fact] = field(default_factory=list)
    superseded: dict[FactId, FactId | None] = field(default_factory=dict)
    strengthened: list[Strengthen] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    unsaid: list[UUID] = field(default_factory=list)
    believed: list[Fact] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.superseded or self.strengthened)


def decide(
    claims: Iterable[Claim],
    believed: Sequence[Fact],
    *,
    said: Sequence[Said] = (),
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
    unsaid: frozenset[UUID] = frozenset(),
) -> Changes:
    """What to write for `claims`, given the owner's `believed` facts and all that was `said` about the same subjects.

    A claim that was kept before, from the same episodes, changes nothing. `unsaid` are claims to be taken out of what
    was said. `cardinalities` are what the namespace has set of predicates. A believed fact that no claim was kept of
    (an earlier release wrote it) counts as a claim of itself.
    """
    kept = claims_of(believed, said)
    new = _fresh(claims, kept, extractor, new_id, cardinalities or {}, unsaid=unsaid)
    touched = {group_of(one.claim) for one in new} | {group_of(one.claim) for one in kept if one.id in unsaid}
    changes = Changes(unsaid=[one.id for one in said if one.id in unsaid])
    known = {one.id for one in said}
    for group in sorted(touched):
        mine = [one for one in (*kept, *new) if group_of(one.claim) == group and one.id not in unsaid]
        changes.said += [one for one in mine if one.id not in known]
        rows = [fact for fact in believed if group_of_fact(fact) == group]
        reconcile(rows, fold(mine, owner=owner, now=now), changes, new_id)
    return changes


def group_of(claim: Claim) -> Group:
    """What a claim is about: claims of one group can change each other's facts, and no others."""
    return _group(claim.subject, claim.predicate)


def group_of_fact(fact: Fact) -> Group:
    """The same of what is believed."""
    return _group(fact.subject, fact.predicate)


def _group(subject: str, predicate: str) -> Group:
    name = predicates.canonical(predicate)
    return predicates.folded(subject), min(name, predicates.opposite(name) or name)


def _fresh(
    claims: Iterable[Claim],
    kept: Sequence[Said],
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality],
    *,
    unsaid: frozenset[UUID],
) -> list[Said]:
    """The claims as they will be kept, without those that are kept already."""
    seen = {_key(one.claim) for one in kept if one.id not in unsaid}
    found: list[Said] = []
    for place, claim in enumerate(claims):
        name = predicates.canonical(claim.predicate)
        # What the namespace has set stands above what is known of the predicate, and that above what was said.
        decided = cardinalities.get(name) or predicates.cardinality(name, claim.cardinality)
        one = replace(claim, predicate=name, cardinality=decided, quote=None)
        if _key(one) not in seen:
            seen.add(_key(one))
            found.append(Said(id=UUID(str(new_id())), claim=one, extractor=extractor, place=place))
    return found


def _key(claim: Claim) -> tuple[object, ...]:
    about = (predicates.folded(claim.subject), claim.predicate, predicates.folded(claim.object), claim.operation)
    return (*about, claim.said_at, claim.valid_from, claim.valid_to, frozenset(claim.sources))


def claims_of(believed: Sequence[Fact], said: Sequence[Said]) -> list[Said]:
    """What was said, and claims for the believed facts that none was kept of."""
    told = {(group_of(one.claim), predicates.folded(one.claim.object)) for one in said}
    unsaid = [
        Said(id=UUID(str(fact.id)), claim=_claimed(fact), extractor=fact.extractor)
        for fact in believed
        if (group_of_fact(fact), predicates.folded(fact.object)) not in told
    ]
    return [*said, *unsaid]


def _claimed(fact: Fact) -> Claim:
    return Claim(
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
    """Let the `believed` rows of a group say what is `wanted`, by what is added to `changes`.

    Rows that say the same stay, stronger where more sources say it; the others give way.
    """
    left = {_says(fact): fact for fact in believed}
    gone = {fact.id: fact for fact in believed}
    for fact in wanted:
        old = left.pop(_says(fact), None)
        if old is None or not set(old.sources) <= set(fact.sources):
            added = replace(fact, id=new_id())
            changes.added.append(added)
            changes.believed.append(added)
            continue
        del gone[old.id]
        changes.believed.append(replace(fact, id=old.id, recorded_at=old.recorded_at))
        fresh = tuple(source for source in fact.sources if source not in old.sources)
        for time in range(max(fact.strength - old.strength, 1 if fresh else 0)):
            sources = fresh if time == 0 else ()
            changes.strengthened.append(Strengthen(fact_id=old.id, sources=sources, confidence=fact.confidence))
    for old in gone.values():
        changes.superseded[old.id] = _follower(old, changes.added)


def _says(fact: Fact) -> tuple[object, ...]:
    about = (predicates.folded(fact.subject), fact.predicate, predicates.folded(fact.object))
    return (*about, fact.valid_from, fact.valid_to)


def _follower(old: Fact, added: Sequence[Fact]) -> FactId | None:
    """The row that says of the same object what is believed of it now: the nearest in time."""
    same = [fact for fact in added if _says(fact)[:3] == _says(old)[:3]]
    return min(same, key=lambda fact: abs(start_of(fact) - start_of(old)), default=old).id if same else None
