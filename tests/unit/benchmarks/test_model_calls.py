"""The benchmark of model calls counts a fact as lost that is missing, doubled or believed no more."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from aftermind.types import Cardinality, Fact, FactId, Scope
from benchmarks.model_calls import Reply, conversation, lost

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def fact_of(said: Reply) -> Fact:
    return Fact(
        id=FactId(uuid4()),
        scope=Scope(user_id=said.user),
        subject="user",
        predicate=said.predicate,
        object=said.object,
        confidence=0.9,
        cardinality=Cardinality.MULTI,
        valid_from=NOW,
        valid_to=None,
        recorded_at=NOW,
        sources=(),
        extractor="x",
    )


def test_every_turn_holds_a_fact_of_its_own() -> None:
    said = conversation("anna", 20)

    assert len({(each.predicate, each.object) for each in said}) == 20
    assert {each.predicate for each in said} == {"likes", "lives_in"}


def test_a_fact_is_lost_when_it_is_missing_doubled_or_believed_no_more() -> None:
    said = conversation("anna", 5)
    facts = [fact_of(each) for each in said]

    assert lost(said, {"anna": facts}) == 0
    assert lost(said, {"anna": facts[1:]}) == 1
    assert lost(said, {"anna": [*facts, replace(facts[0], id=FactId(uuid4()))]}) == 1
    assert lost(said, {"anna": [*facts[1:], replace(facts[0], superseded_at=NOW)]}) == 1
    assert lost(said, {"bert": facts}) == 5
