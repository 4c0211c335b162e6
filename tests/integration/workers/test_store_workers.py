"""What real store workers promise: once, whoever dies, whatever the bells say, and without growing."""

import asyncio
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from pydantic import SecretStr

from aftermind import Memory, Message
from aftermind.api.address_resolution import resolve
from aftermind.cli import doctor_key_and_audit_checks
from aftermind.cli.doctor_checks import Verdict
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.settings import Settings
from aftermind.types import JobId
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database, wait_for_output
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

AGENT = """
import asyncio, os, signal, sys
from aftermind import Memory
async def main():
    memory = Memory(sys.argv[1], broker=sys.argv[2])
    await memory.remember("I moved to Oslo.", user_id="ann", session_id="s", accept=sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
FIRST, LAST = 1_000, 10_000  # stores


def pending(redis_url: str) -> int:
    client = redis.Redis.from_url(redis_url)
    try:
        return int(client.zcard(Keys().index()))
    finally:
        client.close()


@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_turn_is_stored_though_its_agent_was_killed_right_after_remember(
    database: Database, redis_url: str, tmp_path: Path, accept: str
) -> None:
    argv = [sys.executable, "-c", AGENT, database.app_url, redis_url, accept]
    killed = await asyncio.to_thread(subprocess.run, argv, cwd=tmp_path, check=False, timeout=180)
    assert killed.returncode == -9
    counted = "SELECT count(*) FROM aftermind.episodes"

    memory = Memory(database.app_url, broker=redis_url)
    with workers(environment(database.relay_url, redis_url, AFTERMIND_RECONCILE_SECONDS="0.5"), tmp_path):
        await wait_for_output(database.url, counted, "1", description="the turn is stored")

    assert [episode.content for episode in await memory.history(user_id="ann")] == ["I moved to Oslo."]
    await memory.close()


async def test_bells_that_are_doubled_forged_or_garbage_store_nothing_twice(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    memory = Memory(database.app_url, broker=redis_url)
    receipt = await memory.remember([Message.user("I moved to Oslo.")], user_id="ann")
    bell = Doorbell(redis_url)
    client = redis.Redis.from_url(redis_url)
    keys = Keys()
    bells = [bell.message(receipt.job_id, queues.STORE)] * 5 + [bell.message(JobId(uuid4()), queues.STORE)]
    for message in (*bells, bell.message(receipt.job_id, queues.STORE).replace(b"aftermind.run", b"aftermind.bad")):
        client.lpush(keys.queue(queues.STORE), message)

    with workers(environment(database.relay_url, redis_url), tmp_path, count=2):
        await receipt.stored(timeout=180)
        await wait_until(lambda: client.llen(keys.queue(queues.STORE)) == 0, description="every bell is answered")
        again = await memory.remember("Still there.", user_id="ann")
        await again.stored(timeout=180)

    assert [each.content for each in await memory.history(user_id="ann")] == ["I moved to Oslo.", "Still there."]
    client.close()
    await memory.close()


async def test_a_worker_killed_in_the_middle_loses_and_doubles_nothing(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    memory = Memory(database.app_url, broker=redis_url)
    env = environment(database.relay_url, redis_url, AFTERMIND_LEASE_SECONDS="3", AFTERMIND_HEARTBEAT_SECONDS="1")
    turns = [f"turn {number}" for number in range(600)]
    for turn in turns:
        await memory.remember(turn, user_id="ann", session_id="s")

    with workers(env, tmp_path) as (first,):
        await wait_until(lambda: pending(redis_url) < len(turns), description="the first batch is stored")
        first.kill()
    with workers(env, tmp_path):
        await wait_until(lambda: pending(redis_url) == 0, description="nothing is pending")

    stored = await memory.history(user_id="ann", session_id="s", limit=1_000)
    assert [episode.content for episode in stored] == turns
    await memory.close()


@pytest.mark.long
async def test_a_worker_has_not_grown_after_ten_thousand_stores(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    # Patient, so that on a busy machine no turn goes to the spool, which this test does not wait for.
    patient = Settings(remember_budget_seconds=60, redis_timeout_seconds=60)
    memory = Memory(database.app_url, broker=redis_url, settings=patient)
    with workers(environment(database.relay_url, redis_url, AFTERMIND_EXTRACTOR="off"), tmp_path) as (worker,):
        await remember_and_drain(memory, redis_url, range(FIRST))
        after_first = worker.memory_info().rss
        for start in range(FIRST, LAST, FIRST):
            await remember_and_drain(memory, redis_url, range(start, start + FIRST))
        after_last = worker.memory_info().rss

    assert after_last <= after_first * 1.2
    await memory.close()


async def remember_and_drain(memory: Memory, redis_url: str, numbers: range) -> None:
    await asyncio.gather(
        *(memory.remember(f"This is turn {n}.", user_id=f"user-{n % 50}", session_id="s") for n in numbers)
    )
    await wait_until(lambda: pending(redis_url) == 0, timeout=180, description="nothing is pending")


@pytest.mark.long
async def test_turns_that_wait_for_a_key_grow_older_in_every_check_and_are_stored_with_it(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    right, wrong = "the master key of the tenant", "the master key of another one"
    settings = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        state_dir=tmp_path / "agent",
        encryption_key=SecretStr(right),
        embedder="off",
    )
    async with Memory(settings=settings) as memory:
        await memory.encryption.encrypt(spread_seconds=0.1)
        with workers(environment(database.relay_url, redis_url, AFTERMIND_ENCRYPTION_KEY=wrong), tmp_path):
            receipt = await memory.remember("I moved to Oslo.", user_id="ann")

            async def waits() -> bool:
                rows = [row for row in (await memory.health()).work if row.kind == "store"]
                return [(row.runnable, row.running) for row in rows] == [(1, 0)] and rows[0].age_seconds > 3

            await wait_until(waits, description="the turn is one that could run, since its acceptance")

        stranger = settings.model_copy(update={"encryption_key": SecretStr(wrong)})
        of_keys = [
            each
            for each in await doctor_key_and_audit_checks.keys(resolve(stranger), stranger)
            if each.what == "master key"
        ]
        assert [(each.verdict, each.seen) for each in of_keys] == [
            (Verdict.BAD, "this process cannot open the keys of default")
        ]
        with workers(environment(database.relay_url, redis_url, AFTERMIND_ENCRYPTION_KEY=right), tmp_path):
            await receipt.stored(timeout=180)
        assert [each.content for each in await memory.history(user_id="ann")] == ["I moved to Oslo."]
