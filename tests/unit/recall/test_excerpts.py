"""Which passage of a long text is shown."""

import pytest

from aftermind.recall.excerpts import ELLIPSIS, PASSAGE_CHARACTERS, QuestionWords, excerpt

FILLER = "The committee approved the minutes of the former session without changes. "


def words(question: str) -> QuestionWords:
    return QuestionWords.of(question, {"harbor": 3.0, "crane": 5.0, "cost": 1.0}, "english")


def test_the_passage_with_the_rarest_words_of_the_question_is_found() -> None:
    text = FILLER * 300 + "The harbor cranes cost four million. " + FILLER * 300

    start = words("What did the harbor cranes cost?").passage(text)

    assert "The harbor cranes cost four million." in excerpt(text, start, PASSAGE_CHARACTERS)


def test_a_passage_begins_with_a_sentence() -> None:
    text = FILLER * 50 + "The harbor cranes cost four million. " + FILLER * 50

    start = words("harbor cranes").passage(text)

    assert text[start:].startswith("The ")


def test_a_passage_is_found_in_a_script_without_blanks() -> None:
    text = (
        "会議は午前中に終わりました。" * 200 + "港のクレーンは四百万円でした。" + "会議は午前中に終わりました。" * 200
    )

    start = QuestionWords(words=("クレ", "レー"), worths=(4.0, 4.0)).passage(text)

    assert "クレーンは四百万円" in excerpt(text, start, 200)


@pytest.mark.parametrize("question", ["", "Nothing of this is said"])
def test_without_the_words_of_the_question_the_text_begins_at_its_beginning(question: str) -> None:
    assert words(question).passage(FILLER * 100) == 0


def test_what_is_missing_is_marked() -> None:
    text = " ".join(str(number) for number in range(1_000))

    assert excerpt(text, 0, 50).endswith(ELLIPSIS)
    assert not excerpt(text, 0, 50).startswith(ELLIPSIS)
    assert excerpt(text, 900, 50).startswith(ELLIPSIS)
    assert excerpt(text, 10_000, 50).endswith("999")
    assert excerpt("short", 3, 50) == "short"


def test_the_share_of_the_question_is_weighed_by_what_its_words_are_worth() -> None:
    question = words("What did the harbor crane cost?")

    assert question.share("The crane fell into the water") == pytest.approx(5 / 9)
    assert question.share("Nothing") == 0
