"""In whatever order, however often and in whatever portions claims are mined: what is believed is the same."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from aftermind.types import EpisodeId
from aftermind.types.assertion import BY_USER, Assertion, Operation
from tests.support.fact_changes import Believing

START = datetime(2020, 1, 1, tzinfo=UTC)


def claim(
    number: int,
    predicate: str,
    object_: str,
    operation: Operation = Operation.ASSERT,
    *,
    begins: int | None = None,
    ends: int | None = None,
) -> Assertion:
    """The claim of the message of that number; its validity in months before it."""
    at = START + timedelta(days=30 * number)
    return Assertion(
        subject="user",
        predicate=predicate,
        object=object_,
        said_at=at,
        operation=operation,
        valid_from=None if begins is None else at - timedelta(days=30 * begins + 1),
        valid_to=None if ends is None else at - timedelta(days=30 * ends),
        sources=(EpisodeId(UUID(int=number + 1)),),
    )


def numbered(parts: Sequence[tuple[str, str, Operation, int | None, int | None]]) -> list[Assertion]:
    found = []
    for number, (predicate, object_, operation, begins, ends) in enumerate(parts):
        told = begins is not None and ends is not None and begins < ends
        found.append(
            claim(number, predicate, object_, operation, begins=ends if told else begins, ends=begins if told else ends)
        )
    return found


PART = st.tuples(
    st.sampled_from(["lives_in", "likes", "dislikes"]),
    st.sampled_from(["Oslo", "Rome", "Bonn"]),
    st.sampled_from([*3 * [Operation.ASSERT], Operation.RETRACT, Operation.END]),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 6),
)
CLAIMS = st.lists(PART, min_size=1, max_size=8).map(numbered)
LIVES, TAKEN_BACK = "lives_in", Operation.RETRACT


@settings(max_examples=400, deadline=None)
@given(CLAIMS, st.data())
def test_any_order_of_deliveries_ends_in_the_same_beliefs(claims: list[Assertion], data: st.DataObject) -> None:
    in_order, shuffled = Believing(), Believing()
    for one in claims:
        in_order.hear([one])

    order = data.draw(st.permutations(claims))
    portions = data.draw(st.lists(st.integers(1, 3), min_size=len(order), max_size=len(order)))
    while order:
        portion, order = order[: portions[0]], order[portions[0] :]
        portions = portions[1:]
        for _ in range(data.draw(st.integers(1, 2))):
            shuffled.hear(portion)

    assert shuffled.beliefs() == in_order.beliefs()


@settings(max_examples=200, deadline=None)
@given(CLAIMS, st.data())
def test_what_was_mined_anew_by_the_same_model_is_what_it_was(claims: list[Assertion], data: st.DataObject) -> None:
    known = Believing()
    known.hear(claims)
    before = known.beliefs()
    again = data.draw(st.lists(st.sampled_from(claims), unique_by=id))

    known.mine_anew(again)

    assert known.beliefs() == before
    assert not known.last, "no row is written for what did not change"


@settings(max_examples=200, deadline=None)
@given(CLAIMS, st.data())
def test_no_model_brings_back_what_the_user_took_back(claims: list[Assertion], data: st.DataObject) -> None:
    known = Believing()
    known.hear(claims)
    facts = known.facts()
    if not facts:
        return
    fact = data.draw(st.sampled_from(facts))
    by_hand = Assertion(
        subject=fact.subject,
        predicate=fact.predicate,
        object=fact.object,
        said_at=START + timedelta(days=9_999),
        operation=TAKEN_BACK,
    )
    known.hear([by_hand], extractor=BY_USER)
    before = known.beliefs()

    known.mine_anew(claims)

    assert (fact.predicate, fact.object) not in {(each.predicate, each.object) for each in known.facts()}
    assert known.beliefs() == before


def test_a_retraction_that_was_mined_first_takes_back_what_was_said_before_it() -> None:
    known = Believing()
    known.hear([claim(2, LIVES, "Rome", TAKEN_BACK)])
    known.hear([claim(1, LIVES, "Rome")])
    assert known.spans() == []

    known.hear([claim(0, LIVES, "Oslo")])
    known.hear([claim(3, LIVES, "Rome")])

    assert known.spans() == [("Oslo", 0, 3), ("Rome", 3, None)], "said again afterwards, it holds"


def test_an_end_that_was_mined_first_ends_what_was_said_before_it_and_states_nothing_alone() -> None:
    known = Believing()
    known.hear([claim(2, LIVES, "Rome", Operation.END)])
    assert known.spans() == []

    known.hear([claim(1, LIVES, "Rome")])
    assert known.spans() == [("Rome", 1, 2)]

    known.hear([claim(3, LIVES, "Rome")])
    assert known.spans() == [("Rome", 1, 2), ("Rome", 3, None)], "said again afterwards, it holds"


def test_who_came_back_before_we_heard_that_they_left_is_back() -> None:
    known = Believing()
    for number, city in ((0, "Oslo"), (2, "Oslo"), (1, "Rome")):
        known.hear([claim(number, LIVES, city)])

    assert known.spans() == [("Oslo", 0, 1), ("Rome", 1, 2), ("Oslo", 2, None)]


def test_a_correction_stands_though_another_model_does_not_hear_it() -> None:
    known = Believing()
    wrong, correction = claim(0, LIVES, "Rome"), claim(1, LIVES, "Rome", TAKEN_BACK)
    known.hear([wrong])
    known.hear([correction])

    known.mine_anew([wrong], of=[wrong, correction])

    assert known.spans() == []


def test_facts_of_an_earlier_release_count_as_claims_of_themselves() -> None:
    known = Believing()
    known.hear([claim(0, LIVES, "Oslo"), claim(1, LIVES, "Rome")])
    known.said.clear()

    known.hear([claim(2, LIVES, "Bonn")])
    known.hear([claim(3, LIVES, "Bonn", TAKEN_BACK)])

    assert known.spans() == [("Oslo", 0, 1), ("Rome", 1, None)]


@settings(max_examples=400, deadline=None)
@given(CLAIMS, st.data())
def test_after_an_undo_it_is_as_if_those_messages_had_never_come(claims: list[Assertion], data: st.DataObject) -> None:
    undone = data.draw(st.lists(st.sampled_from(claims), unique_by=id, min_size=1))
    known, without = Believing(), Believing()
    for one in claims:
        known.hear([one])
    for one in claims:
        if one not in undone:
            without.hear([one])

    known.undo(*(source for one in undone for source in one.sources))
    after = known.beliefs()
    known.hear([claim(20, "works_at", "Oslo")])
    without.hear([claim(20, "works_at", "Oslo")])

    assert unweighed(after) == unweighed(known.beliefs() - {each for each in known.beliefs() if each[0] == "works_at"})
    assert unweighed(known.beliefs()) == unweighed(without.beliefs())


def unweighed(beliefs: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Beliefs but for their strength: the store lowers it with the sources that go."""
    return {(*about, sources) for *about, _, sources in beliefs}
