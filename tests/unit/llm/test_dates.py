"""What the times that people name mean, as seen from the day on which they speak."""

from datetime import UTC, datetime

import pytest

from aftermind.llm.offline import dates

WEDNESDAY = datetime(2024, 6, 12, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "start", "end"),
    [
        ("yesterday", "2024-06-11", "2024-06-12"),
        ("today", "2024-06-12", "2024-06-13"),
        ("tomorrow", "2024-06-13", "2024-06-14"),
        ("last week", "2024-06-03", "2024-06-10"),
        ("last weekend", "2024-06-08", "2024-06-10"),
        ("last Monday", "2024-06-10", "2024-06-11"),
        ("last Friday", "2024-06-07", "2024-06-08"),
        ("next Friday", "2024-06-14", "2024-06-15"),
        ("this Saturday", "2024-06-15", "2024-06-16"),
        ("last month", "2024-05-01", "2024-06-01"),
        ("next month", "2024-07-01", "2024-08-01"),
        ("last year", "2023-01-01", "2024-01-01"),
        ("next year", "2025-01-01", "2026-01-01"),
        ("last summer", "2023-06-01", "2023-09-01"),
        ("last winter", "2023-12-01", "2024-03-01"),
        ("in March", "2024-03-01", "2024-04-01"),
        ("in July", "2023-07-01", "2023-08-01"),
        ("last May", "2024-05-01", "2024-06-01"),
        ("last August", "2023-08-01", "2023-09-01"),
        ("next March", "2025-03-01", "2025-04-01"),
        ("since March 2020", "2020-03-01", "2020-04-01"),
        ("in December of 2020", "2020-12-01", "2021-01-01"),
        ("in 2019", "2019-01-01", "2020-01-01"),
        ("in the first half of 2023", "2023-01-01", "2023-07-01"),
        ("in H2 2023", "2023-07-01", "2024-01-01"),
        ("in Q3 2023", "2023-07-01", "2023-10-01"),
        ("the fourth quarter of 2023", "2023-10-01", "2024-01-01"),
        ("until the end of 2023-03-04", "2023-03-04", "2023-03-05"),
        ("in early 2023", "2023-01-01", "2023-05-01"),
        ("mid-2023", "2023-05-01", "2023-09-01"),
        ("at the end of 2023", "2023-11-01", "2024-01-01"),
        ("3 May", "2024-05-03", "2024-05-04"),
        ("3rd of May 1990", "1990-05-03", "1990-05-04"),
        ("May 3rd, 1990", "1990-05-03", "1990-05-04"),
        ("Dec 24", "2023-12-24", "2023-12-25"),
        ("2024-02-29", "2024-02-29", "2024-03-01"),
        ("3 days ago", "2024-06-09", "2024-06-10"),
        ("two weeks ago", "2024-05-29", "2024-06-05"),
        ("five months ago", "2024-01-01", "2024-02-01"),
        ("a year ago", "2023-01-01", "2024-01-01"),
        ("in two weeks", "2024-06-26", "2024-07-03"),
        ("I may go to Rome in two weeks", "2024-06-26", "2024-07-03"),
    ],
)
def test_a_time_that_is_named_is_the_period_that_was_meant(words: str, start: str, end: str) -> None:
    period = dates.find(words, WEDNESDAY)

    assert period is not None
    assert (period.start.date().isoformat(), period.end.date().isoformat()) == (start, end)


@pytest.mark.parametrize(
    ("said_on", "words", "start", "end"),
    [
        ("2024-01-01", "yesterday", "2023-12-31", "2024-01-01"),
        ("2024-01-01", "last week", "2023-12-25", "2024-01-01"),
        ("2024-01-20", "last month", "2023-12-01", "2024-01-01"),
        ("2024-01-20", "last winter", "2022-12-01", "2023-03-01"),
        ("2024-12-31", "next month", "2025-01-01", "2025-02-01"),
        ("2024-12-31", "last summer", "2024-06-01", "2024-09-01"),
        ("2024-03-31", "last month", "2024-02-01", "2024-03-01"),
    ],
)
def test_the_turn_of_the_year_and_of_the_month_is_crossed(said_on: str, words: str, start: str, end: str) -> None:
    period = dates.find(words, datetime.fromisoformat(said_on).replace(tzinfo=UTC))

    assert period is not None
    assert (period.start.date().isoformat(), period.end.date().isoformat()) == (start, end)


@pytest.mark.parametrize(
    "words",
    [
        "I may go",
        "I march on",
        "a number 42",
        "room 2050",
        "9999",
        "31 February",
        "a second helping",
        "",
        "in 999 years",
    ],
)
def test_what_names_no_time_that_is_known_gives_none(words: str) -> None:
    found = dates.find(words, WEDNESDAY)

    assert found is None or found.start.year > 3000


def test_the_first_time_of_a_sentence_counts() -> None:
    period = dates.find("I moved in 2019 and married last year", WEDNESDAY)

    assert period is not None
    assert period.start.year == 2019


@pytest.mark.parametrize("words", ["\u017fummer 2025", "la\u017ft year", "\u017ftart of 2025"])
def test_a_letter_that_only_a_pattern_takes_for_an_s_is_no_fault(words: str) -> None:
    assert dates.find(words, WEDNESDAY) is None or words.endswith("2025")
