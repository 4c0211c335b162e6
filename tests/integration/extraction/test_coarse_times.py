"""A newer statement whose time is a day, a month or a year comes after an older one of the same period."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from aftermind import Memory, Message, Settings
from tests.support.learning import AT_ONCE


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=Settings(**AT_ONCE)) as opened:
        yield opened


async def say(memory: Memory, *said: tuple[str, datetime]) -> list[str]:
    """Remember messages in sessions of their own; the objects of the facts that are true now."""
    for text, at in said:
        message = Message.user(text, occurred_at=at)
        await (await memory.remember([message], user_id="ann", session_id=at.isoformat())).extracted(timeout=30)
    return [fact.object for fact in await memory.facts.query(user_id="ann")]


def day(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "at", "after", "later", "current"),
    [
        ("I live in Ghent.", day(2025, 3, 10), "I moved to Bruges in 2025.", day(2025, 11, 1), ["Bruges"]),
        ("I live in Ghent.", day(2026, 3, 10), "I moved to Bruges last month.", day(2026, 4, 5), ["Bruges"]),
        ("I live in Ghent.", day(2026, 3, 10), "I moved to Bruges yesterday.", day(2026, 3, 11), ["Bruges"]),
        ("I live in Hull.", day(2026, 2, 20, 9), "I moved to York today.", day(2026, 2, 20, 9, 5), ["York"]),
        ("Ich wohne in Graz.", day(2026, 2, 20, 9), "Ich wohne jetzt in Linz.", day(2026, 2, 20, 19), ["Linz"]),
        ("I work at Acco.", day(2026, 2, 20), "I've worked at Barco since February.", day(2026, 3, 1), ["Barco"]),
        ("I live in Ghent.", day(2025, 3, 10), "I have lived in Bruges since 2020.", day(2026, 3, 1), ["Bruges"]),
        (
            "I work at Acco.",
            day(2024, 1, 1),
            "I joined Hooli today. I quit my job today.",
            day(2026, 2, 20, 9),
            ["Hooli"],
        ),
        ("I work at Acco.", day(2026, 2, 20), "I left Acco in February 2026.", day(2026, 3, 1), []),
        ("I work at Acco.", day(2026, 2, 20, 9), "I quit my job today.", day(2026, 2, 20, 9, 5), []),
        ("I have a dog named Rex.", day(2026, 2, 20, 9), "Rex died today.", day(2026, 2, 20, 9, 5), []),
        # An end before the first message about it: it is over all the same.
        ("I work at Acco.", day(2026, 1, 15), "I left Acco last year.", day(2026, 3, 1), []),
        ("I work at Acco.", day(2026, 1, 15), "I quit my job at Acco last month.", day(2026, 1, 21), []),
        ("I have a dog named Rex.", day(2026, 1, 1), "Rex died last month.", day(2026, 1, 31), []),
        ("I work at Acco.", day(2026, 1, 15), "I worked at Acco until 2019.", day(2026, 3, 1), ["Acco"]),
        # An earlier time at the same place, or with another one, ends nothing.
        ("I work at Acco.", day(2026, 1, 15), "I quit my job in 2010 to travel the world.", day(2026, 3, 1), ["Acco"]),
        ("I work at Acco.", day(2026, 1, 15), "I left Acco in 2018 and came back.", day(2026, 3, 1), ["Acco"]),
        (
            "My girlfriend is called Eva.",
            day(2026, 1, 15),
            "I broke up with my boyfriend in 2015.",
            day(2026, 3, 1),
            ["Eva"],
        ),
        ("I have a dog named Rex.", day(2026, 1, 15), "Our old dog Rex died in 2003.", day(2026, 3, 1), ["Rex"]),
        ("I started at Acco on 2 January 2026.", day(2026, 1, 15), "I left Acco in 2024.", day(2026, 3, 1), ["Acco"]),
        # What is of another period keeps its time.
        ("I live in Ghent.", day(2025, 3, 10), "I moved to Bruges in 2020.", day(2026, 3, 1), ["Ghent"]),
        ("I live in Ghent.", day(2025, 3, 10), "I moved to Ghent in 2025.", day(2026, 3, 1), ["Ghent"]),
    ],
)
async def test_the_newer_of_two_statements_is_current(
    memory: Memory, before: str, at: datetime, after: str, later: datetime, current: list[str]
) -> None:
    assert await say(memory, (before, at), (after, later)) == current

    facts = await memory.facts.history(user_id="ann")
    assert all(fact.valid_to is None or fact.valid_from is None or fact.valid_from < fact.valid_to for fact in facts)


async def test_a_change_that_is_told_again_moves_nobody_back(memory: Memory) -> None:
    said = ("I live in Ghent.", "I moved to Bruges in 2025.", "I live in Oslo.", "I moved to Bruges in 2025.")
    times = (day(2025, 3, 10), day(2025, 5, 1), day(2025, 10, 1), day(2026, 1, 10))

    assert await say(memory, *zip(said, times, strict=True)) == ["Oslo"]
    assert [each.object for each in await memory.facts.query(user_id="ann", as_of=day(2025, 2, 1))] == []


async def test_a_return_within_a_period_that_lasts_is_one(memory: Memory) -> None:
    said = ("I live in Ghent.", "I live in Oslo.", "I live in Ghent now.")
    times = (day(2025, 3, 10, 8), day(2025, 3, 10, 10), day(2025, 3, 10, 12))

    assert await say(memory, *zip(said, times, strict=True)) == ["Ghent"]


async def test_two_changes_of_one_month_follow_each_other(memory: Memory) -> None:
    await say(
        memory, ("I moved to Bruges in March.", day(2026, 3, 10)), ("I moved to Oslo in March.", day(2026, 3, 28))
    )

    found = [await memory.facts.query(user_id="ann", as_of=day(2026, 3, at)) for at in (15, 30)]

    assert [[fact.object for fact in each] for each in found] == [["Bruges"], ["Oslo"]]


async def test_what_begins_and_ends_in_one_period_lasted(memory: Memory) -> None:
    await say(memory, ("I joined Hooli in 2025.", day(2025, 3, 10)), ("I left Hooli in 2025.", day(2026, 2, 10)))

    [then] = await memory.facts.query(user_id="ann", as_of=day(2025, 6, 1))

    assert then.object == "Hooli"


async def test_a_stated_start_is_kept_where_another_home_was_named_in_between(memory: Memory) -> None:
    said = (("I live in Ghent.", day(2025, 3, 10)), ("I have lived in Bruges since 2020.", day(2026, 3, 1)))
    assert await say(memory, *said) == ["Bruges"]

    [then] = await memory.facts.query(user_id="ann", as_of=day(2022, 1, 1))

    assert then.object == "Bruges"


@pytest.mark.parametrize(
    ("said", "birthday"),
    [
        (("My birthday is July 12th.", "I was born in 1990."), "July 12th"),
        (("I was born on 5 June 1991.", "I was born in 1991."), "5 June 1991"),
        (("I was born on 5 June 1991.", "I was born in 1992."), "1992"),
    ],
)
async def test_the_year_of_a_birthday_replaces_no_date_of_that_year(
    memory: Memory, said: tuple[str, str], birthday: str
) -> None:
    assert await say(memory, (said[0], day(2024, 1, 1)), (said[1], day(2025, 1, 1))) == [birthday]


async def test_a_change_within_a_named_month_is_of_that_month(memory: Memory) -> None:
    await say(memory, ("I live in Ghent.", day(2026, 3, 10)), ("I moved to Bruges last month.", day(2026, 4, 5)))

    homes = {fact.object: fact for fact in await memory.facts.history("user", "lives_in", user_id="ann")}

    assert homes["Bruges"].valid_from is not None
    assert day(2026, 3, 10) < homes["Bruges"].valid_from < day(2026, 4, 1)


async def test_a_forget_of_the_older_statement_gives_the_newer_one_its_own_time(memory: Memory) -> None:
    await say(memory, ("I live in Ghent.", day(2026, 3, 10)), ("I moved to Bruges last month.", day(2026, 4, 5)))

    await memory.forget(user_id="ann", session_id=day(2026, 3, 10).isoformat())

    [bruges] = await memory.facts.query(user_id="ann")
    assert (bruges.object, bruges.valid_from) == ("Bruges", day(2026, 3, 1))
