"""The Redis users: an agent remembers and recalls, a worker works, Flower looks, and Redis has denied nothing of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from aftermind import Memory, Settings
from aftermind.cli.redis_acl import apply_to
from aftermind.wire import acl, queues
from tests.support.servers import Database
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

PREFIX = "ours:"
PASSWORDS = {name: f"secret of {name}".replace(" ", "-") for name in ("agent", "worker", "flower")}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Valkey]:
    """A server of its own, with the three users and nobody else but its admin."""
    with running_valkey() as server:
        asyncio.run(apply_to(server.url, {user: PASSWORDS[name] for name, user in acl.users(PREFIX).items()}))
        yield server


def url_of(server: Valkey, name: str) -> str:
    return f"redis://aftermind-{name}:{PASSWORDS[name]}@127.0.0.1:{server.port}/0"


def client_of(server: Valkey, name: str) -> redis.Redis:
    return redis.Redis.from_url(url_of(server, name), decode_responses=True)


def denied(server: Valkey) -> list[str]:
    with server.client() as admin:
        return [f"{each['username']}: {each['reason']} {each['object']}" for each in admin.acl_log()]


async def test_each_does_its_work_and_nothing_of_it_is_denied(
    guarded: Valkey, database: Database, tmp_path: Path
) -> None:
    settings = Settings(redis_prefix=PREFIX, state_dir=tmp_path, allow_owner=False, embedder="hash")  # type: ignore[call-arg]
    env = environment(
        database.relay_url,
        url_of(guarded, "worker"),
        AFTERMIND_REDIS_PREFIX=PREFIX,
        AFTERMIND_ALLOW_OWNER="false",
        AFTERMIND_EXTRACT_QUIET_SECONDS="0.2",
        AFTERMIND_RECONCILE_SECONDS="0.5",
    )
    heard: list[object] = []
    async with Memory(database.app_url, broker=url_of(guarded, "agent"), settings=settings) as memory:
        with workers(env, tmp_path, on=",".join(queues.QUEUES)) as (worker,):
            following = asyncio.create_task(_follow(memory, heard))
            receipt = await memory.remember("I live in Oslo.", user_id="alice", session_id="s")
            await receipt.stored(timeout=30)
            await receipt.extracted(timeout=30)
            block = await memory.recall("Where do I live?", user_id="alice")
            await wait_until(lambda: bool(heard), description="the agent has heard of it")
            flower = client_of(guarded, "flower")
            length = flower.llen(f"{PREFIX}{queues.STORE}")
            await memory.forget(user_id="alice")
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            flower.close()
            assert worker.is_running()

    assert "Oslo" in block.text
    assert length == 0
    assert denied(guarded) == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("agent", ("KEYS", "*")),
        ("agent", ("FLUSHALL",)),
        ("agent", ("CONFIG", "GET", "*")),
        ("agent", ("BRPOP", f"{PREFIX}{queues.STORE}", "0.01")),
        ("agent", ("LRANGE", f"{PREFIX}{queues.STORE}", "0", "-1")),
        ("agent", ("PUBLISH", f"{PREFIX}/0.celery.pidbox", "shutdown")),
        ("agent", ("SET", f"{PREFIX}epoch", "mine")),
        ("agent", ("GET", "somebody:elses")),
        ("worker", ("FLUSHALL",)),
        ("worker", ("KEYS", "*")),
        ("worker", ("SHUTDOWN",)),
        ("worker", ("GET", "somebody:elses")),
        ("flower", ("LPUSH", f"{PREFIX}{queues.STORE}", "a task")),
        ("flower", ("HGETALL", f"{PREFIX}turn:1")),
        ("flower", ("GET", f"{PREFIX}question:1")),
    ],
)
def test_what_is_not_its_work_is_refused(guarded: Valkey, name: str, command: tuple[str, ...]) -> None:
    with client_of(guarded, name) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)  # type: ignore[no-untyped-call]
    with guarded.client() as admin:
        admin.acl_log_reset()


async def _follow(memory: Memory, heard: list[object]) -> None:
    async for event in memory.events(user_id="alice"):
        heard.append(event)  # noqa: PERF401  # one by one: there is no end
