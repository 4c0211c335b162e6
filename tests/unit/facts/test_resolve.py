"""What claims do to beliefs: supersession, accumulation, strengthening, endings and corrections."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count, permutations
from uuid import UUID

import pytest

from aftermind.facts.bitemporal_resolution import Changes, decide
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import Assertion, Operation
from aftermind.types.uuid7 import uuid7

OWNER = Scope(user_id="ann")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def new_id() -> FactId:
    return FactId(uuid7())


def at(year: int, month: int = 1) -> datetime:
    return datetime(year, month, 1, tzinfo=UTC)


_messages = count(1)


def said(predicate: str, object_: str, when: datetime, **more: object) -> Assertion:
    """A claim of a message of its own; ids of messages ascend in the order in which they are remembered."""
    source = EpisodeId(UUID(int=next(_messages)))
    return Assertion(subject="user", predicate=predicate, object=object_, said_at=when, sources=(source,), **more)  # type: ignore[arg-type]


def fold(*batches: Sequence[Assertion]) -> list[Fact]:
    """Apply batches of claims one after the other, as transactions would; the rows that are believed at the end."""
    rows: dict[FactId, Fact] = {}
    for claims in batches:
        believed = list(rows.values())
        changes = decide(claims, believed, owner=OWNER, now=NOW, extractor="test", new_id=new_id)
        apply(rows, changes)
    return sorted(rows.values(), key=lambda fact: (fact.predicate, fact.valid_from or at(1)))


def apply(rows: dict[FactId, Fact], changes: Changes) -> None:
    for fact_id in changes.superseded:
        del rows[fact_id]
    for fact in changes.added:
        assert fact.id not in rows
        rows[fact.id] = fact
    for one in changes.strengthened:
        assert one.fact_id in rows


def spans(facts: Sequence[Fact]) -> list[tuple[str, int | None, int | None]]:
    def year(moment: datetime | None) -> int | None:
        return moment.year if moment else None

    return [(fact.object, year(fact.valid_from), year(fact.valid_to)) for fact in facts]


def test_a_new_home_ends_the_old_one_and_keeps_it() -> None:
    facts = fold([said("lives_in", "Tokyo", at(2020))], [said("moved_to", "Paris", at(2023))])

    assert spans(facts) == [("Tokyo", 2020, 2023), ("Paris", 2023, None)]


def test_a_new_name_ends_the_old_one_in_any_wording() -> None:
    facts = fold([said("name_is", "Alice", at(2020))], [said("Is Called", "Bob", at(2023))])

    assert spans(facts) == [("Alice", 2020, 2023), ("Bob", 2023, None)]


def test_likes_accumulate() -> None:
    facts = fold([said("likes", "tea", at(2020))], [said("likes", "coffee", at(2021))])

    assert spans(facts) == [("tea", 2020, None), ("coffee", 2021, None)]


def test_who_dislikes_it_now_no_longer_likes_it() -> None:
    facts = fold([said("likes", "tea", at(2020))], [said("dislikes", "tea", at(2021))])

    assert [(fact.predicate, *span) for fact, span in zip(facts, spans(facts), strict=True)] == [
        ("dislikes", "tea", 2021, None),
        ("likes", "tea", 2020, 2021),
    ]


@pytest.mark.parametrize(("liked", "disliked"), [("a good lasagne", "lasagne"), ("tea", "a nice cup of tea")])
def test_praise_makes_no_other_thing(liked: str, disliked: str) -> None:
    facts = fold([said("likes", liked, at(2020))], [said("dislikes", disliked, at(2021))])

    assert spans(facts) == [(disliked, 2021, None), (liked, 2020, 2021)]


def test_the_same_claim_from_another_episode_strengthens_and_from_the_same_one_changes_nothing() -> None:
    first = said("likes", "tea", at(2020))
    rows = fold([first])
    again = decide([first], rows, owner=OWNER, now=NOW, extractor="test", new_id=new_id)
    later = decide(
        [said("likes", "The tea!", at(2021))],
        rows,
        owner=OWNER,
        now=NOW,
        extractor="test",
        new_id=new_id,
    )

    assert not again
    assert [one.fact_id for one in later.strengthened] == [rows[0].id]
    assert not later.added


def test_a_correction_ends_the_belief_and_reopens_what_it_had_ended() -> None:
    facts = fold(
        [said("lives_in", "Oslo", at(2020))],
        [said("lives_in", "Rome", at(2021))],
        [said("lives_in", "Rome", at(2022), operation=Operation.RETRACT)],
    )

    assert spans(facts) == [("Oslo", 2020, None)]


def test_an_ending_closes_and_keeps() -> None:
    facts = fold([said("works_at", "Acme", at(2018))], [said("works_for", "Acme", at(2022), valid_to=at(2022))])

    assert spans(facts) == [("Acme", 2018, 2022)]


def test_what_only_has_an_end_begins_at_an_unknown_time() -> None:
    facts = fold([said("lives_in", "Rome", at(2024), valid_to=at(2019))], [said("lives_in", "Oslo", at(2024))])

    assert spans(facts) == [("Rome", None, 2019), ("Oslo", 2024, None)]


def test_a_return_is_a_second_stay() -> None:
    facts = fold(
        [said("lives_in", "Oslo", at(2010))], [said("lives_in", "Rome", at(2015))], [said("lives_in", "Oslo", at(2020))]
    )

    assert spans(facts) == [("Oslo", 2010, 2015), ("Rome", 2015, 2020), ("Oslo", 2020, None)]


def test_a_start_told_later_is_taken_over() -> None:
    facts = fold([said("lives_in", "Oslo", at(2020))], [said("lives_in", "Oslo", at(2021), valid_from=at(2012))])

    assert spans(facts) == [("Oslo", 2012, None)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_moves_told_out_of_order_give_the_same_timeline(order: tuple[int, ...]) -> None:
    moves = [("Oslo", 2010), ("Rome", 2013), ("Bonn", 2016), ("Lima", 2019)]
    facts = fold(*[[said("lives_in", moves[index][0], at(moves[index][1]))] for index in order])

    assert spans(facts) == [("Oslo", 2010, 2013), ("Rome", 2013, 2016), ("Bonn", 2016, 2019), ("Lima", 2019, None)]


def test_of_two_words_about_the_same_moment_the_later_is_a_correction() -> None:
    facts = fold([said("theme", "dark", at(2020))], [said("theme", "light", at(2020))])

    assert spans(facts) == [("light", 2020, None)]


def test_one_transaction_of_several_claims_writes_no_row_that_it_takes_back() -> None:
    claims = [
        said("lives_in", "Oslo", at(2010)),
        said("lives_in", "Rome", at(2013)),
        said("lives_in", "Rome", at(2014)),
    ]
    changes = decide(claims, [], owner=OWNER, now=NOW, extractor="test", new_id=new_id)

    assert not changes.superseded
    assert sorted(span[0] for span in spans(changes.added)) == ["Oslo", "Rome"]
    assert {fact.strength for fact in changes.added if fact.object == "Rome"} == {2}


def test_what_is_known_of_a_predicate_stands_above_what_a_model_says() -> None:
    facts = fold(
        [said("likes", "tea", at(2020), cardinality=Cardinality.SINGLE)],
        [said("likes", "coffee", at(2021), cardinality=Cardinality.SINGLE)],
    )

    assert len([fact for fact in facts if fact.valid_to is None]) == 2


def test_subjects_are_kept_apart() -> None:
    mine = said("lives_in", "Oslo", at(2020))
    facts = fold([mine], [Assertion(subject="Tom", predicate="lives_in", object="Rome", said_at=at(2021))])

    assert [(fact.subject, fact.valid_to) for fact in facts] == [("user", None), ("Tom", None)]


def test_spelling_variants_of_a_predicate_are_one() -> None:
    facts = fold(
        [said("favorite_color", "blue", at(2020))],
        [said("Favourite Colour", "green", at(2021))],
        [said("livesIn", "Oslo", at(2020)), said("lives-in", "Bergen", at(2022))],
    )

    assert {fact.predicate for fact in facts} == {"favorite_color", "lives_in"}
    assert spans(facts) == [("blue", 2020, 2021), ("green", 2021, None), ("Oslo", 2020, 2022), ("Bergen", 2022, None)]


def test_a_preference_ends_another_of_its_kind_alone() -> None:
    facts = fold(
        [said("prefers", "dark mode", at(2020)), said("prefers", "green tea", at(2020))],
        [said("prefers", "light mode", at(2021)), said("prefers", "the light mode", at(2022))],
    )

    assert sorted(spans(facts), key=str) == [
        ("dark mode", 2020, 2021),
        ("green tea", 2020, None),
        ("light mode", 2021, None),
    ]


def test_who_married_is_no_longer_single() -> None:
    facts = fold(
        [said("relationship_status", "single", at(2020))],
        [said("spouse", "Tom", at(2022)), said("relationship_status", "married", at(2022))],
    )

    assert spans(facts) == [("single", 2020, 2022), ("married", 2022, None), ("Tom", 2022, None)]
