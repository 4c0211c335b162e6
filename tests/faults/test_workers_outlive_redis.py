"""Redis answers READONLY, OOM, LOADING, MASTERDOWN or NOPERM for a while: workers wait, go on, and lose nothing."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import redis

from aftermind import Memory, Settings
from tests.support.servers import Database
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.asyncio
TURNS = 20  # in each outage
LOADED_KEYS = 20_000  # by a restart, with a pause at each: it loads for 2 s or more, and takes no processor
LOAD_PAUSE_MICROSECONDS = "100"


def readonly(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    return lambda: admin.execute_command("REPLICAOF", "NO", "ONE")


def master_down(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    admin.config_set("replica-serve-stale-data", "no")
    admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    return lambda: admin.execute_command("REPLICAOF", "NO", "ONE")


def full(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    admin.config_set("maxmemory-policy", "noeviction")
    admin.config_set("maxmemory", 1)
    return lambda: admin.config_set("maxmemory", 0)


def no_rights(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    commands = ("brpop", "lpush", "publish", "evalsha", "eval", "subscribe", "psubscribe", "sadd", "llen")
    admin.execute_command("ACL", "SETUSER", "default", *(f"-{each}" for each in commands))
    return lambda: admin.execute_command("ACL", "SETUSER", "default", "+@all")


def loading(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    pipe = admin.pipeline(transaction=False)
    for i in range(LOADED_KEYS):
        pipe.set(f"filler:{i}", "x")
    pipe.execute()
    server.kill()
    server.start("--key-load-delay", LOAD_PAUSE_MICROSECONDS, wait=False)  # LOADING until the file is read

    return server.wait_until_answers


def no_login(server: Valkey, admin: redis.Redis) -> Callable[[], None]:
    admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">another")
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return lambda: admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{server.password}")


OUTAGES = {each.__name__: each for each in (readonly, master_down, full, no_rights, no_login, loading)}


@pytest.mark.parametrize("how", OUTAGES)
async def test_workers_outlive_what_redis_refuses_and_lose_nothing(
    valkey: Valkey, database: Database, tmp_path: Path, how: str
) -> None:
    env = environment(
        database.relay_url,
        valkey.url,
        AFTERMIND_RECONCILE_SECONDS="0.5",
    )
    settings = Settings(state_dir=tmp_path, embedder="hash")
    async with Memory(database.app_url, broker=valkey.url, settings=settings) as memory:
        with workers(env, tmp_path) as processes, valkey.client() as admin:
            await (await memory.remember("I live in Oslo.", user_id="ann", session_id="s")).stored(timeout=120)
            end = OUTAGES[how](valkey, admin)
            texts = [f"turn {number}" for number in range(TURNS)]
            receipts = [await memory.remember(text, user_id="ann", session_id="s") for text in texts]
            await _refused_for_a_while(processes, tmp_path)
            end()

            for receipt in receipts:
                await receipt.stored(timeout=120)
            assert [each.is_running() and each.status() != "zombie" for each in processes] == [True]
        stored = [each.content for each in await memory.history(user_id="ann", session_id="s", limit=100)]
    assert stored == ["I live in Oslo.", *texts]


async def _refused_for_a_while(processes: Sequence[psutil.Process], folder: Path) -> None:
    """Until a worker has met the refusal several times, or has ended (which the test then finds)."""

    def met() -> bool:
        logs = "".join(path.read_text(errors="replace") for path in folder.glob("worker-*.log"))
        ended = any(not each.is_running() or each.status() == "zombie" for each in processes)
        return ended or logs.count("\n") >= 6

    with suppress(AssertionError):  # some refusals are met by the agent alone
        await wait_until(met, description="the workers have met the refusal")
