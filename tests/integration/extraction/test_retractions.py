"""Retractions and ends of facts of one predicate: two stays in one place, and what a retracted fact had ended."""

from datetime import UTC, datetime

import pytest

from aftermind import Fact, Memory, Message

SAID = ["I live in Leeds.", "I moved to York.", "I moved back to Leeds."]
FIRST, YORK, SECOND = ("Leeds", 2020, 2021), ("York", 2021, 2022), ("Leeds", 2022, None)


async def _learn(memory: Memory, *texts: str, start: int = 2020) -> None:
    for year, text in enumerate(texts, start):
        await memory.remember([Message.user(text, occurred_at=datetime(year, 1, 1, tzinfo=UTC))], user_id="ana")
        await memory.drain(user_id="ana", timeout=30)


async def _facts(memory: Memory) -> list[tuple[str, int | None, int | None]]:
    facts = [fact for fact in await memory.facts.history(user_id="ana") if fact.superseded_at is None]
    facts.sort(key=lambda fact: fact.valid_from or datetime.min.replace(tzinfo=UTC))
    return [(f.object, f.valid_from and f.valid_from.year, f.valid_to and f.valid_to.year) for f in facts]


async def _home(memory: Memory, year: int) -> Fact:
    [fact] = await memory.facts.query(user_id="ana", predicate="lives_in", as_of=datetime(year, 6, 1, tzinfo=UTC))
    return fact


async def test_each_stay_is_a_fact(memory: Memory) -> None:
    await _learn(memory, *SAID)

    assert await _facts(memory) == [FIRST, YORK, SECOND]


async def test_a_retraction_of_the_second_stay_leaves_the_first(memory: Memory) -> None:
    await _learn(memory, *SAID)

    assert await memory.facts.retract(await _home(memory, 2023))

    assert await _facts(memory) == [FIRST, ("York", 2021, None)]


async def test_a_retraction_of_the_first_stay_leaves_the_second(memory: Memory) -> None:
    await _learn(memory, *SAID)

    assert await memory.facts.retract(await _home(memory, 2020))

    assert await _facts(memory) == [YORK, SECOND]


@pytest.mark.parametrize(
    ("year", "expected"),
    [(2020, [("Bath", 2020, 2021), YORK, SECOND]), (2022, [FIRST, YORK, ("Bath", 2022, None)])],
)
async def test_a_correction_is_of_one_stay(memory: Memory, year: int, expected: list[tuple[object, ...]]) -> None:
    await _learn(memory, *SAID)

    await memory.facts.correct(await _home(memory, year), "Bath")

    assert await _facts(memory) == expected


@pytest.mark.parametrize(
    "end", ["I don't live in Leeds anymore.", "I no longer live in Leeds.", "I moved out of Leeds."]
)
async def test_an_end_is_of_the_last_stay(memory: Memory, end: str) -> None:
    await _learn(memory, *SAID, end)

    assert await _facts(memory) == [FIRST, YORK, ("Leeds", 2022, 2023)]


async def test_a_correction_lasts_when_older_messages_are_learnt_later(memory: Memory) -> None:
    await _learn(memory, *SAID)
    await memory.facts.retract(await _home(memory, 2023))

    await _learn(memory, "I live in Hull.", start=2019)

    assert await _facts(memory) == [("Hull", 2019, 2020), FIRST, ("York", 2021, None)]


async def test_never_is_of_all_stays(memory: Memory) -> None:
    await _learn(memory, *SAID, "I never lived in Leeds.")

    assert await _facts(memory) == [("York", 2021, None)]


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        (["I work at Nordlys.", "I left Nordlys. I work at Fjordtech."], 2021),
        (["I work at Nordlys.", "I work at Fjordtech. I left Nordlys."], 2021),
        (["I work at Nordlys.", "I left Nordlys.", "I work at Fjordtech."], 2021),
        (["I work at Nordlys.", "I work at Fjordtech.", "I left Nordlys."], 2022),
        (["I work at Nordlys.", "I work at Fjordtech."], None),
    ],
)
async def test_a_retraction_keeps_the_ends_that_messages_state(
    memory: Memory, messages: list[str], end: int | None
) -> None:
    await _learn(memory, *messages)
    [fact] = await memory.facts.query(user_id="ana", predicate="works_at")
    assert fact.object == "Fjordtech"

    await memory.facts.retract(fact)

    assert await _facts(memory) == [("Nordlys", 2020, end)]


@pytest.mark.parametrize("past", ["I left Leeds in 2021.", "I moved from Leeds to York in 2021."])
async def test_an_old_move_ends_the_stay_of_its_time(memory: Memory, past: str) -> None:
    await _learn(memory, *SAID, "I like tea.", past)

    assert [fact for fact in await _facts(memory) if fact[0] != "tea"] == [FIRST, YORK, SECOND]


async def test_stays_without_a_break_are_retracted_together(memory: Memory) -> None:
    await _learn(memory, *SAID)
    await memory.facts.retract(await _home(memory, 2021))

    await memory.facts.retract(await _home(memory, 2023))

    assert await _facts(memory) == []


async def test_a_correction_to_the_next_home_starts_that_one_earlier(memory: Memory) -> None:
    await _learn(memory, "I live in Hull.", "I moved to York.", "I moved to Leeds.")

    await memory.facts.correct(await _home(memory, 2021), "Leeds")

    assert await _facts(memory) == [("Hull", 2020, 2021), ("Leeds", 2021, None)]


async def test_a_reopened_fact_ends_where_the_next_one_begins(memory: Memory) -> None:
    for employer, start, end in (("Acme", None, 2023), ("Globex", 2021, None), ("Initech", 2022, None)):
        await memory.facts.add(
            "user",
            "works_at",
            employer,
            user_id="ana",
            valid_from=start and datetime(start, 1, 1, tzinfo=UTC),
            valid_to=end and datetime(end, 1, 1, tzinfo=UTC),
        )
    [globex] = [fact for fact in await memory.facts.history(user_id="ana") if fact.object == "Globex"][:1]

    await memory.facts.retract(globex)

    assert await _facts(memory) == [("Acme", None, 2022), ("Initech", 2022, None)]


@pytest.mark.parametrize(
    ("end", "ended"),
    [
        ("I left Acme last year.", True),
        ("I quit my job last year and joined Acme.", False),
        ("I lost my job last year, but I found a new one.", False),
        ("I quit my job in 2025 and I love my new job.", False),
    ],
)
async def test_an_end_shortly_before_the_first_message_is_of_what_it_names(
    memory: Memory, end: str, ended: bool
) -> None:
    for month, text in ((1, "I work at Acme."), (3, end)):
        message = Message.user(text, occurred_at=datetime(2026, month, 20, tzinfo=UTC))
        await memory.remember([message], user_id="ana")
        await memory.drain(user_id="ana", timeout=30)

    [fact] = [
        each for each in await memory.facts.history(predicate="works_at", user_id="ana") if not each.superseded_at
    ]

    assert fact.valid_to == (datetime(2026, 3, 20, tzinfo=UTC) if ended else None)
