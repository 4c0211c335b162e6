"""After an undo or a forget, the profile is what it would be had the message never been there."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from aftermind import Memory, Settings
from aftermind.types import EpisodeId
from tests.support.learning import learning
from tests.support.servers import Database, Servers
from tests.support.waiting import wait_until

AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
POISON = "I moved to Minsk and I work at Gazprom. I'm not allergic to peanuts anymore."
Withdraw = Literal["undo", "forget"]


@pytest.fixture(params=["inmemory", "sqlite", "postgres"])
def database_or_url(request: pytest.FixtureRequest, tmp_path: Path) -> Database | str:
    """Each store."""
    if request.param == "postgres":
        made: Database = request.getfixturevalue("database")
        return made
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/memory.db"


@pytest.fixture
async def memory(
    request: pytest.FixtureRequest, database_or_url: Database | str, tmp_path: Path
) -> AsyncIterator[Memory]:
    """A memory of each store, with rules, whose jobs run in this process."""
    async with AsyncExitStack() as stack:
        if isinstance(database_or_url, Database):
            servers: Servers = request.getfixturevalue("servers")
            learnt = await stack.enter_async_context(learning(database_or_url, servers.redis_url, tmp_path, **AT_ONCE))
            request.node.work = learnt.settle
            yield learnt.memory
        else:
            settings = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0.0, **AT_ONCE)
            request.node.work = None
            yield await stack.enter_async_context(Memory(database_or_url, settings=settings))


async def _profile(memory: Memory) -> Mapping[str, Any]:
    found = await memory.profile(user_id="ann")
    return {name: trait.value for name, trait in found.traits.items()} if found else {}


@pytest.fixture
def reaches(request: pytest.FixtureRequest, memory: Memory) -> Callable[[Mapping[str, Any]], Awaitable[None]]:
    """Wait until the profile has these traits and no others."""

    async def reach(wanted: Mapping[str, Any]) -> None:
        if request.node.work is not None:
            await request.node.work()
            assert await _profile(memory) == wanted
            return

        async def is_reached() -> bool:
            return await _profile(memory) == wanted

        await wait_until(is_reached, description=f"the profile is {wanted}")

    return reach


Reaches = Callable[[Mapping[str, Any]], Awaitable[None]]


async def _withdraw(memory: Memory, how: Withdraw, id_: EpisodeId) -> None:
    if how == "undo":
        await memory.undo(id_, user_id="ann")
    else:
        await memory.forget(user_id="ann", ids=[id_])


@pytest.mark.parametrize("how", ["undo", "forget"])
async def test_a_replaced_trait_comes_back(memory: Memory, reaches: Reaches, how: Withdraw) -> None:
    await memory.remember("I live in Rome.", user_id="ann", session_id="x")
    await reaches({"lives_in": "Rome"})
    receipt = await memory.remember("I moved to Minsk.", user_id="ann", session_id="x")
    await reaches({"lives_in": "Minsk"})

    await _withdraw(memory, how, receipt.episode_ids[0])

    await reaches({"lives_in": "Rome"})


@pytest.mark.parametrize("how", ["undo", "forget"])
async def test_replaced_and_removed_traits_come_back_and_ended_ones_do_not(
    memory: Memory, reaches: Reaches, how: Withdraw
) -> None:
    honest = {"lives_in": "Rome", "works_at": "Acme", "allergic_to": ["peanuts"], "dislikes": ["tea"]}
    await memory.remember("I live in Rome and I like tea.", user_id="ann")
    await reaches({"lives_in": "Rome", "likes": ["tea"]})
    await memory.remember("I work at Acme. I'm allergic to peanuts.", user_id="ann")
    await reaches({"lives_in": "Rome", "works_at": "Acme", "allergic_to": ["peanuts"], "likes": ["tea"]})
    await memory.remember("I no longer like tea.", user_id="ann")
    await reaches(honest)
    receipt = await memory.remember(POISON, user_id="ann")
    await reaches({"lives_in": "Minsk", "works_at": "Gazprom", "dislikes": ["tea"]})

    await _withdraw(memory, how, receipt.episode_ids[0])

    await reaches(honest)


@pytest.mark.parametrize("how", ["undo", "forget"])
async def test_a_trait_stays_that_another_message_has_repeated(memory: Memory, reaches: Reaches, how: Withdraw) -> None:
    receipt = await memory.remember("I live in Rome.", user_id="ann")
    await reaches({"lives_in": "Rome"})
    await memory.remember("I live in Rome. I like chess.", user_id="ann")
    await reaches({"lives_in": "Rome", "likes": ["chess"]})

    await _withdraw(memory, how, receipt.episode_ids[0])

    await reaches({"lives_in": "Rome", "likes": ["chess"]})
