"""A question names a speaker also by a nickname or with a typo, and never by an ordinary word."""

import pytest

from aftermind.ranking import Entry, Question, score_entries
from aftermind.ranking.name_variants import capitalised_words, is_variant


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("mel", "melanie"),
        ("johnny", "john"),
        ("caro", "caroline"),
        ("melanei", "melanie"),  # exchanged
        ("melnie", "melanie"),  # left out
        ("mellanie", "melanie"),  # added
        ("melonie", "melanie"),  # replaced
    ],
)
def test_these_are_variants(word: str, name: str) -> None:
    assert is_variant(word, name)


@pytest.mark.parametrize(
    ("word", "name"),
    [("al", "alice"), ("anna", "hanna"), ("jan", "jon"), ("maria", "marion"), ("johannesburg", "joha"), ("bob", "rob")],
)
def test_these_are_not(word: str, name: str) -> None:
    assert not is_variant(word, name)


def test_only_capitals_within_a_sentence_may_be_names() -> None:
    assert capitalised_words("What did Mel say? Did José or ann go?") == {"mel", "jose"}
    assert capitalised_words("WHAT") == set()


def _best(question: str, *speakers: str) -> set[str]:
    """The speakers of the turns with the highest score, whose words are the same."""
    entries = [
        Entry(session="s", position=10 * place, terms=frozenset({"paint", "sunris"}), name=name)
        for place, name in enumerate(speakers)
    ]
    total = score_entries(entries, Question.of(question)).total
    return {name for name, score in zip(speakers, total, strict=True) if score == total.max()}


@pytest.mark.parametrize("name", ["Melanie", "Mel", "Melanei"])
def test_turns_of_the_speaker_that_is_meant_are_first(name: str) -> None:
    assert _best(f"When did {name} paint a sunrise?", "Melanie", "Caroline") == {"Melanie"}


def test_a_variant_of_two_speakers_is_neither() -> None:
    assert _best("When did Mel paint a sunrise?", "Melanie", "Melissa") == {"Melanie", "Melissa"}


def test_a_whole_name_is_no_variant_of_another() -> None:
    assert _best("When did Ann-Mari and Mari paint a sunrise?", "Mari", "Marie") == {"Mari"}


def test_an_ordinary_word_is_no_nickname() -> None:
    assert _best("Which car did they paint at sunrise?", "Caroline", "Melanie") == {"Caroline", "Melanie"}
