"""A turn scored alone, with its neighbours, with its session, and by its speaker."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aftermind.ranking import FEATURES, Entry, Frequencies, Models, Question, models_of, score_entries, terms
from aftermind.ranking.score_probability import Model


def said(*texts: str, session: str = "s", name: str | None = None, similar: list[float] | None = None) -> list[Entry]:
    return [
        Entry(
            session=session,
            position=place,
            terms=frozenset(terms(text)),
            name=name,
            asking=text.endswith("?"),
            similarity=None if similar is None else similar[place],
        )
        for place, text in enumerate(texts)
    ]


def without(*features: str) -> Models:
    """The models, blind to some features."""
    fitted = models_of().words
    seen = Model(fitted.coefficients * [name not in features for name in FEATURES], fitted.intercept)
    return replace(models_of(), words=seen)


def totals(entries: list[Entry], question: str, session: str | None = None) -> list[float]:
    return list(score_entries(entries, Question.of(question), session=session).total)


def test_the_answer_next_to_the_words_of_the_question_is_found() -> None:
    entries = said("How was your trip to Rome?", "Lovely, we ate so much!", "x", "y", "z", "Good night")

    found = totals(entries, "Who went on a trip to Rome?")

    assert found[1] > found[5]


def test_an_answer_stands_before_the_question_that_it_answers() -> None:
    entries = said("Which theme?", "Dark theme!")

    with_it = score_entries(entries, Question.of("theme"))
    blind = score_entries(entries, Question.of("theme"), models=without("asking", "answers"))

    assert with_it.total[1] > with_it.total[0]
    assert blind.total[1] <= blind.total[0]


def test_a_window_ends_with_its_session() -> None:
    entries = [*said("Rome is where we met", session="a"), *said("Yes!", session="b")]

    found = score_entries(entries, Question.of("Rome"))

    assert found.lexical_window[1] == 0


def test_a_window_ends_at_a_pause_of_several_hours() -> None:
    entries = said("Rome is where we met", "Yes!", "Good morning")
    entries = [replace(entry, said_at=at) for entry, at in zip(entries, (0.0, 60.0, 30_000.0), strict=True)]

    found = score_entries(entries, Question.of("Rome"))

    assert found.lexical_window[1] > 0
    assert found.lexical_window[2] == 0


def test_messages_of_one_speaker_with_a_pause_between_them_are_no_burst() -> None:
    texts = ("We were in Rome", "with my sister", "and her friend", "by train", "and back")

    def score_last(pause: float) -> float:
        entries = [replace(each, said_at=pause * place) for place, each in enumerate(said(*texts, name="Ann"))]
        return float(score_entries(entries, Question.of("Rome")).lexical_window[3])

    assert score_last(60.0) > 0  # within four messages: one utterance
    assert score_last(1_800.0) == 0


def test_a_word_said_twice_in_a_window_counts_once() -> None:
    twice = said("rome", "rome", "filler", *["filler"] * 5, "rome", "filler", "filler")

    found = score_entries(twice, Question.of("Rome"))

    assert found.lexical_window[2] == found.lexical_window[9]


def test_the_speaker_whom_the_question_names_comes_first() -> None:
    entries = [*said("I love pottery", session="a", name="Ann"), *said("I love pottery", session="b", name="Bob Lee")]

    found = totals(entries, "What does Bob love about pottery?")

    assert found[1] > found[0]


def test_a_name_that_is_a_stop_word_names_nobody() -> None:
    assert not Question.of("What will happen?").names("Will")


def test_the_session_that_asks_breaks_a_tie() -> None:
    entries = [*said("I love pottery", session="a"), *said("I love pottery", session="b")]

    found = totals(entries, "pottery", session="b")

    assert found[1] > found[0]


def test_context_is_never_an_answer() -> None:
    inside = Entry(session="s", position=1, terms=frozenset({"rome"}))
    context = Entry(session="s", position=2, terms=frozenset({"rome"}), candidate=False)

    found = score_entries([inside, context], Question.of("rome"))

    assert found.total[0] > 0
    assert found.total[1] == 0


def test_a_turn_without_a_vector_yet_borrows_its_neighbours() -> None:
    entries = said("a", "b", "c", similar=[0.9, 0.1, 0.9])
    entries[1] = Entry(session="s", position=1, terms=frozenset())

    found = score_entries(entries, Question.of("?"))

    assert found.vector[1] == 1.0


def test_without_words_meaning_alone_decides() -> None:
    found = totals(said("a", "b", similar=[0.2, 0.8]), "🙂")

    assert found[1] > found[0]


def test_a_pasted_document_does_not_drown_a_short_answer() -> None:
    document = " ".join(f"word{number}" for number in range(3_000)) + " rome trip"
    entries = [*said(document, session="a"), *said("We took a trip to Rome", session="b")]

    found = totals(entries, "the trip to Rome")

    assert found[1] > found[0]


def test_frequencies_of_the_owner_decide_what_is_telling() -> None:
    entries = [*said("rome", session="a"), *said("trip", session="b")]

    found = score_entries(entries, Question.of("rome trip"), frequencies=Frequencies(episodes=1_000, having=[900, 2]))

    assert found.lexical[1] == 1.0
    assert found.lexical[0] < 0.1


def test_nothing_scores_nothing() -> None:
    assert len(score_entries([], Question.of("anything")).total) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 50),
            st.frozensets(st.sampled_from(["rome", "trip", "theme"])),
            st.none() | st.floats(-1, 1),
        ),
        max_size=30,
        unique_by=lambda row: row[:2],
    )
)
def test_scores_lie_between_0_and_1_and_do_not_depend_on_the_order_given(
    rows: list[tuple[int, int, frozenset[str], float | None]],
) -> None:
    entries = [Entry(session=s, position=p, terms=t, similarity=v) for s, p, t, v in rows]

    forwards = score_entries(entries, Question.of("trip to Rome")).total
    backwards = score_entries(entries[::-1], Question.of("trip to Rome")).total[::-1]

    assert ((forwards >= 0) & (forwards <= 1)).all()
    assert np.allclose(forwards, backwards)


def test_a_turn_that_has_no_vector_yet_is_not_worth_half_for_that() -> None:
    old = said(*["This is note of my diary"] * 9, session="old", similar=[0.9] * 9)
    others = said(*["Good morning"] * 30, session="others", similar=[0.1] * 30)
    new = said("This is note zebra of my diary", session="new")

    found = totals([*old, *others, *new], "note zebra")

    assert found[-1] == max(found)


def test_messages_in_a_row_of_one_speaker_are_one_utterance_of_a_window() -> None:
    texts = ["we flew to Rome", "last week", "by night", "and it rained", "lovely!"]
    speakers = ["Ann", "Ann", "Ann", "Bob", "Ann"]

    def scored(names: list[str | None]) -> list[float]:
        entries = [
            Entry(session="s", position=place, terms=frozenset(terms(text)), name=name)
            for place, (text, name) in enumerate(zip(texts, names, strict=True))
        ]
        return list(score_entries(entries, Question.of("trip to Rome")).lexical_window)

    assert scored([*speakers])[4] == 1.0, "two utterances away"
    assert scored([None] * 5)[4] == 0.0, "four messages away, of unknown speakers"


def test_a_long_burst_is_more_than_one_utterance() -> None:
    entries = [
        Entry(session="s", position=place, terms=frozenset({"rome"} if place == 0 else {"x"}), name="Ann")
        for place in range(30)
    ]

    found = score_entries(entries, Question.of("Rome")).lexical_window

    assert found[11] == 1.0
    assert found[12] == 0.0
