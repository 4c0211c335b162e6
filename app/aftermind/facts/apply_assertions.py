"""Applies assertions in the order in which they were made; the result is the current facts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

from aftermind.facts import predicates
from aftermind.types import Cardinality, Fact, FactId, Scope
from aftermind.types.assertion import BY_USER, Assertion, Operation, RecordedAssertion

SHORTLY = timedelta(days=62)  # "last year" and "last month" of a fact that was first heard of since
BEGINNING = datetime.min.replace(tzinfo=UTC)  # start of a validity without a stated start


@dataclass(slots=True, kw_only=True)
class Folding:
    """Facts about one subject while assertions are applied.

    A single-valued predicate has a timeline: a new object ends the one that was valid when it begins. A multi-valued
    one accumulates. The same assertion strengthens; a retraction reverts earlier assertions, and reopens facts that
    they had ended, up to an end that another assertion states. Where the message of a retraction then states another
    object of a single-valued predicate, without a time, that object has the start of the retracted one: "I meant Basel,
    not Bern". A claim whose time is a period ("today", "in 2025") comes after facts that an earlier message began
    within that period.

    `dropped` are facts that a later assertion removed as if they had never been true. `corrections` are pairs of such a
    fact and the one in its place, which the same message or call states next, or which begins at the same moment.
    """

    owner: Scope
    now: datetime
    rows: dict[FactId, Fact] = field(default_factory=dict)
    dropped: dict[FactId, Fact] = field(default_factory=dict)
    corrections: list[tuple[FactId, FactId]] = field(default_factory=list)
    # Facts that a message or a call has retracted, until it states another object of the predicate.
    _retracted: dict[tuple[object, ...], list[Fact]] = field(default_factory=dict)
    _undated: set[FactId] = field(default_factory=set)  # facts without a stated start
    _stated_ends: dict[FactId, datetime] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    # Index by predicate and object: a user may like a thousand things, and each assertion searches them.
    _by_object: dict[tuple[str, str], dict[FactId, None]] = field(default_factory=dict)

    def believe(self, said: RecordedAssertion) -> None:
        """Fold one claim in."""
        claim = self._shift_behind_overlapped(said.claim)
        if claim.operation is Operation.RETRACT:
            self._retracted.setdefault(_statement(said), []).extend(self._retract(claim))
        elif claim.operation is Operation.END:
            self._end(claim, said.claim.valid_to or claim.said_at)
        else:
            self._assert(claim, said)

    def _shift_behind_overlapped(self, claim: Assertion) -> Assertion:
        """The claim with its time at `latest_at`, if a fact that it ends began within the period of its time.

        Of a period that is over ("in 2025", in 2026), an object that began within it is a repetition, and begins then.
        A period shortly before a fact whose start was not stated ends it all the same, at the time of the message: in
        March "I left Acme last year", after "I work at Acme" in January.
        """
        earliest, latest = claim.valid_to or claim.valid_from, claim.latest_at
        if earliest is None or latest is None or claim.operation is Operation.RETRACT:
            return claim
        if claim.valid_to is not None:
            about = self._facts_of(claim)
            if any(fact.valid_to and effective_start(fact) <= latest and earliest <= fact.valid_to for fact in about):
                return claim  # the end of a former stay
            ended = [fact for fact in about if fact.valid_to is None]
            if any(earliest <= effective_start(fact) <= latest for fact in ended):
                return replace(claim, valid_to=latest)
            # Without its object it may be the end of an earlier job: "I quit my job last year and joined Acme".
            starts = [effective_start(fact) for fact in ended if claim.object and fact.id in self._undated]
            is_before = any(latest < start <= min(latest + SHORTLY, claim.said_at) for start in starts)
            return replace(claim, valid_to=claim.said_at) if is_before else claim
        if claim.cardinality is not Cardinality.SINGLE:
            return claim
        begun = [f for f in self._with_predicate(claim.predicate) if earliest <= effective_start(f) <= latest]
        same = [fact for fact in begun if predicates.same_text(fact.object, claim.object)]
        if len(same) == len(begun):
            return claim
        if same and latest < claim.said_at:
            return replace(claim, valid_from=same[-1].valid_from)
        return replace(claim, valid_from=latest)

    def _assert(self, claim: Assertion, said: RecordedAssertion) -> None:
        former = self._retracted.pop(_statement(said), [])
        count = len(self.dropped)
        if claim.cardinality is Cardinality.SINGLE:
            current = [fact for fact in former if fact.valid_to is None]
            if current and claim.valid_from is None and claim.valid_to is None:
                claim = replace(claim, valid_from=current[-1].valid_from)
            id_ = self._assert_single(claim, said.extractor)
        else:
            id_ = self._assert_multi(claim, said.extractor)
        former += list(self.dropped.values())[count:]
        self.corrections += [(fact.id, id_) for fact in former if _overlaps(fact, self.rows[id_])]

    def _assert_multi(self, claim: Assertion, extractor: str) -> FactId:
        ended = predicates.OPPOSITES.get(claim.predicate)
        for fact in self._same(ended, claim.object) if ended else []:
            if fact.valid_to is None:
                self._change(fact, valid_to=max(_begins(claim), effective_start(fact)))
        if claim.predicate in predicates.EXCLUSIVE and claim.valid_to is None:
            for fact in self._with_predicate(claim.predicate):
                if fact.valid_to is None and predicates.excludes(claim.predicate, claim.object, fact.object):
                    self._change(fact, valid_to=max(_begins(claim), effective_start(fact)))
        same = [fact for fact in self._same(claim.predicate, claim.object) if _touches(fact, claim)]
        if same:
            return self._again(same[-1], claim)
        return self._add(claim, extractor, valid_to=claim.valid_to)

    def _assert_single(self, claim: Assertion, extractor: str) -> FactId:
        start = _begins(claim)
        timeline = sorted(self._with_predicate(claim.predicate), key=effective_start)
        after = next((fact for fact in timeline if effective_start(fact) > start), None)
        # More than one where the predicate was multi-valued before.
        covering = [
            fact
            for fact in timeline
            if effective_start(fact) <= start and (fact.valid_to is None or start < fact.valid_to)
        ]
        same = [fact for fact in timeline if _touches(fact, claim) or _contains(fact, claim)]
        if same:  # of two stays in one place an end is the end of the last
            stay = same[-1 if claim.valid_from is None else 0]
            if claim.valid_from is not None and claim.valid_from < effective_start(stay):
                self._close([fact for fact in covering if fact.id != stay.id], claim.valid_from)
            return self._again(stay, claim)
        if after and claim.valid_to is None and predicates.same_text(after.object, claim.object):
            self._close(covering, start)
            return self._again(after, claim, starting=start)
        if claim.valid_from is None and claim.valid_to is not None and claim.valid_to <= claim.said_at:
            # Of two former objects, both from an unknown start, the second is no correction of the first.
            return self._add(claim, extractor, valid_to=_last_end(claim, timeline))
        self._close(covering, start)
        return self._add(claim, extractor, valid_to=claim.valid_to or (after.valid_from if after else None))

    def _again(self, fact: Fact, claim: Assertion, *, starting: datetime | None = None) -> FactId:
        """Repeat the assertion: strengthen the fact, and end or start it earlier if the assertion does."""
        is_of_time_before = claim.valid_from is not None and claim.valid_to == effective_start(fact) > claim.valid_from
        ends = claim.valid_to if claim.valid_to and not fact.valid_to and not is_of_time_before else fact.valid_to
        begins = starting or _earlier(fact.valid_from, claim.valid_from)
        if claim.valid_from is not None:
            self._undated.discard(fact.id)
        if claim.valid_to is not None and not is_of_time_before:
            self._stated_ends[fact.id] = claim.valid_to
        is_told_twice = bool(claim.sources) and set(claim.sources) <= set(fact.sources)
        self._change(
            fact,
            valid_from=begins,
            valid_to=max(ends, begins) if ends and begins else ends,
            sources=fact.sources + tuple(source for source in claim.sources if source not in fact.sources),
            strength=fact.strength if is_told_twice else fact.strength + 1,
            confidence=max(fact.confidence, claim.confidence),
        )
        return fact.id

    def _end(self, claim: Assertion, stated: datetime) -> None:
        at = claim.valid_to or claim.said_at
        for fact in self._facts_of(claim):
            starts = effective_start(fact)
            # "I just joined Hooli. I quit my job": what the message itself begins is not meant.
            is_meant = bool(claim.object) or set(claim.sources).isdisjoint(fact.sources) or starts < stated
            if fact.valid_to is None and starts <= at and is_meant:
                self._again(fact, replace(claim, valid_to=at))
            elif fact.valid_to and claim.object and starts <= at:
                self._stated_ends[fact.id] = at

    def _retract(self, claim: Assertion) -> list[Fact]:
        """Retract what was true within the assertion's time, if it has one. What that had ended is valid again, at most
        until an end that another assertion states ("I left Acme").
        """
        dropped = []
        for each in self._facts_within(claim):
            fact = self._drop(each)
            dropped.append(fact)
            if fact.cardinality is Cardinality.SINGLE:
                for row in self._with_predicate(claim.predicate):
                    if row.valid_to and row.valid_to == fact.valid_from:
                        ends = [end for end in (self._stated_ends.get(row.id), fact.valid_to) if end]
                        self._change(row, valid_to=min(ends, default=None))
        return dropped

    def _facts_within(self, claim: Assertion) -> list[Fact]:
        """The facts of its object that are true at its time, with those that they continue without a break."""
        rest = sorted(self._facts_of(claim), key=effective_start, reverse=True)
        found = [fact for fact in rest if _overlaps(fact, claim) or fact.valid_from == claim.valid_from]
        for fact in rest:
            if fact.valid_to and fact not in found and fact.valid_to in {each.valid_from for each in found}:
                found.append(fact)
        return found

    def _facts_of(self, claim: Assertion) -> list[Fact]:
        """Of its object; of every object of the predicate if it has none."""
        return self._same(claim.predicate, claim.object) if claim.object else self._with_predicate(claim.predicate)

    def _with_predicate(self, predicate: str) -> list[Fact]:
        return [fact for fact in self.rows.values() if fact.predicate == predicate]

    def _same(self, predicate: str, object_: str) -> list[Fact]:
        return [self.rows[id_] for id_ in self._by_object.get((predicate, predicates.folded(object_)), ())]

    def _close(self, facts: Sequence[Fact], at: datetime) -> None:
        for fact in facts:
            if effective_start(fact) >= at:  # of the same moment: the later one is a correction, not a change
                self._drop(fact)
            else:
                self._change(fact, valid_to=at)

    def _add(self, claim: Assertion, extractor: str, *, valid_to: datetime | None) -> FactId:
        id_ = FactId(UUID(int=next(self._numbers)))
        self.rows[id_] = Fact(
            id=id_,
            scope=self.owner,
            subject=claim.subject.strip(),
            predicate=claim.predicate,
            object=claim.object.strip(),
            confidence=claim.confidence,
            cardinality=claim.cardinality or Cardinality.MULTI,
            valid_from=claim.starts_at,
            valid_to=valid_to if valid_to is None else max(valid_to, _begins(claim)),
            recorded_at=self.now,
            sources=claim.sources,
            extractor=extractor,
        )
        self._by_object.setdefault((claim.predicate, predicates.folded(claim.object)), {})[id_] = None
        if claim.valid_from is None:
            self._undated.add(id_)
        if claim.valid_to is not None and claim.valid_to <= claim.said_at:  # not that of a fact without assertions
            self._stated_ends[id_] = claim.valid_to
        return id_

    def _drop(self, fact: Fact) -> Fact:
        """Take it out; as it is by now."""
        del self._by_object[fact.predicate, predicates.folded(fact.object)][fact.id]
        self.dropped[fact.id] = self.rows.pop(fact.id)
        return self.dropped[fact.id]

    def _change(self, fact: Fact, **changed: object) -> None:
        self.rows[fact.id] = replace(fact, **changed)  # type: ignore[arg-type]


def apply_assertions(said: Iterable[RecordedAssertion], *, owner: Scope, now: datetime) -> Folding:
    """Apply all these assertions, in whatever order they are given. The ids of facts are numbers within the result."""
    state = Folding(owner=owner, now=now)
    for one in sorted(said, key=lambda each: each.order):
        state.believe(one)
    return state


def fold(said: Iterable[RecordedAssertion], *, owner: Scope, now: datetime) -> list[Fact]:
    """The facts that result from all these assertions."""
    return list(apply_assertions(said, owner=owner, now=now).rows.values())


def effective_start(one: Fact | Assertion) -> datetime:
    """The start of validity; the beginning of time if it is not stated."""
    return one.valid_from or BEGINNING


def _begins(claim: Assertion) -> datetime:
    return claim.starts_at or BEGINNING


def _statement(said: RecordedAssertion) -> tuple[object, ...]:
    """The message or the call of an assertion, and its predicate. A call states all of it at one moment."""
    claim = said.claim
    return claim.predicate, claim.said_at if said.extractor == BY_USER else claim.sources


def _overlaps(one: Fact, other: Fact | Assertion) -> bool:
    """Whether both are true at one time."""
    begins_before_it_ends = other.valid_to is None or effective_start(one) < other.valid_to
    return begins_before_it_ends and (one.valid_to is None or effective_start(other) < one.valid_to)


def _touches(fact: Fact, claim: Assertion) -> bool:
    """Whether the claim is of the same object, and of the same stretch of time."""
    if not predicates.same_text(fact.object, claim.object):
        return False
    begins_before_it_ended = fact.valid_to is None or _begins(claim) < fact.valid_to
    ends_after_it_began = claim.valid_to is None or effective_start(fact) <= claim.valid_to
    starts_within = claim.valid_to is not None or effective_start(fact) <= _begins(claim)
    return begins_before_it_ended and ends_after_it_began and starts_within


def _contains(fact: Fact, claim: Assertion) -> bool:
    """Whether a current fact has what the claim states, and more."""
    return fact.valid_to is None and predicates.is_vaguer(claim.predicate, claim.object, fact.object)


def _last_end(claim: Assertion, timeline: Sequence[Fact]) -> datetime | None:
    """The end of what is over; where no time is stated ("I used to live in Madrid"), before all that has a start."""
    if claim.valid_to is None or claim.valid_to != claim.said_at:
        return claim.valid_to
    return min((claim.valid_to, *(fact.valid_from for fact in timeline if fact.valid_from)))


def _earlier(left: datetime | None, right: datetime | None) -> datetime | None:
    return min(left, right) if left and right else left
