"""Bi-temporal decisions: a claim and what is believed give the rows to write.

Valid time and transaction time are kept apart (Snodgrass, *Developing Time-Oriented Database Applications in SQL*,
1999): a row is never changed in what it says. Whoever learns that a fact has ended ends the *belief* in the open row
and believes a copy that has an end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aftermind.claims import predicates
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.claim import Claim, Operation

BEGINNING = datetime.min.replace(tzinfo=UTC)  # where a validity whose start nobody told begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Strengthen:
    """The same claim once more."""

    fact_id: FactId
    sources: tuple[EpisodeId, ...]
    confidence: float


@dataclass(slots=True, kw_only=True)
class Changes:
    """Rows to write for a list of claims, in one transaction.

    `superseded` are rows whose belief ends, each with the row that follows it, if one does.
    """

    added: list[Fact] = field(default_factory=list)
    superseded: dict[FactId, FactId | None] = field(default_factory=dict)
    strengthened: list[Strengthen] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.superseded or self.strengthened)


@dataclass(slots=True, kw_only=True)
class Beliefs:
    """The believed facts of one owner while claims are folded into them, in the order in which they were said."""

    owner: Scope
    now: datetime
    extractor: str
    new_id: Callable[[], FactId]
    cardinalities: Mapping[str, Cardinality] = field(default_factory=dict)
    rows: dict[FactId, Fact] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    _fresh: set[FactId] = field(default_factory=set)

    def believe(self, claim: Claim) -> None:
        """Fold one claim in."""
        claim = replace(claim, predicate=predicates.canonical(claim.predicate))
        if claim.operation is Operation.RETRACT:
            self._retract(claim)
        elif self._cardinality(claim) is Cardinality.SINGLE:
            self._assert_single(claim)
        else:
            self._assert_multi(claim)

    def _cardinality(self, claim: Claim) -> Cardinality:
        """What the namespace has set stands above what is known of the predicate, and that above what was said."""
        return self.cardinalities.get(claim.predicate) or predicates.cardinality(claim.predicate, claim.cardinality)

    def _assert_multi(self, claim: Claim) -> None:
        ended = predicates.opposite(claim.predicate)
        for fact in self._about(claim, predicate=ended) if ended else []:
            if fact.valid_to is None and predicates.same_text(fact.object, claim.object):
                self._copy(fact, valid_to=max(_begins(claim), _start(fact)))
        same = [fact for fact in self._about(claim) if _touches(fact, claim)]
        if same:
            self._again(same[-1], claim)
        else:
            self._add(claim, Cardinality.MULTI, valid_to=claim.valid_to)

    def _assert_single(self, claim: Claim) -> None:
        start = _begins(claim)
        timeline = sorted(self._about(claim), key=_start)
        before = next((fact for fact in reversed(timeline) if _start(fact) <= start), None)
        after = next((fact for fact in timeline if _start(fact) > start), None)
        covering = before if before and (before.valid_to is None or start < before.valid_to) else None
        same = next((fact for fact in timeline if _touches(fact, claim)), None)
        if same is not None:
            self._again(same, claim)
        elif after and claim.valid_to is None and predicates.same_text(after.object, claim.object):
            self._close(covering, start)
            self._copy(after, valid_from=start, sources=_joined(after.sources, claim.sources))
        else:
            self._close(covering, start)
            end = claim.valid_to or (after.valid_from if after else None)
            self._add(claim, Cardinality.SINGLE, valid_to=end)

    def _again(self, fact: Fact, claim: Claim) -> None:
        """The same object: stronger, and ended or begun earlier where the claim says so."""
        ends = claim.valid_to if claim.valid_to and fact.valid_to is None else fact.valid_to
        begins = _earlier(fact.valid_from, claim.valid_from)
        if ends == fact.valid_to and begins == fact.valid_from:
            self._strengthen(fact, claim)
            return
        ends = max(ends, begins) if ends and begins else ends
        copied = self._copy(fact, valid_from=begins, valid_to=ends, sources=_joined(fact.sources, claim.sources))
        self._put(replace(copied, confidence=max(fact.confidence, claim.confidence)))

    def _retract(self, claim: Claim) -> None:
        """It never was: the belief ends, and what it had ended goes on."""
        for fact in self._about(claim):
            if claim.object and not predicates.same_text(fact.object, claim.object):
                continue
            self._drop(fact, by=None)
            if fact.cardinality is Cardinality.SINGLE:
                ended = [row for row in self._about(claim) if row.valid_to and row.valid_to == fact.valid_from]
                for row in ended:
                    self._copy(row, valid_to=fact.valid_to)

    def _about(self, claim: Claim, *, predicate: str | None = None) -> list[Fact]:
        wanted = predicate or claim.predicate
        return [
            fact
            for fact in self.rows.values()
            if fact.predicate == wanted and predicates.same_text(fact.subject, claim.subject)
        ]

    def _close(self, fact: Fact | None, at: datetime) -> None:
        if fact is None:
            return
        if _start(fact) >= at:  # said of the same moment: the later word is a correction, not a change in the world
            self._drop(fact, by=None)
        else:
            self._copy(fact, valid_to=at)

    def _add(self, claim: Claim, cardinality: Cardinality, *, valid_to: datetime | None) -> None:
        self._put(
            Fact(
                id=self.new_id(),
                scope=self.owner,
                subject=claim.subject.strip(),
                predicate=claim.predicate,
                object=claim.object.strip(),
                confidence=claim.confidence,
                cardinality=cardinality,
                valid_from=claim.starts_at,
                valid_to=valid_to if valid_to is None else max(valid_to, _begins(claim)),
                recorded_at=self.now,
                sources=claim.sources,
                extractor=self.extractor,
            )
        )

    def _copy(self, fact: Fact, **changed: object) -> Fact:
        copied = replace(fact, id=self.new_id(), recorded_at=self.now, superseded_at=None, **changed)  # type: ignore[arg-type]
        self._drop(fact, by=copied.id)
        return self._put(copied)

    def _put(self, fact: Fact) -> Fact:
        self.rows[fact.id] = fact
        self._fresh.add(fact.id)
        self.changes.added = [row for row in self.changes.added if row.id != fact.id] + [fact]
        return fact

    def _drop(self, fact: Fact, *, by: FactId | None) -> None:
        self.rows.pop(fact.id, None)
        self.changes.strengthened = [one for one in self.changes.strengthened if one.fact_id != fact.id]
        if fact.id in self._fresh:  # made and unmade by the same list of claims: never written
            self.changes.added = [row for row in self.changes.added if row.id != fact.id]
            for old, follower in self.changes.superseded.items():
                if follower == fact.id:
                    self.changes.superseded[old] = by
        else:
            self.changes.superseded[fact.id] = by

    def _strengthen(self, fact: Fact, claim: Claim) -> None:
        fresh = tuple(source for source in claim.sources if source not in fact.sources)
        if claim.sources and not fresh:
            return  # the very same claim, told twice
        confidence = max(fact.confidence, claim.confidence)
        stronger = replace(fact, strength=fact.strength + 1, sources=fact.sources + fresh, confidence=confidence)
        if fact.id in self._fresh:
            self._put(stronger)
            return
        self.rows[fact.id] = stronger
        self.changes.strengthened.append(Strengthen(fact_id=fact.id, sources=fresh, confidence=confidence))


def decide(
    claims: Iterable[Claim],
    believed: Sequence[Fact],
    *,
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
) -> Changes:
    """What to write for `claims`, given the owner's `believed` facts about the same subjects.

    Claims are folded in the order in which they were said. A single-valued predicate has a timeline: a new object ends
    the one that was valid when it begins, and begins no later claim's place. A multi-valued one accumulates. The same
    claim strengthens; told twice from the same episodes it changes nothing. A retraction ends the belief, and reopens
    what the retracted fact had ended. `cardinalities` are what the namespace has set of predicates.
    """
    rows = {fact.id: fact for fact in believed}
    state = Beliefs(
        owner=owner, now=now, extractor=extractor, new_id=new_id, cardinalities=cardinalities or {}, rows=rows
    )
    for claim in sorted(claims, key=lambda claim: claim.said_at):
        state.believe(claim)
    return state.changes


def _start(fact: Fact) -> datetime:
    return fact.valid_from or BEGINNING


def _begins(claim: Claim) -> datetime:
    return claim.starts_at or BEGINNING


def _touches(fact: Fact, claim: Claim) -> bool:
    """Whether the claim is of the same object, and of the same stretch of time."""
    if not predicates.same_text(fact.object, claim.object):
        return False
    begins_before_it_ended = fact.valid_to is None or _begins(claim) < fact.valid_to
    ends_after_it_began = claim.valid_to is None or _start(fact) <= claim.valid_to
    starts_within = claim.valid_to is not None or _start(fact) <= _begins(claim)
    return begins_before_it_ended and ends_after_it_began and starts_within


def _earlier(left: datetime | None, right: datetime | None) -> datetime | None:
    return min(left, right) if left and right else left


def _joined(left: tuple[EpisodeId, ...], right: tuple[EpisodeId, ...]) -> tuple[EpisodeId, ...]:
    return left + tuple(source for source in right if source not in left)
