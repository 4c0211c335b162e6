"""The time that a question names."""

from datetime import UTC, datetime

import numpy as np
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
        ("What happened between July and September 2024?", day(2024, 7, 1), day(2024, 10, 1)),
        ("What happened from 2024-08-01 to 2024-08-14?", day(2024, 8, 1), day(2024, 8, 15)),
        ("Who came between 3 May and 10 May 2025?", day(2025, 5, 3), day(2025, 5, 11)),
        ("Who came between May 3 2024 and June 5 2024?", day(2024, 5, 3), day(2024, 6, 6)),
        ("What happened in 2024-04?", day(2024, 4, 1), day(2024, 5, 1)),
        ("What happened between 2024-04 and 2024-06?", day(2024, 4, 1), day(2024, 7, 1)),
        ("Who came from June 1 to June 14, 2024?", day(2024, 6, 1), day(2024, 6, 15)),
        ("What happened between November and February 2025?", day(2024, 11, 1), day(2025, 3, 1)),
        ("What did we do in July or August 2024?", day(2024, 7, 1), day(2024, 9, 1)),
        ("Did he move from Lisbon to Bergen in March 2025?", day(2025, 3, 1), day(2025, 4, 1)),
        ("What did she paint in autumn 2024?", day(2024, 9, 1), day(2024, 12, 1)),
        ("What did she paint in the winter of 2023?", day(2023, 12, 1), day(2024, 3, 1)),
        ("What did we spend in Q4 2024?", day(2024, 10, 1), day(2025, 1, 1)),
    ],
)
def test_a_period_is_read_from_a_question(text: str, start: datetime, end: datetime) -> None:
    found = QuestionTime.of(text, NOW)

    assert (found.start, found.end) == (start, end)
    assert found.orders_turns
    assert found.is_past


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("What happened in the last six months?", day(2025, 1, 10)),
        ("What happened in the past 2 weeks?", day(2025, 6, 26)),
        ("What happened over the last two years?", day(2023, 7, 10)),
        ("What happened in the last few months?", day(2025, 4, 10)),
        ("What happened in the last month?", day(2025, 6, 10)),
        ("What happened over the past week?", day(2025, 7, 3)),
        ("What happened in the last year?", day(2024, 7, 10)),
    ],
)
def test_the_last_months_reach_to_today(text: str, start: datetime) -> None:
    found = QuestionTime.of(text, NOW)

    assert (found.start, found.end) == (start, day(2025, 7, 11))


@pytest.mark.parametrize(
    "text", ["When did Mel paint the sunrise?", "What year did they meet?", "Since when is he ill?"]
)
def test_a_question_that_asks_for_a_time_prefers_turns_that_mention_one(text: str) -> None:
    assert QuestionTime.of(text, NOW).asks_when


@pytest.mark.parametrize("text", ["What may I eat?", "Who is Ann?", "¿Dónde vive Ana?", ""])
def test_other_questions_have_no_time(text: str) -> None:
    assert QuestionTime.of(text, NOW) == QuestionTime()


def test_the_last_days_of_the_calendar_are_a_period_too() -> None:
    time = QuestionTime.of("What happened on 30 December 9999?", datetime(2026, 1, 1, tzinfo=UTC))

    assert time.orders_turns
    assert time.among("What happened on 30 December 9999?", np.array([0.0])).orders_turns


@pytest.mark.parametrize(
    ("months", "year"),
    [
        (["2025-01", "2025-09"], 2025),  # of none: the latest one
        (["2024-12", "2025-09"], 2024),
        (["2022-12", "2024-11"], 2022),
        (["2025-01", "2026-01"], 2025),
        ([], 2025),
    ],
)
def test_a_month_is_the_latest_that_has_turns(months: list[str], year: int) -> None:
    asked = "Where did I live in December?"
    said_at = np.array([datetime.fromisoformat(f"{month}-15T00:00+00:00").timestamp() for month in months])

    meant = QuestionTime.of(asked, datetime(2026, 11, 28, tzinfo=UTC)).among(asked, said_at)

    assert meant.start == datetime(year, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("What happened in winter 2026?", "2025-12-01", "2026-03-01"),
        ("What happened in winter 2024?", "2024-12-01", "2025-03-01"),
        ("What happened in the second half of 2025?", "2025-07-01", "2026-01-01"),
        ("What had I done before the end of 2025?", "0001-01-01", "2026-01-01"),
        ("What happened between Q1 and Q3 2025?", "2025-01-01", "2025-10-01"),
        ("What did I start in 2024?", "2024-01-01", "2025-01-01"),
        ("When did my contract end in 2025?", "2025-01-01", "2026-01-01"),
        ("What happened from early 2023 to late 2023?", "2023-01-01", "2024-01-01"),
        ("What happened between the first half of 2023 and the end of 2024?", "2023-01-01", "2025-01-01"),
        ("What have I done after the end of 2025?", "2026-01-01", "2026-11-28"),
        ("What had I until the end of my contract in 2025?", "0001-01-01", "2025-01-01"),
        ("What happened in summer?", "2026-06-01", "2026-09-01"),
        ("What did we do in Q1?", "2026-01-01", "2026-04-01"),
        ("What happened after June 2026?", "2026-07-01", "2026-11-28"),
        ("What happened after 2025?", "2026-01-01", "2026-11-28"),
        ("Where did we go after dinner yesterday?", "2026-11-27", "2026-11-28"),
        ("Who did I meet after the concert in March 2026?", "2026-03-01", "2026-11-28"),
        ("What will I do after June 2027?", "2027-07-01", "9999-12-24"),
        ("What has happened since June 2026?", "2026-06-01", "2026-11-28"),
        ("What did we do in the summer two years ago?", "2024-01-01", "2025-01-01"),
        ("What happened in the winter?", "2025-12-01", "2026-03-01"),
        ("What did I do in the spring?", "2026-03-01", "2026-06-01"),
    ],
)
def test_a_period_of_a_question_is_the_one_that_was_meant(question: str, start: str, end: str) -> None:
    time = QuestionTime.of(question, datetime(2026, 11, 28, tzinfo=UTC))

    assert time.start is not None
    assert time.end is not None
    assert (time.start.date().isoformat(), time.end.date().isoformat()) == (start, end)


@pytest.mark.parametrize(
    "question",
    [
        "What should I pack for the sea in summer?",
        "Where will I be in the summer?",
        "What do I plan in Q1?",
        "Where do I live in the winter?",
        "Did my health change after the fall?",
        "Did I ever live in Winter Park?",
        "Was I in spring training?",
        "What did I tell you that I like to do in summer?",
        "Where was I during the fall of the wall?",
    ],
)
def test_a_habit_a_plan_and_a_fall_are_of_no_one_season(question: str) -> None:
    assert QuestionTime.of(question, datetime(2026, 11, 28, tzinfo=UTC)).end is None
