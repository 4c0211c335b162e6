"""The time that a question names."""

from datetime import UTC, datetime

import pytest

from aftermind.recall.question_time import QuestionTime

NOW = datetime(2025, 7, 10, 12, tzinfo=UTC)


def day(year: int, month: int, number: int) -> datetime:
    return datetime(year, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("What did we do in 2023?", day(2023, 1, 1), day(2024, 1, 1)),
        ("Where were we last May?", day(2025, 5, 1), day(2025, 6, 1)),
        ("What did she cook two weeks ago?", day(2025, 6, 26), day(2025, 7, 3)),
        ("Who called yesterday?", day(2025, 7, 9), day(2025, 7, 10)),
        ("Where did he live before 2020?", datetime.min.replace(tzinfo=UTC), day(2020, 1, 1)),
        ("What has she read since March 2025?", day(2025, 3, 1), NOW),
    ],
)
def test_a_period_is_read_from_a_question(text: str, start: datetime, end: datetime) -> None:
    found = QuestionTime.of(text, NOW)

    assert (found.start, found.end) == (start, end)
    assert found.orders_turns
    assert found.is_past


@pytest.mark.parametrize(
    "text", ["When did Mel paint the sunrise?", "What year did they meet?", "Since when is he ill?"]
)
def test_a_question_that_asks_for_a_time_prefers_turns_that_mention_one(text: str) -> None:
    assert QuestionTime.of(text, NOW).asks_when


@pytest.mark.parametrize("text", ["What may I eat?", "Who is Ann?", "¿Dónde vive Ana?", ""])
def test_other_questions_have_no_time(text: str) -> None:
    assert QuestionTime.of(text, NOW) == QuestionTime()
