"""The facts that a fact replaced: the one that ended when it began, and the one that it corrected. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from aftermind.facts import predicates
from aftermind.facts.apply_assertions import apply_assertions, effective_start
from aftermind.facts.bitemporal_resolution import fact_group_key, group_key
from aftermind.facts.undo import was_ended_by
from aftermind.types import Fact
from aftermind.types.assertion import RecordedAssertion


def replaced_facts(fact: Fact, rows: Sequence[Fact], recorded: Iterable[RecordedAssertion]) -> list[Fact]:
    """Of all rows of a predicate, those with another object that the fact replaced.

    A fact has ended if it is believed together with this one. What was corrected follows from the `recorded` assertions
    about the subject: they are the same whichever messages were extracted together, and an erasure deletes those of its
    messages.
    """
    about = [row for row in rows if predicates.same_text(row.subject, fact.subject)]
    others = [row for row in about if not predicates.same_text(row.object, fact.object)]
    corrected = {row.id for row in _corrected_rows(fact, others, recorded)}
    return [row for row in others if row.id in corrected or (was_ended_by(row, fact) and _is_believed_with(row, fact))]


def _corrected_rows(fact: Fact, others: Sequence[Fact], recorded: Iterable[RecordedAssertion]) -> Iterator[Fact]:
    mine = [one for one in recorded if group_key(one.claim) == fact_group_key(fact)]
    applied = apply_assertions(mine, owner=fact.scope, now=fact.recorded_at)
    stated = _nearest(fact, [*applied.rows.values(), *applied.dropped.values()])
    superseded = [row for row in others if row.superseded_at is not None]
    for former, by in applied.corrections:
        row = _nearest(applied.dropped[former], superseded)
        if stated is not None and stated.id == by and row is not None:
            yield row


def _nearest(fact: Fact, among: Iterable[Fact]) -> Fact | None:
    """The one of the same object that begins nearest to the fact; the last recorded of several."""
    same = [
        each for each in among if each.predicate == fact.predicate and predicates.same_text(each.object, fact.object)
    ]
    same.sort(key=lambda each: each.recorded_at, reverse=True)
    return min(same, key=lambda each: abs(effective_start(each) - effective_start(fact)), default=None)


def _is_believed_with(row: Fact, fact: Fact) -> bool:
    """Whether it is believed as long as the fact is, which one transaction may record and supersede."""
    if fact.superseded_at is None:
        return row.superseded_at is None
    begins = row.recorded_at < fact.superseded_at or row.recorded_at == fact.recorded_at
    return begins and (row.superseded_at is None or fact.superseded_at <= row.superseded_at)
