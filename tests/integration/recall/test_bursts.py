"""Messages that a speaker sends in a row: one utterance, of which a block shows more than the message that matches."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from aftermind import Episode, Memory, Message, RecallBlock, Settings
from tests.support.learning import UNHURRIED
from tests.support.servers import Database

NOON = datetime(2024, 5, 2, 12, tzinfo=UTC)
SAID = [
    ("Ann", "so about the kayak trip", 0),
    ("Ann", "we start at six", 1),
    ("Ann", "bring a warm hat", 2),
    ("Bob", "Will do!", 3),
    ("Ann", "ok", 200),
    ("Ann", "see you later", 201),
]


@pytest.fixture(params=["in this process", "postgres"])
async def memory(request: pytest.FixtureRequest, database: Database, redis_url: str) -> AsyncIterator[Memory]:
    settings = Settings(extractor="off", **UNHURRIED)
    url = "inmemory" if request.param == "in this process" else database.app_url
    where = {} if url == "inmemory" else {"broker": redis_url, "redis": redis_url}
    async with Memory(url, settings=settings, **where) as made:
        yield made


async def recalled(memory: Memory, query: str, **options: int) -> RecallBlock:
    messages = [
        Message.user(text, name=name, occurred_at=NOON + timedelta(minutes=minute)) for name, text, minute in SAID
    ]
    await memory.remember(messages, user_id="ann", session_id="trip")
    return await memory.recall(query, user_id="ann", load=["history"], **options)


def texts(block: RecallBlock) -> list[str]:
    return [each.item.content for each in block.matches if isinstance(each.item, Episode)]


async def test_a_block_shows_the_burst_of_a_match_under_one_name_and_after_the_matches(memory: Memory) -> None:
    block = await recalled(memory, "When does the kayak trip start?", limit=1)

    assert texts(block)[0] in ("so about the kayak trip", "we start at six")
    assert set(texts(block)) == {text for _, text, minute in SAID if minute < 3}
    assert "Ann: so about the kayak trip\n  we start at six\n  bring a warm hat\n" in block.text
    assert [each.rank for each in block.matches] == [1, 2, 3]


async def test_a_budget_without_space_for_the_burst_holds_the_match(memory: Memory) -> None:
    block = await recalled(memory, "Who brings a warm hat?", limit=1, token_budget=40)

    assert texts(block) == ["bring a warm hat"]
