"""The facts that a fact replaced: the one that ended when it began, and the one that it corrected. Pure."""

from collections.abc import Sequence
from datetime import datetime

from aftermind.facts import predicates
from aftermind.facts.apply_assertions import effective_start
from aftermind.facts.undo import was_ended_by
from aftermind.types import Fact


def replaced_facts(fact: Fact, rows: Sequence[Fact]) -> list[Fact]:
    """Of all rows of a predicate, those with another object that the fact replaced.

    A fact has ended if it is believed together with this one. It is corrected if it was retracted in the transaction
    that first recorded this one, and this one is true of its start.
    """
    about = [row for row in rows if predicates.same_text(row.subject, fact.subject)]
    others = [row for row in about if not predicates.same_text(row.object, fact.object)]
    first = _first_recorded_at(fact, about)
    kept = {predicates.folded(row.object) for row in about if row.recorded_at == first}
    return [
        row
        for row in others
        if (was_ended_by(row, fact) and _is_believed_with(row, fact))
        or (
            row.superseded_at == first
            and predicates.folded(row.object) not in kept
            and fact.is_valid_at(effective_start(row))
        )
    ]


def _first_recorded_at(fact: Fact, about: Sequence[Fact]) -> datetime:
    """When the fact was recorded, perhaps by a former row: of another end or other sources."""
    former = [
        row for row in about if predicates.same_text(row.object, fact.object) and row.valid_from == fact.valid_from
    ]
    first = fact.recorded_at
    while earlier := [row.recorded_at for row in former if row.superseded_at == first and row.recorded_at < first]:
        first = min(earlier)
    return first


def _is_believed_with(row: Fact, fact: Fact) -> bool:
    """Whether it is believed as long as the fact is."""
    if row.superseded_at is None or fact.superseded_at is None:
        return row.superseded_at is None and (fact.superseded_at is None or row.recorded_at < fact.superseded_at)
    return row.recorded_at < fact.superseded_at <= row.superseded_at
