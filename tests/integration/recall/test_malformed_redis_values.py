"""Values of Redis that no process of ours writes: an agent's Redis user has the right to write these keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from aftermind import Memory, Settings
from aftermind.types import Scope
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

KEYS = Keys()
MALFORMED = ["", "x", "1/2", "1/2/3/4", "a/b/c", "1/2/" + "9" * 5_000, b"\xff"]


@pytest.fixture
async def memory(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Memory]:
    """An agent's, with a replica."""
    settings = Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        broker_url=redis_url,
        embedder="hash",
        state_dir=tmp_path,
        recall_budget_seconds=10.0,
    )
    async with Memory(settings=settings) as opened:
        yield opened


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("key", [KEYS.watermark(Scope(user_id="ann")), KEYS.epoch()])
async def test_a_malformed_watermark_is_counted_and_the_primary_serves(
    memory: Memory, redis_url: str, key: str, value: str | bytes
) -> None:
    await memory.blocks.set("human", "Likes tea.", user_id="ann")
    with redis.Redis.from_url(redis_url) as client:
        client.set(key, value)

    block = await memory.recall("What do I like?", user_id="ann")

    assert "Likes tea." in block.text
    assert block.served_by == "primary"
    assert (await memory.health()).malformed_values >= 1
    await memory.blocks.set("human", "Likes coffee.", user_id="ann")
    assert "Likes coffee." in (await memory.recall("What do I like?", user_id="ann")).text


async def test_a_malformed_generation_stops_no_turn_and_no_erasure(
    memory: Memory, database: Database, redis_url: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for field in ("last", "begun"):
            client.hset(KEYS.generation(), field, "zzz")
        first = await memory.remember("I live in Oslo.", user_id="ann")
        client.hset(KEYS.turn(str(first.job_id)), "generation", "zzz")
        second = await memory.remember("I live in Rome.", user_id="bob")

    assert "Oslo" in (await memory.recall("Where do I live?", user_id="ann")).text
    with workers(environment(database.relay_url, redis_url, AFTERMIND_RECONCILE_SECONDS="0.5"), tmp_path) as (worker,):
        await first.stored(timeout=180)
        await second.stored(timeout=180)
        assert (await memory.forget(user_id="ann")).rows["episodes"] == 1
        await (await memory.remember("I moved to Paris.", user_id="ann")).stored(timeout=180)

        async def is_there() -> bool:
            return [each.content for each in await memory.history(user_id="ann")] == ["I moved to Paris."]

        await wait_until(is_there, description="what was said after the erasure is kept")
        assert worker.is_running()
