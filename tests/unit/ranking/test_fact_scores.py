"""What facts say of the turns that they came from."""

from collections.abc import Sequence
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermind.ranking import Entry, FactMatch, Frame, Frequencies, Question, Scores, fact_value, lifted, shares, terms
from aftermind.ranking.fact_scores import LIFT

QUESTION = Question.of("Where does Ann work and live?")
WORK, LIVE = (QUESTION.terms.index(term) for term in ("work", "live"))


def frame(*texts: str, names: Sequence[str | None] = ()) -> Frame:
    entries = [
        Entry(session="s", position=place, terms=frozenset(terms(text)), name=names[place] if names else None)
        for place, text in enumerate(texts)
    ]
    return Frame.of(entries, QUESTION.terms)


def scores(*totals: float) -> Scores:
    nothing = np.zeros(len(totals))
    return Scores(
        total=np.array(totals), lexical=nothing, vector=nothing, lexical_window=nothing, vector_window=nothing
    )


def test_a_fact_counts_by_the_share_of_the_question_that_it_covers() -> None:
    turns = frame("I live here", "I work there", "hello", "bye", names=["Ann", "Ann", "Bob", "Bob"])
    known = Frequencies(episodes=4, having=list(turns.hits.sum(axis=0)))

    both, one, none = shares(
        [
            FactMatch(places=[WORK, LIVE], having=[2, 1]),
            FactMatch(places=[WORK], having=[2]),
            FactMatch(places=[], having=[]),
        ],
        turns,
        QUESTION,
        known,
    )

    assert both == pytest.approx(1.0), "the name of a speaker is no word of the question"
    assert 0 < one < both
    assert none == 0


def test_what_was_told_by_a_call_counts_though_no_turn_has_its_words() -> None:
    known = Frequencies(episodes=0, having=[0] * len(QUESTION.terms))

    (share,) = shares([FactMatch(places=[LIVE], having=[1])], frame(), QUESTION, known)

    assert share > 0


def test_turns_are_lifted_as_far_as_their_facts_fit() -> None:
    found = lifted(scores(0.4, 0.5, 0.2), np.array([1.0, 0.1]), [[0], [0, 1, 2]], np.array([True, True, False]))

    assert found.total[0] > found.total[1]
    assert found.total[1] == pytest.approx(1 / (1 + exp(-LIFT * 0.1)))
    assert found.total[2] == pytest.approx(0.2), "it is there for its neighbours only"


def test_a_fact_stands_behind_its_turn_unless_it_answers_by_itself() -> None:
    assert fact_value(0.0, 1.0, best_turn=0.8) < 0.8
    assert fact_value(1.0, 1.0, best_turn=0.8) > 0.8
    assert fact_value(1.0, 0.1, best_turn=0.8) < fact_value(1.0, 1.0, best_turn=0.8)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 1), st.lists(st.integers(0, 7), max_size=4)), max_size=6),
)
def test_facts_take_nothing_from_any_turn_and_scores_stay_scores(
    totals: list[float], facts: list[tuple[float, list[int]]]
) -> None:
    rows = [[row for row in turns if row < len(totals)] for _, turns in facts]
    worth = np.array([value for value, _ in facts])

    found = lifted(scores(*totals), worth, rows, np.ones(len(totals), dtype=np.bool_))

    assert (found.total >= np.array(totals) - 1e-12).all()
    assert (found.total <= 1).all()
