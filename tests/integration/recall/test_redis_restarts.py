"""What a replica must have passed: watermarks, and what is there instead when Redis has come back without them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.types import ServedBy
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_epoch import ensure_epoch
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database, Servers, psql_async
from tests.support.stored_turns import keep, said
from tests.support.waiting import wait_until


class World:
    """A memory over a primary and its replica, and the hand that begins a life of Redis as workers do."""

    def __init__(self, database: Database, redis_url: str, tmp_path: Path) -> None:
        settings = Settings(
            database_url=database.app_url,
            replica_urls=database.app_replica_urls,
            broker_url=redis_url,
            embedder="hash",
            state_dir=tmp_path,
        )
        self.memory, self._keys = Memory(settings=settings), Keys(settings.redis_prefix)
        self._primary, self._link = PostgresDatabase(database.url), RedisLink(redis_url, timeout=2.0)

    async def begin_a_life(self) -> None:
        await ensure_epoch(self._link, self._keys, self._primary.watermark)

    async def served_by(self) -> ServedBy:
        return (await self.memory.recall("What do I play?", user_id="alice")).served_by

    async def seen(self) -> tuple[bool, bool]:
        """Whether a recall shows the newest, and whether the history does."""
        block = await self.memory.recall("What do I play?", user_id="alice")
        rows = await self.memory.history(user_id="alice")
        return "cello" in block.text, "I play the cello" in [episode.content for episode in rows]

    async def close(self) -> None:
        await self.memory.close()
        await self._primary.close()
        await self._link.close()


@pytest.fixture
async def world(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    made = World(database, redis_url, tmp_path)
    yield made
    await made.close()


async def test_no_replica_is_read_that_has_not_seen_the_last_write_or_what_redis_has_forgotten(
    database: Database, servers: Servers, world: World
) -> None:
    await keep(database.url, [said("I play the flute")])
    await world.begin_a_life()

    async def has_it() -> bool:
        return await world.served_by() is ServedBy.REPLICA

    await wait_until(has_it, description="the replica has passed the floor")
    await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        await keep(database.url, [said("I play the cello")])  # and nobody raises a watermark, as if it were lost
        assert await world.seen() == (False, False), "both read the replica"
        await world.memory.blocks.set("persona", "Dry.", user_id="alice")
        assert await world.seen() == (True, True), "a write of Memory's own leaves its watermark"

        servers.empty_redis()
        assert await world.seen() == (True, True)
        await world.begin_a_life()
        assert await world.seen() == (True, True)
        assert await world.served_by() is ServedBy.PRIMARY
    finally:
        await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")
    await wait_until(has_it, description="the replica has passed the new floor, and serves again")
    assert await world.seen() == (True, True)
