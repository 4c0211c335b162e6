"""A process that ends at any step of an effect leaves no recall stale: its servers are cut off at each in turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from aftermind.db.engine import PostgresDatabase
from aftermind.freshness.watermark_redelivery import LONGEST_WAIT_SECONDS
from aftermind.types import ServedBy
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_epoch import ensure_epoch
from aftermind.wire.redis_keys import Keys
from tests.support.proxy import Side, StepCounter, proxy_to
from tests.support.psql_session import PsqlSession
from tests.support.servers import Database, psql_async
from tests.support.stored_turns import keep, said
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.usefixtures("impatient_with_redis")

QUESTION = "Which instrument do I play?"
BEFORE, AFTER = "I play the cello.", "I play the tuba."
MAX_STEPS = 60  # more than any effect has
LOOKS = 3  # recalls in a row
STRIDE = 4  # the usual run tests every fourth step, the long one each
EVENTUALLY = LONGEST_WAIT_SECONDS + 5.0  # the longest lease, and a busy machine


@dataclass
class Stage:
    """`reading` recalls from a replica that lags, and reaches all servers; `acting` is the process that ends."""

    reading: Memory
    database: Database
    valkey: Valkey
    folder: Path
    session: PsqlSession  # asked several times for each step

    @asynccontextmanager
    async def acting(self) -> AsyncIterator[tuple[Memory, StepCounter]]:
        """A process, and the steps that it takes."""
        steps = StepCounter()
        async with (
            proxy_to(self.database.app_url, steps=steps) as postgres,
            proxy_to(self.valkey.url, steps=steps) as redis,
        ):
            settings = settings_of(
                replace(self.database, app_url=postgres.url(self.database.app_url), app_replica_urls=()),
                redis.url(self.valkey.url),
                self.folder / "acting",
            )
            memory = Memory(settings=settings)
            try:
                await memory.recall("Anything?", user_id="nobody")
                yield memory, steps
            finally:
                steps.cut()
                with suppress(errors.AftermindError, TimeoutError):
                    async with asyncio.timeout(5):
                        await memory.close()

    async def block(self, user: str) -> str:
        return (await self.reading.recall(QUESTION, user_id=user)).text

    async def ask(self, query: str) -> str:
        return await asyncio.to_thread(self.session.run, query)


def settings_of(database: Database, redis_url: str, state_dir: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        redis_url=redis_url,
        broker_url=redis_url,
        embedder="hash",
        extractor="off",
        state_dir=state_dir,
        allow_owner=False,
        db_timeout_seconds=2.0,
    )


@pytest.fixture
async def stage(database: Database, valkey: Valkey, tmp_path: Path) -> AsyncIterator[Stage]:
    primary, link = PostgresDatabase(database.url), RedisLink(valkey.url, timeout=2.0)
    await ensure_epoch(link, Keys(), primary.watermark)
    await primary.close()
    await link.close()
    async with Memory(settings=settings_of(database, valkey.url, tmp_path / "reading")) as reading:
        session = PsqlSession(database.url)
        yield Stage(reading, database, valkey, tmp_path, session)
        session.end()


@asynccontextmanager
async def paused(database: Database) -> AsyncIterator[None]:
    admin = database.replica_admin_urls[0]
    await psql_async(admin, "SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        await psql_async(admin, "SELECT pg_wal_replay_resume()")


@asynccontextmanager
async def lagging(database: Database) -> AsyncIterator[None]:
    admin = database.replica_admin_urls[0]
    await psql_async(admin, "ALTER SYSTEM SET recovery_min_apply_delay = '300ms'", "SELECT pg_reload_conf()")
    try:
        yield
    finally:
        await psql_async(admin, "ALTER SYSTEM RESET recovery_min_apply_delay", "SELECT pg_reload_conf()")


REPLICAS = {"paused": paused, "lagging": lagging}


@dataclass(frozen=True)
class Effect:
    """A call, where the turn is at that moment, and what a recall and the primary show of it."""

    call: Callable[[Memory, str], Awaitable[object]]
    place: str
    is_shown: Callable[[str], bool]
    committed: str  # a query: whether the primary has the effect


async def forget(memory: Memory, user: str) -> None:
    await memory.forget(user_id=user)


async def undo(memory: Memory, user: str) -> None:
    newest = (await memory.history(user_id=user))[-1]
    await memory.undo(newest.id, user_id=user)


async def edit_block(memory: Memory, user: str) -> None:
    await memory.blocks.set("persona", AFTER, user_id=user)


async def add_fact(memory: Memory, user: str) -> None:
    await memory.facts.add("user", "plays", "the tuba", user_id=user)


FORGOTTEN = "SELECT count(*) > 0 FROM aftermind.tombstones WHERE user_id = '{user}'"
UNDONE = "SELECT count(*) > 0 FROM aftermind.episodes WHERE user_id = '{user}' AND mark = 'undone'"
EDITED = "SELECT count(*) > 0 FROM aftermind.blocks WHERE user_id = '{user}'"
ADDED = "SELECT count(*) > 0 FROM aftermind.facts WHERE user_id = '{user}'"


def hides(text: str) -> bool:
    return "cello" not in text


def shows(text: str) -> bool:
    return "tuba" in text


EFFECTS = {
    "forget stored": Effect(forget, "stored", hides, FORGOTTEN),
    "forget pending in redis": Effect(forget, "redis", hides, FORGOTTEN),
    "forget pending in postgres": Effect(forget, "postgres", hides, FORGOTTEN),
    "undo": Effect(undo, "stored", hides, UNDONE),
    "block": Effect(edit_block, "stored", shows, EDITED),
    "fact": Effect(add_fact, "stored", shows, ADDED),
}
MATRIX = [
    pytest.param(effect, side, replica, stride, marks=[pytest.mark.timeout(600), *([pytest.mark.long] if long else [])])
    for effect in EFFECTS
    for side in Side
    for replica in REPLICAS
    for stride, long in ((1, True), (STRIDE, False))
    if long or (effect, side, replica) in {("forget stored", Side.AFTER, "paused"), ("block", Side.BEFORE, "paused")}
]


async def place_turns(stage: Stage, users: list[str], place: str) -> None:
    """The turn of each user, stored or pending; the replica has replayed it, and serves."""
    if place == "stored":
        await keep(stage.database.url, [said(BEFORE, user=user) for user in users])
    else:
        for user in users:
            accept = "redis" if place == "redis" else "postgres"
            await stage.reading.remember(BEFORE, user_id=user, session_id="s", accept=accept)

    async def serves() -> bool:
        return (await stage.reading.recall(QUESTION, user_id=users[-1])).served_by is ServedBy.REPLICA

    await wait_until(serves, description="the replica serves, under a lease that is in force")


async def end_at(stage: Stage, effect: Effect, user: str, step: int, side: Side) -> bool:
    """Run the effect in a process that ends at the step; False if it had no such step and returned."""
    async with stage.acting() as (memory, steps):
        steps.arm(step, side)
        with suppress(errors.AftermindError):
            await effect.call(memory, user)
        was_cut = steps.is_cut
        has_returned = not was_cut
    is_committed = await stage.ask(effect.committed.format(user=user)) == "t"
    assert is_committed or not has_returned
    if is_committed and not has_returned:  # nobody was promised anything yet; from the first fresh recall on, all are

        async def is_fresh() -> bool:
            return effect.is_shown(await stage.block(user))

        await wait_until(is_fresh, timeout=EVENTUALLY, description=f"step {step}: recalls show what is committed")
    for _ in range(LOOKS):
        shown = effect.is_shown(await stage.block(user))
        assert shown is is_committed, f"step {step}, {side} it"
    return was_cut


@pytest.mark.parametrize(("effect", "side", "replica", "stride"), MATRIX)
async def test_a_process_that_ends_at_a_step_of_an_effect_leaves_no_recall_stale(
    stage: Stage, effect: str, side: Side, replica: str, stride: int
) -> None:
    """Also afterwards: workers that come up store what was not forgotten, and nothing else."""
    tried = EFFECTS[effect]
    steps = range(1, MAX_STEPS + 1, stride)
    users = [f"user{step}" for step in steps]
    await place_turns(stage, users, tried.place)
    ended = 0
    async with REPLICAS[replica](stage.database):
        for step, user in zip(steps, users, strict=True):
            if not await end_at(stage, tried, user, step, side):
                break
            ended += 1

    assert ended > 3, "the effect was cut at its steps"
    assert ended < len(users), "the effect was carried out to its end at last"
    if tried.place != "stored":
        await stores_what_was_not_forgotten(stage, users)


async def stores_what_was_not_forgotten(stage: Stage, users: list[str]) -> None:
    expected = {user for user in users if await stage.ask(FORGOTTEN.format(user=user)) == "f"}
    with workers(environment(stage.database.relay_url, stage.valkey.url), stage.folder):

        async def stored() -> set[str]:
            return set((await stage.ask("SELECT user_id FROM aftermind.episodes")).splitlines())

        async def is_stored() -> bool:
            return await stored() >= expected

        await wait_until(is_stored, description="what stays is stored")
        receipt = await stage.reading.remember("And last.", user_id="last")
        await receipt.stored(timeout=180)
        assert await stored() - {"last"} == expected
