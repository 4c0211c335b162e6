"""Memories for questions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aftermind import Memory, Settings
from tests.support.conversations import hand_over, turns
from tests.support.learning import AT_ONCE, UNHURRIED, learning
from tests.support.servers import Database


@pytest.fixture(params=["in this process", "postgres"])
def kept_in(request: pytest.FixtureRequest) -> tuple[Database, str] | None:
    """The database and the Redis of a memory; None for one in this process, for which neither is made nor emptied."""
    if request.param == "in this process":
        return None
    return request.getfixturevalue("database"), request.getfixturevalue("redis_url")


@pytest.fixture
async def memory(kept_in: tuple[Database, str] | None, tmp_path: Path) -> AsyncIterator[Memory]:
    """One that has learnt the example."""
    if kept_in is None:
        async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as made:
            for turn in turns():
                await (await hand_over(made, turn)).stored(timeout=60)
            await made.drain()
            yield made
        return
    async with learning(*kept_in, tmp_path) as learnt:
        for turn in turns():
            await hand_over(learnt.memory, turn)
            await learnt.settle()
        yield learnt.memory


@pytest.fixture
async def empty(kept_in: tuple[Database, str] | None, tmp_path: Path) -> AsyncIterator[Memory]:
    """A memory without anything in it."""
    if kept_in is None:
        async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as made:
            yield made
        return
    async with learning(*kept_in, tmp_path) as learnt:
        made = learnt.memory

        async def drain(**owner: Any) -> None:  # Any: arguments of `Memory.drain`
            await learnt.settle()

        made.drain = drain  # type: ignore[method-assign,assignment]
        yield made
