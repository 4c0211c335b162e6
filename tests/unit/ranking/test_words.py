"""What becomes a term, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermind import errors
from aftermind.ranking import ends_asking, spoken, terms, tokens


def test_forms_of_a_word_meet_in_their_stem() -> None:
    assert terms("painting painted paints") == ["paint"]


def test_stop_words_and_possessives_are_no_terms() -> None:
    assert terms("What did Caroline's brother do?") == ["carolin", "brother"]


def test_the_simple_language_neither_stems_nor_drops() -> None:
    assert terms("The paintings", "simple") == ["the", "paintings"]


def test_another_language_has_its_own_stems() -> None:
    assert terms("häuser haus", "german") == ["haus"]


def test_a_language_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidSettings):
        terms("ghobe", "klingon")


def test_scripts_without_blanks_are_found_by_pairs() -> None:
    assert set(tokens("東京")) <= set(tokens("私は東京に住んでいます"))


@pytest.mark.parametrize("text", ["", "   ", "🙂🙃", "!!!", "'; DROP TABLE", "a & b | !c <-> d:*", "مرحبا بالعالم"])
def test_odd_texts_give_terms_or_none(text: str) -> None:
    assert all(term == term.strip() and term for term in terms(text))


@given(st.text())
def test_any_text_gives_distinct_terms(text: str) -> None:
    found = terms(text)

    assert len(found) == len(set(found))
    assert all(found)


def test_a_document_has_a_bounded_number_of_terms() -> None:
    assert len(terms(" ".join(f"w{number}" for number in range(9_000)))) == 5_000


def test_a_turn_is_embedded_with_its_speaker() -> None:
    assert spoken("Ann", "I moved.") == "Ann: I moved."
    assert spoken(None, "I moved.") == "I moved."


def test_a_question_is_told_from_an_answer() -> None:
    assert ends_asking("Where do you live? \n")
    assert not ends_asking("Where I live? In Oslo.")
