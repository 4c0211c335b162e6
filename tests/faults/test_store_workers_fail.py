"""Store workers that freeze, come back too late, or meet a turn that no worker survives."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import redis

from aftermind import Memory, Message, Receipt
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.types import Job, JobId, JobState
from aftermind.wire import queues
from aftermind.wire.pending import Offer, Pending
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind.wire.turn_encoding import encode_turn
from tests.support.faults import freeze, frozen, kill, thaw
from tests.support.servers import Database, psql_async
from tests.support.turns import ROOMY, lose, offer, turn_of
from tests.support.waiting import wait_until
from tests.support.workers import DEADLY, SLOWLY, TOUCHY, environment, start_worker, workers

BRISK = {  # so that a test sees in seconds what a deployment sees in half a minute
    "AFTERMIND_LEASE_SECONDS": "3",
    "AFTERMIND_HEARTBEAT_SECONDS": "1",
    "AFTERMIND_RECONCILE_SECONDS": "0.5",
}


def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def pending_turns(url: str) -> int:
    with client_of(url) as client:
        return int(client.zcard(Keys().index()))


def leased_turns(url: str) -> int:
    with client_of(url) as client:
        return int(client.zcard(Keys().leased()))


def poppers(url: str) -> int:
    """Workers that wait in their pop."""
    with client_of(url) as client:
        return sum(each["cmd"] == "brpop" for each in client.client_list())


async def nothing_pending(url: str) -> None:
    await wait_until(lambda: pending_turns(url) == 0, description="nothing is pending")


@asynccontextmanager
async def ledger_of(url: str) -> AsyncIterator[Callable[[JobId], Awaitable[Job | None]]]:
    """Looking up jobs."""
    database = PostgresDatabase(url)
    try:
        yield PostgresLedger(database).job
    finally:
        await database.close()


async def hand_over(redis_url: str, *offers: Offer) -> None:
    """Turns straight into Redis, as no `remember()` would let them through; without a bell."""
    link = RedisLink(redis_url, timeout=2.0)
    await Pending(link, Keys()).accept(offers, limits=ROOMY)
    await link.close()


async def test_a_turn_whose_bell_a_frozen_worker_swallowed_is_stored_by_another(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        env = environment(database.relay_url, redis_url, **BRISK)
        with workers(env, tmp_path) as (first,):
            await (await memory.remember("The worker is awake.", user_id="ann")).stored(timeout=180)
            said = ["The worker is awake."]

            async def swallowed() -> Receipt | None:
                """A pop ends after a second, maybe between the freeze and the bell: then again, with another turn."""
                await wait_until(lambda: poppers(redis_url) == 1, description="the worker waits in its pop")
                freeze(first.pid)
                said.append(f"Nobody heard bell {len(said)}.")
                receipt = await memory.remember(said[-1], user_id="ann")
                with client_of(redis_url) as client:
                    if not receipt.spooled and client.llen(Keys().queue(queues.STORE)) == 0:
                        return receipt
                thaw(first.pid)
                await receipt.stored(timeout=180)
                return None

            receipt = await wait_until(swallowed, description="the frozen worker is given the bell")
            assert receipt is not None
            kill(first.pid)

        with workers(env, tmp_path):
            await receipt.stored(timeout=180)

        assert [episode.content for episode in await memory.history(user_id="ann")] == said


@pytest.mark.long
async def test_a_zombie_that_wakes_up_after_its_lease_writes_nothing_twice(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        env = environment(database.relay_url, redis_url, **BRISK)
        zombie = start_worker(env, tmp_path / "zombie.log", app=TOUCHY)
        try:
            receipt = await memory.remember([Message.user(SLOWLY)], user_id="ann")
            await wait_until(lambda: leased_turns(redis_url) == 1, description="the worker holds the turn")
            with frozen(zombie.pid), workers(env, tmp_path):
                await receipt.stored(timeout=180)
            again = await memory.remember("After that.", user_id="ann")
            await again.stored(timeout=180)  # by the zombie, which is the only one left
            await nothing_pending(redis_url)
        finally:
            end(zombie)

        assert [episode.content for episode in await memory.history(user_id="ann")] == [SLOWLY, "After that."]


@pytest.mark.long
async def test_a_turn_that_kills_its_workers_is_parked_after_three_and_its_neighbours_are_stored(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        env = environment(database.relay_url, redis_url, **BRISK)
        poison = turn_of("eve", DEADLY)
        await hand_over(redis_url, offer(poison), *(offer(turn_of(f"user-{n}", f"turn {n}")) for n in range(20)))

        deaths = 0
        worker = start_worker(env, tmp_path / "worker.log", app=TOUCHY)
        try:
            while await asyncio.to_thread(pending_turns, redis_url):
                if not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE:
                    worker.wait()
                    deaths += 1
                    worker = start_worker(env, tmp_path / "worker.log", app=TOUCHY)
                await asyncio.to_thread(psutil.wait_procs, [worker], timeout=0.2)
        finally:
            end(worker)

        assert deaths == 3
        for n in range(20):
            assert [each.content for each in await memory.history(user_id=f"user-{n}")] == [f"turn {n}"]
        async with ledger_of(database.url) as job_of:
            dead = await job_of(poison.job_id)
        assert dead is not None
        assert (dead.state, dead.reason_code, dead.raw) == (JobState.DEAD, "worker_lost", encode_turn(poison))


async def test_what_would_be_buried_next_has_its_worker_to_itself(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """Both lost two leases, and a worker runs several batches: beside the other, the innocent would be buried too."""
    innocent, poison = turn_of("ann", SLOWLY), turn_of("eve", DEADLY)
    await hand_over(redis_url, offer(innocent), offer(poison))
    link = RedisLink(redis_url, timeout=2.0)
    await lose(Pending(link, Keys()), 2)
    await link.close()

    async with Memory(database.app_url, broker=redis_url) as memory:
        for n in range(4):  # so many bells
            await memory.remember(f"Anything {n}.", user_id="zoe")
        with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path, app=TOUCHY) as (first,):
            await asyncio.to_thread(first.wait, 60)  # the poison took it
        with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path, app=TOUCHY):
            await nothing_pending(redis_url)

        assert [each.content for each in await memory.history(user_id="ann")] == [SLOWLY]
        assert len(await memory.history(user_id="zoe")) == 4
    async with ledger_of(database.url) as job_of:
        dead = await job_of(poison.job_id)
    assert dead is not None
    assert (dead.state, dead.reason_code) == (JobState.DEAD, "worker_lost")


async def test_one_bad_turn_of_a_batch_is_parked_alone(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        bad, later = turn_of("eve", "a NUL \x00 that Postgres refuses"), turn_of("eve", "of a later release")
        unreadable = encode_turn(later).replace(b'"v":1', b'"v":9')
        good = [turn_of(f"user-{n}", f"turn {n}") for n in range(30)]
        await hand_over(redis_url, *(offer(turn) for turn in good), offer(bad), Offer(turn=later, payload=unreadable))

        more = {"AFTERMIND_MAX_ATTEMPTS": "2", "AFTERMIND_BACKOFF_BASE_SECONDS": "0.1"}
        with workers(environment(database.relay_url, redis_url, **BRISK, **more), tmp_path):
            await nothing_pending(redis_url)

        for n in range(30):
            assert [each.content for each in await memory.history(user_id=f"user-{n}")] == [f"turn {n}"]
        async with ledger_of(database.url) as job_of:
            refused, parked = await job_of(bad.job_id), await job_of(later.job_id)
        assert refused is not None
        assert (refused.state, refused.raw) == (JobState.DEAD, encode_turn(bad))
        assert parked is not None
        assert (parked.state, parked.reason_code, parked.raw) == (JobState.DEAD, "unknown_version", unreadable)


async def test_a_flood_of_one_user_does_not_hold_up_another(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        flood = [offer(turn_of("flood", f"turn {n}")) for n in range(ROOMY.turns_of_user)]
        await hand_over(redis_url, *flood)
        receipt = await memory.remember("Only this.", user_id="ann")

        with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path):
            await receipt.stored(timeout=180)
            await nothing_pending(redis_url)

        # One of each owner a round: ann's turn is in the first batch of a hundred, or in the next where it had begun.
        # By the commits' own times: looking from here would be late on a busy machine.
        before = """
            SELECT count(*) FILTER (WHERE flood.created_at <= ann.created_at), count(*)
            FROM aftermind.events AS flood, aftermind.events AS ann
            WHERE flood.user_id = 'flood' AND flood.event->>'event' = 'MemoryUpdateCompleted'
              AND ann.user_id = 'ann' AND ann.event->>'event' = 'MemoryUpdateCompleted'
        """
        sooner, stored = (int(number) for number in (await psql_async(database.url, before)).split("|"))
        assert stored == len(flood)
        assert sooner < 500


@pytest.mark.long
async def test_workers_that_are_restarted_in_turn_lose_and_double_nothing(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        env = environment(database.relay_url, redis_url, **BRISK)
        said: list[str] = []
        running = [start_worker(env, tmp_path / f"worker-{number}.log") for number in range(2)]
        try:
            for number in range(2, 6):
                await wait_until(lambda: poppers(redis_url) == 2, description="two workers wait for bells")
                for _ in range(100):
                    said.append(f"turn {len(said)}")
                    await memory.remember(said[-1], user_id="ann", session_id="s")
                old = running.pop(0)
                old.send_signal(signal.SIGTERM)
                running.append(start_worker(env, tmp_path / f"worker-{number}.log"))
                assert await asyncio.to_thread(old.wait, 30) == 0
            await nothing_pending(redis_url)
        finally:
            for process in running:
                end(process)

        history = await memory.history(user_id="ann", session_id="s", limit=1_000)
        assert [episode.content for episode in history] == said


def end(process: psutil.Process) -> None:
    if process.is_running():
        thaw(process.pid)
        process.send_signal(signal.SIGTERM)
        psutil.wait_procs([process], timeout=30)
    kill(process.pid)
