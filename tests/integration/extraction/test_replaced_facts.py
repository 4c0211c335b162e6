"""`why(fact).replaced`: the same facts, whichever messages were extracted together."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermind import Fact, Memory, Message, Settings
from tests.support.learning import Learning

CITIES = [
    Message.user(f"I live in {city}.", occurred_at=datetime(2020 + number, 1, 1, tzinfo=UTC))
    for number, city in enumerate(["Lisbon", "Porto", "Faro"])
]


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    """A memory without servers."""
    settings = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0)
    url = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path / 'memory.db'}"
    async with Memory(url, settings=settings) as one:
        yield one


async def _replaced(memory: Memory, fact: Fact) -> list[str]:
    why = await memory.facts.why(fact)
    assert why is not None
    return [each.object for each in why.replaced]


async def _assert_each_replaced_the_city_before(memory: Memory, user: str) -> None:
    expected = {"Lisbon": [], "Porto": ["Lisbon"], "Faro": ["Porto"]}
    history = await memory.facts.history(user_id=user)
    assert {fact.object for fact in history} == set(expected)
    for fact in history:
        assert await _replaced(memory, fact) == expected[fact.object], fact


@pytest.mark.parametrize("batches", [[3], [1, 2], [2, 1], [1, 1, 1]], ids=str)
async def test_a_fact_replaced_the_one_that_ended_when_it_began(memory: Memory, batches: Sequence[int]) -> None:
    rest = list(CITIES)
    for size in batches:
        await memory.remember(rest[:size], user_id="ana")
        await memory.drain(user_id="ana", timeout=30)
        del rest[:size]

    await _assert_each_replaced_the_city_before(memory, "ana")


@pytest.mark.parametrize("batches", [[3], [1, 2]], ids=str)
async def test_a_fact_replaced_the_one_that_ended_when_it_began_on_postgres(
    opened: Callable[..., AbstractAsyncContextManager[Learning]], user: str, batches: Sequence[int]
) -> None:
    rest = list(CITIES)
    async with opened(extractor="rules") as learnt:
        for size in batches:
            await learnt.learn(user, rest[:size])
            del rest[:size]

        await _assert_each_replaced_the_city_before(learnt.memory, user)


async def test_a_correction_replaced_the_corrected_fact_also_after_its_end(memory: Memory) -> None:
    since = datetime(2024, 1, 1, tzinfo=UTC)
    tea = await memory.facts.add("user", "likes", "tea", user_id="ana", valid_from=since)
    oslo = await memory.facts.add("user", "lives_in", "Oslo", user_id="ana", valid_from=since)
    await memory.facts.correct(tea, "coffee")
    await memory.facts.correct(oslo, "Bergen")
    rome = await memory.facts.add("user", "lives_in", "Rome", user_id="ana")

    history = await memory.facts.history(user_id="ana")

    assert [fact.valid_to is None for fact in history if fact.object == "Bergen"] == [False, True]
    assert await _replaced(memory, rome) == ["Bergen"]
    for fact in history:
        if fact.object in ("Bergen", "coffee"):
            assert await _replaced(memory, fact) == ["Oslo" if fact.object == "Bergen" else "tea"]


async def test_a_retraction_makes_no_fact_that_replaced_another(memory: Memory) -> None:
    await memory.facts.add("user", "lives_in", "Oslo", user_id="ana")
    rome = await memory.facts.add("user", "lives_in", "Rome", user_id="ana")
    await memory.facts.retract(rome)

    (oslo,) = await memory.facts.query(user_id="ana")

    assert await _replaced(memory, oslo) == []
