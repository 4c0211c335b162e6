"""Every kind of job says when it begins, and in the transaction that gives it up, that it is a dead letter."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from aftermind import Memory, Settings
from aftermind.events.types import MemoryEvent, MemoryUpdateFailed, MemoryUpdateStarted
from aftermind.types import JobKind
from aftermind_tasks import job_events
from aftermind_tasks.runtime import open_runtime
from tests.support.learning import Learning, learning
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database, Servers, psql_async
from tests.support.waiting import wait_until

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
EMBEDDED = {"embedder": "openai:text-embedding-3-small", "embedding_dimension": 384}
ANN = "ann"


@pytest.fixture
def provider() -> Iterator[ScriptedOpenAI]:
    """A model server."""
    with scripted_openai() as server:
        yield server


@pytest.fixture
def opened(database: Database, servers: Servers, tmp_path: Path, provider: ScriptedOpenAI) -> Opened:
    """Memories on Postgres."""
    servers.empty_redis()
    return partial(learning, database, servers.redis_url, tmp_path, provider, **AT_ONCE, **EMBEDDED)


@asynccontextmanager
async def heard(memory: Memory) -> AsyncIterator[list[MemoryEvent]]:
    """What a listener hears meanwhile."""
    events: list[MemoryEvent] = []

    async def listen() -> None:
        async for event in memory.events(user_id=ANN, after="0"):
            events.append(event)  # noqa: PERF401  # seen as they come

    listening = asyncio.create_task(listen())
    try:
        yield events
    finally:
        listening.cancel()
        await asyncio.wait([listening])


def begun(events: list[MemoryEvent]) -> Counter[str]:
    """Kinds of the jobs of which somebody heard that they have begun, and how often."""
    return Counter(event.kind for event in events if isinstance(event, MemoryUpdateStarted))


async def test_jobs_of_every_kind_that_are_given_up_say_so_with_their_dead_letters(
    opened: Opened, database: Database, provider: ScriptedOpenAI
) -> None:
    provider.script.faults = {"400": 1.0}
    async with opened(max_attempts=1) as learnt:
        memory = learnt.memory
        await memory.remember("I live in Oslo.", user_id=ANN, session_id="s1", save={"history", "facts"})
        await memory.remember("I like tea.", user_id=ANN, session_id="s2", save={"history", "summary", "profile"})
        await learnt.settle()
        unreadable = await memory.remember("I have a cat.", user_id=ANN, session_id="s3")
        await psql_async(database.url, f"UPDATE aftermind.jobs SET raw = '\\x00' WHERE id = '{unreadable.job_id}'")
        await learnt.settle()

        events = await memory.past_events(user_id=ANN, after="0")
        failed = [event for event in events if isinstance(event, MemoryUpdateFailed)]
        letters = (await psql_async(database.url, "SELECT id FROM aftermind.jobs WHERE state = 'dead'")).split()
        assert {event.kind for event in failed} == {"store", "embed", "extract", "summarise", "profile"}
        assert sorted(str(event.dead_letter_id) for event in failed) == sorted(letters)
        assert begun(events) >= Counter({"extract": 1, "summarise": 1, "profile": 1, "embed": 2, "store": 2})


async def test_webhooks_have_the_failure_of_a_job_to_deliver(
    opened: Opened, database: Database, provider: ScriptedOpenAI
) -> None:
    provider.script.faults = {"400": 1.0}
    await psql_async(
        database.url,
        "INSERT INTO aftermind.webhooks (namespace, id, url, events, secret) VALUES "
        "('default', gen_random_uuid(), 'https://example.org', '{MemoryUpdateFailed}', '')",
    )
    async with opened(max_attempts=1, embedder="hash") as learnt:
        await learnt.learn(ANN, ["I live in Oslo."])

    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.webhook_deliveries") == "1"


async def test_a_job_whose_workers_vanish_says_that_it_is_given_up(
    opened: Opened, database: Database, servers: Servers, tmp_path: Path
) -> None:
    async with opened(embedder="hash") as learnt:
        await learnt.memory.remember("I live in Oslo.", user_id=ANN, session_id="s1")
        settings = Settings(
            database_url=database.relay_url, redis_url=servers.redis_url, state_dir=tmp_path, embedder="hash"
        )
        runtime = await open_runtime(settings, worker="reconciler")
        for _ in range(3):
            assert await learnt.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(0), alone=True)
            assert (await job_events.expire_leases(runtime)).total() == 1
        await runtime.close()

        (failed,) = await learnt.memory.past_events(user_id=ANN, after="0")
        assert isinstance(failed, MemoryUpdateFailed)
        assert (failed.kind, failed.dead_letter_id) == ("store", failed.job_id)


async def test_a_listener_hears_that_a_model_is_asked_before_it_has_answered(
    opened: Opened, provider: ScriptedOpenAI
) -> None:
    async with opened(embedder="hash") as learnt, heard(learnt.memory) as events:
        provider.script.silence_seconds = 60.0
        provider.script.plan = ["silence"]
        await learnt.memory.remember("I live in Oslo.", user_id=ANN, session_id="s1")
        working = asyncio.create_task(learnt.settle())

        await wait_until(lambda: begun(events)["extract"] == 1, description="its start is heard")

        assert not working.done()
        working.cancel()
        await asyncio.wait([working])


async def test_a_listener_hears_once_that_a_turn_is_being_stored_while_it_is_held_up(
    opened: Opened, database: Database
) -> None:
    async with opened(embedder="hash", extractor="off") as learnt:
        await learnt.learn(ANN, ["I live in Oslo."])  # there is a row of the user to hold
        async with heard(learnt.memory) as events:
            await wait_until(lambda: len(events) >= 2, description="the first turn is heard of")
            blocking = await asyncpg.connect(database.url)
            async with blocking.transaction():
                await blocking.execute("SELECT FROM aftermind.users FOR UPDATE")
                receipt = await learnt.memory.remember("I like tea.", user_id=ANN, session_id="s1")
                working = asyncio.create_task(learnt.settle())
                await wait_until(
                    lambda: str(receipt.job_id) in [event.job_id for event in events],
                    description="its start is heard while it waits for the row",
                )
                assert [event.event for event in events[2:]] == ["MemoryUpdateStarted"]
            await working
            await blocking.close()
            await wait_until(lambda: len(events) >= 4, description="its end is heard")

            third = await learnt.learn(ANN, ["I have a cat."])
            await wait_until(
                lambda: [event.job_id for event in events].count(str(third.job_id)) == 2,
                description="and the turn after it",
            )
            assert [event.event for event in events] == ["MemoryUpdateStarted", "MemoryUpdateCompleted"] * 3
            assert all(began.at < ended.at for began, ended in zip(events[::2], events[1::2], strict=True))
        async with heard(learnt.memory) as recorded:
            await wait_until(lambda: len(recorded) >= 6, description="the record is read")
            assert [event.at for event in recorded] == [event.at for event in events]
