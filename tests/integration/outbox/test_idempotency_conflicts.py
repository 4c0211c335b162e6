"""One idempotency key with other content is refused, however the first turn was accepted and wherever it is now."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest

from aftermind import Memory, Settings, errors
from tests.support.servers import Database, psql_async
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

KEY = "order-17"
FIRST, OTHER = "I moved to Oslo.", "I moved to Rome."


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


def settings_of(database: Database, valkey: Valkey, state_dir: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        allow_owner=False,
        redis_url=valkey.url,
        broker_url=valkey.url,
        state_dir=state_dir,
        embedder="hash",
        extractor="off",
        remember_budget_seconds=0.5,  # some turns are spooled because Redis is frozen
        redis_timeout_seconds=0.5,
    )


@pytest.fixture
async def memory(database: Database, valkey: Valkey, tmp_path: Path) -> AsyncIterator[Memory]:
    async with Memory(settings=settings_of(database, valkey, tmp_path / "agent")) as made:
        yield made


async def remember(memory: Memory, valkey: Valkey, content: str, how: str, *, session: str = "s") -> None:
    """Hand a turn over: accepted by Redis, by Postgres, or spooled while Redis does not answer."""
    with valkey.frozen() if how == "spool" else nullcontext():
        accept = "postgres" if how == "postgres" else "redis"
        receipt = await memory.remember(
            content, user_id="alice", session_id=session, idempotency_key=KEY, accept=accept
        )
    assert receipt.spooled or how != "spool"  # after an outage others are spooled too, until it is drained


@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_concurrent_turns_with_keys_are_accepted_in_the_order_of_the_calls(
    database: Database, valkey: Valkey, tmp_path: Path, accept: Literal["redis", "postgres"]
) -> None:
    settings = settings_of(database, valkey, tmp_path / "agent")
    patient = settings.model_copy(update={"remember_budget_seconds": 30.0, "redis_timeout_seconds": 30.0})
    said = [f"Message {number}." for number in range(12)]

    def call(number: int) -> Awaitable[object]:
        key = f"key-{number}" if number % 4 else None  # turns without a key do not overtake either
        return agent.remember(said[number], user_id="alice", session_id="s", idempotency_key=key, accept=accept)

    async with Memory(settings=patient) as agent:
        await asyncio.gather(*(call(number) for number in range(12)))  # the first call opens a connection, as in a CLI
        kept = await agent.export(user_id="alice")  # pending turns too

    assert [each.content for each in kept.episodes] == said


SECONDS = ("redis", "postgres")


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("first", ["redis", "postgres", "spool"])
async def test_other_content_is_refused_while_the_first_turn_is_pending(
    memory: Memory, valkey: Valkey, first: str, second: str
) -> None:
    await remember(memory, valkey, FIRST, first)

    with pytest.raises(errors.IdempotencyConflict):
        await remember(memory, valkey, OTHER, second)
    with pytest.raises(errors.IdempotencyConflict):
        await remember(memory, valkey, FIRST, second, session="another")
    await remember(memory, valkey, FIRST, second)

    assert [each.content for each in await memory.history(user_id="alice")] == [FIRST]


@pytest.mark.parametrize("second", [*SECONDS, "spool"])
async def test_other_content_is_refused_after_the_first_turn_is_stored(
    memory: Memory, database: Database, valkey: Valkey, tmp_path: Path, second: str
) -> None:
    with workers(environment(database.relay_url, valkey.url), tmp_path):
        receipt = await memory.remember(FIRST, user_id="alice", session_id="s", idempotency_key=KEY)
        await receipt.stored(timeout=180)

    with pytest.raises(errors.IdempotencyConflict):
        await remember(memory, valkey, OTHER, second)

    assert [each.content for each in await memory.history(user_id="alice")] == [FIRST]


async def test_other_content_is_refused_while_the_first_turn_is_in_the_same_spool(
    memory: Memory, valkey: Valkey
) -> None:
    with valkey.frozen():
        await memory.remember(FIRST, user_id="alice", session_id="s", idempotency_key=KEY)
        with pytest.raises(errors.IdempotencyConflict):
            await memory.remember(OTHER, user_id="alice", session_id="s", idempotency_key=KEY)
        await memory.remember(FIRST, user_id="alice", session_id="s", idempotency_key=KEY)

        assert [each.content for each in await memory.history(user_id="alice")] == [FIRST]


async def test_two_hosts_that_could_not_see_each_other_keep_both_turns(
    memory: Memory, database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    """Neither could be refused any more when they met: each caller has its receipt, so neither turn is lost."""

    async def both_are_stored() -> bool:
        rows = (await psql_async(database.url, "SELECT content FROM aftermind.episodes ORDER BY content")).splitlines()
        return rows == sorted([FIRST, OTHER])

    async with Memory(settings=settings_of(database, valkey, tmp_path / "other")) as other:
        await remember(memory, valkey, FIRST, "redis")
        await remember(other, valkey, OTHER, "spool")
        with workers(environment(database.relay_url, valkey.url), tmp_path):
            await wait_until(both_are_stored, description="both turns are stored")


async def test_a_memory_of_one_process_refuses_it_before_and_after_it_is_stored(tmp_path: Path) -> None:
    async with Memory("inmemory", settings=Settings(state_dir=tmp_path, embedder="hash", extractor="off")) as memory:
        receipt = await memory.remember(FIRST, user_id="alice", session_id="s", idempotency_key=KEY)
        with pytest.raises(errors.IdempotencyConflict):
            await memory.remember(OTHER, user_id="alice", session_id="s", idempotency_key=KEY)
        await receipt.stored(timeout=180)
        with pytest.raises(errors.IdempotencyConflict):
            await memory.remember(FIRST, user_id="alice", session_id="another", idempotency_key=KEY)
        await memory.remember(FIRST, user_id="alice", session_id="s", idempotency_key=KEY)

        assert [each.content for each in await memory.history(user_id="alice")] == [FIRST]
