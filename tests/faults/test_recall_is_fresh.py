"""No recall is stale after a call returned or a Completed event arrived, whatever happens to Redis in between."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.receipt import StepState
from aftermind.types import ServedBy
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_epoch import ensure_epoch
from aftermind.wire.redis_keys import Keys
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import Database, psql_async
from tests.support.stored_turns import keep, said
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.usefixtures("impatient_with_redis")

QUESTION = "Which instrument do I play?"
LOOKS = 15  # recalls after the call: the first meets the lease of before, the last one that was renewed


@dataclass
class World:
    """Two processes' memories: `acting` reaches Redis through a proxy, `reading` directly and recalls from a replica.

    The effects of `acting` cannot reach the replica, which is paused.
    """

    acting: Memory
    reading: Memory
    valkey: Valkey
    proxy: Proxy
    database: Database

    async def block(self) -> str:
        return (await self.reading.recall(QUESTION, user_id="alice")).text

    async def serves_from_replica(self) -> None:
        async def serves() -> bool:
            return (await self.reading.recall(QUESTION, user_id="alice")).served_by is ServedBy.REPLICA

        await wait_until(serves, description="the replica serves, under a lease that is in force")


def settings_of(database: Database, redis_url: str, state_dir: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        broker_url=redis_url,
        embedder="hash",
        state_dir=state_dir,
    )


@asynccontextmanager
async def paused_replica(database: Database) -> AsyncIterator[None]:
    await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")


@pytest.fixture
async def world(database: Database, valkey: Valkey, tmp_path: Path) -> AsyncIterator[World]:
    primary, link = PostgresDatabase(database.url), RedisLink(valkey.url, timeout=2.0)
    await ensure_epoch(link, Keys(), primary.watermark)
    await primary.close()
    await link.close()
    async with (
        proxy_to(valkey.url) as proxy,
        Memory(settings=settings_of(database, proxy.url(valkey.url), tmp_path / "acting")) as acting,
        Memory(settings=settings_of(database, valkey.url, tmp_path / "reading")) as reading,
    ):
        yield World(acting, reading, valkey, proxy, database)


@dataclass(frozen=True)
class Effect:
    """A call of Memory, and whether a block shows what it did."""

    call: Callable[[Memory], Awaitable[object]]
    is_shown: Callable[[str], bool]


async def forget(memory: Memory) -> None:
    await memory.forget(user_id="alice")


async def undo(memory: Memory) -> None:
    newest = (await memory.history(user_id="alice"))[-1]
    await memory.undo(newest.id, user_id="alice")


async def edit_block(memory: Memory) -> None:
    await memory.blocks.set("persona", "Plays the tuba.", user_id="alice")


async def add_fact(memory: Memory) -> None:
    await memory.facts.add("user", "plays", "the tuba", user_id="alice")


EFFECTS = {
    "forget": Effect(forget, lambda text: "cello" not in text),
    "undo": Effect(undo, lambda text: "cello" not in text),
    "block": Effect(edit_block, lambda text: "tuba" in text),
    "fact": Effect(add_fact, lambda text: "tuba" in text),
}


@contextlib.contextmanager
def fault_of(world: World, name: str) -> Iterator[None]:
    """Redis does not answer `acting` in the block; `reading` finds it well again afterwards."""
    match name:
        case "frozen":
            with world.valkey.frozen():
                yield
        case "cut":
            world.proxy.reset()
            yield
        case "swallowed":
            world.proxy.blackhole()
            yield
        case "restarted":
            world.valkey.kill()
            yield
            world.valkey.start()
        case "emptied":
            world.valkey.wipe()
            yield


CORE = [("forget", "frozen"), ("undo", "cut"), ("block", "swallowed"), ("fact", "restarted"), ("forget", "emptied")]
FAULTS = ("frozen", "cut", "swallowed", "restarted", "emptied")
MATRIX = [
    pytest.param(effect, fault, marks=[] if (effect, fault) in CORE else pytest.mark.long)
    for effect in EFFECTS
    for fault in FAULTS
]


@pytest.mark.parametrize(("effect", "fault"), MATRIX)
async def test_a_recall_follows_a_call_that_returned_while_redis_was_away(
    world: World, effect: str, fault: str
) -> None:
    await keep(world.database.url, [said("I play the cello")])
    await world.serves_from_replica()
    async with paused_replica(world.database):
        with fault_of(world, fault):
            await EFFECTS[effect].call(world.acting)

        blocks = [await world.block() for _ in range(LOOKS)]
    if fault != "emptied":  # then the reconciler begins a new life of Redis first
        await world.serves_from_replica()

    assert all(map(EFFECTS[effect].is_shown, blocks))


async def test_a_turn_accepted_by_postgres_is_recalled_from_any_process_at_every_moment(
    world: World, tmp_path: Path
) -> None:
    """Accepted by one process, asked for by another whose turns Redis accepts, stored meanwhile by a worker."""
    await keep(world.database.url, [said("I live in Oslo")])
    await world.serves_from_replica()
    env = environment(world.database.relay_url, world.valkey.url)
    async with paused_replica(world.database):
        receipt = await world.acting.remember("I play the cello", user_id="alice", session_id="s2", accept="postgres")
        blocks = [await world.block()]
        rows = await world.reading.history(user_id="alice")
        with workers(env, tmp_path):

            async def is_stored() -> bool:
                blocks.append(await world.block())
                return (await receipt.status()).stored is StepState.DONE

            await wait_until(is_stored, description="the worker has stored the turn")
            blocks += [await world.block() for _ in range(LOOKS)]

    assert [row.content for row in rows] == ["I live in Oslo", "I play the cello"]
    assert all("cello" in text for text in blocks)
