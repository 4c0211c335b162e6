"""The Redis users: each process does its work under its own, Redis denies nothing of it, and all else is refused."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.cli import make_app_for
from aftermind.cli.redis_acl import apply_to
from aftermind.stack import binaries, ports
from aftermind.wire import queues
from aftermind.wire.redis import acl, script
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.fork_server import end, start_module
from tests.support.servers import Database
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until, wait_until_sync
from tests.support.workers import environment, workers

PREFIX = "ours:"
ROLES = ("agent", "web", "worker", "reconciler", "flower", "operator")
PASSWORDS = {name: f"secret of {name}".replace(" ", "-") for name in (*ROLES, "agent-acme")}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Valkey]:
    """A server of its own, with our users and nobody else but its admin."""
    with running_valkey() as server:
        made = [(user, PASSWORDS[name]) for name, user in acl.users(PREFIX).items()]
        made.append((acl.users(PREFIX, namespace="acme")["agent"], PASSWORDS["agent-acme"]))
        asyncio.run(apply_to(server.url, made, Keys(PREFIX)))
        yield server


def url_of(server: Valkey, name: str) -> str:
    return f"redis://aftermind-{name}:{PASSWORDS[name]}@127.0.0.1:{server.port}/0"


def client_of(server: Valkey, name: str) -> redis.Redis:
    return redis.Redis.from_url(url_of(server, name), decode_responses=True)


def denied(server: Valkey) -> list[str]:
    with server.client() as admin:
        return [f"{each['username']}: {each['reason']} {each['object']}" for each in admin.acl_log()]


@pytest.mark.parametrize("name", ["agent", "agent-acme", "web"])
async def test_each_does_its_work_and_nothing_of_it_is_denied(
    guarded: Valkey, database: Database, tmp_path: Path, name: str
) -> None:
    settings = Settings(redis_prefix=PREFIX, namespace="acme", state_dir=tmp_path / "agent", embedder="hash")
    more = {
        "AFTERMIND_REDIS_PREFIX": PREFIX,
        "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2",
        "AFTERMIND_RECONCILE_SECONDS": "0.5",
        "AFTERMIND_HOUSEKEEPING_SECONDS": "0.5",
        "AFTERMIND_STATE_DIR": str(tmp_path),
    }
    env = environment(database.relay_url, url_of(guarded, "worker"), **more)
    rings = environment(database.relay_url, url_of(guarded, "reconciler"), **more)
    heard: list[object] = []
    async with Memory(database.app_url, broker=url_of(guarded, name), settings=settings) as memory:
        with workers(env, tmp_path, on=",".join(queues.QUEUES)) as (worker,), _reconciler(rings, tmp_path) as helper:
            following = asyncio.create_task(_follow(memory, heard))
            receipt = await memory.remember("I live in Oslo.", user_id="alice", session_id="s")
            try:
                await receipt.stored(timeout=180)
            except errors.ReceiptTimeout:
                assert denied(guarded) == []
                raise
            await receipt.extracted(timeout=180)
            late = await memory.remember("I like tea.", user_id="alice", session_id="s", accept="postgres")
            await late.stored(timeout=180)
            block = await memory.recall("Where do I live?", user_id="alice")
            await memory.blocks.set("human", "Alice.", user_id="alice")
            await wait_until(lambda: bool(heard), description="the agent has heard of it")
            with client_of(guarded, "flower") as flower:
                length = flower.llen(f"{PREFIX}{queues.STORE}")
            await memory.forget(user_id="alice")
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            assert worker.is_running()
            assert helper.is_running()

    assert "Oslo" in block.text
    assert length == 0
    assert denied(guarded) == []


REFUSED = [
    *(
        (name, command)
        for name in ("agent", "agent-acme", "web", "flower", "reconciler", "worker", "operator")
        for command in (("FLUSHALL",), ("SHUTDOWN",), ("CONFIG", "SET", "appendonly", "no"), ("KEYS", "*"))
    ),
    ("agent", ("EVAL", "while true do end", "0")),
    ("agent", ("SCRIPT", "LOAD", "return 1")),
    ("agent", ("FUNCTION", "LOAD", "#!lua name=mine\nredis.register_function('mine', function() end)")),
    ("agent", ("SCAN", "0")),
    ("agent", ("ZRANGE", f"{PREFIX}index", "0", "-1")),
    ("agent", ("ZRANGE", f"{PREFIX}rounds", "0", "-1")),
    ("agent", ("ZRANGE", f"{PREFIX}rounds:acme", "0", "-1")),
    ("agent", ("DEL", f"{PREFIX}index")),
    ("agent", ("DEL", f"{PREFIX}audit")),
    ("agent", ("HDEL", f"{PREFIX}audit", "default/1")),
    ("agent", ("HSET", f"{PREFIX}audit", "default/1", "00")),
    ("agent", ("BRPOP", f"{PREFIX}{queues.STORE}", "0.01")),
    ("agent", ("LRANGE", f"{PREFIX}{queues.STORE}", "0", "-1")),
    ("agent", ("PUBLISH", f"{PREFIX}events:acme/alice", "{}")),
    ("agent", ("PUBLISH", f"{PREFIX}/0.celery.pidbox", "shutdown")),
    ("agent", ("SET", f"{PREFIX}epoch", "mine")),
    ("agent", ("GET", "somebody:elses")),
    ("agent-acme", ("ZREVRANGE", f"{PREFIX}pending:other/alice", "0", "-1")),
    ("agent-acme", ("SET", f"{PREFIX}watermark:other/alice", "1/1/1")),
    ("agent-acme", ("SUBSCRIBE", f"{PREFIX}events:other/alice")),
    ("web", ("EVAL", "return 1", "0")),
    ("web", ("HDEL", f"{PREFIX}audit", "default/1")),
    ("worker", ("EVAL", "while true do end", "0")),
    ("worker", ("GET", "somebody:elses")),
    ("reconciler", ("BRPOP", f"{PREFIX}{queues.STORE}", "0.01")),
    ("reconciler", ("EVAL", "return 1", "0")),
    ("flower", ("LPUSH", f"{PREFIX}{queues.STORE}", "a task")),
    ("flower", ("HGETALL", f"{PREFIX}turn:1")),
    ("flower", ("GET", f"{PREFIX}question:1")),
    ("flower", ("EVAL", "while true do end", "0")),
    ("operator", ("ACL", "SETUSER", "mallory", "on")),
    ("operator", ("GET", "somebody:elses")),
]


@pytest.mark.parametrize(("name", "command"), REFUSED)
def test_what_is_not_its_work_is_refused(guarded: Valkey, name: str, command: tuple[str, ...]) -> None:
    with client_of(guarded, name) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)  # type: ignore[no-untyped-call]
    with guarded.client() as admin:
        admin.acl_log_reset()


async def test_accepted_turns_outlive_a_restart_of_redis_under_the_users_of_a_deployment(
    database: Database, tmp_path: Path
) -> None:
    [port] = ports.choose(1)
    made = CliRunner().invoke(make_app_for(["secrets"]), ["secrets", str(tmp_path / "made")])
    assert made.exit_code == 0, made.output
    words = {role: (tmp_path / "made" / f"redis_{role}_password").read_text() for role in ("agent", "worker")}
    url_as = {role: f"redis://aftermind-{role}:{word}@127.0.0.1:{port}/0" for role, word in words.items()}
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(tmp_path)]
    command = [str(binaries.redis_server()), "--port", str(port), "--bind", "127.0.0.1", *durable]
    command += ["--aclfile", str(tmp_path / "made" / "redis_users.acl")]
    settings = Settings(state_dir=tmp_path / "agent", embedder="hash")

    with served(command, port):
        link = RedisLink(url_as["worker"], timeout=5.0)
        await script.load(link, Keys(settings.redis_prefix))
        await link.close()
        async with Memory(database.app_url, broker=url_as["agent"], redis=url_as["agent"], settings=settings) as memory:
            receipts = [await memory.remember(f"turn {number}", user_id="ann") for number in range(3)]
    with served(command, port):
        async with Memory(database.app_url, broker=url_as["agent"], redis=url_as["agent"], settings=settings) as memory:
            waiting = await memory.history(user_id="ann")

    assert not any(each.spooled for each in receipts)
    assert [each.content for each in waiting if each.pending] == ["turn 0", "turn 1", "turn 2"]


@contextmanager
def served(command: list[str], port: int) -> Iterator[None]:
    """A server that answers its health check, and is stopped in order."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until_sync(lambda: is_healthy(port), description="Redis answers")
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_healthy(port: int) -> bool:
    with suppress(redis.ConnectionError), redis.Redis(port=port, username="health", password="health") as client:
        return bool(client.ping())
    return False


def test_a_function_grants_nothing_that_its_caller_may_not_do(guarded: Valkey) -> None:
    """Were it otherwise, an agent could take turns from workers by the function that claims them."""
    claim = script.library(Keys(PREFIX)).function("pending_claim")
    refused = pytest.raises(redis.exceptions.ResponseError, match=r"(?i)acl|perm|can't run this command")
    with client_of(guarded, "agent") as client, refused:
        client.execute_command("FCALL", claim, 0, "t", "w", 1, 1, 1, 1, 0, 0, 0)  # type: ignore[no-untyped-call]
    with guarded.client() as admin:
        admin.acl_log_reset()


async def _follow(memory: Memory, heard: list[object]) -> None:
    async for event in memory.events(user_id="alice"):
        heard.append(event)  # noqa: PERF401  # one by one: there is no end


class _reconciler:  # used as a function
    """A reconciler process for the block."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env, self._log = {**os.environ, **env}, folder / "reconciler.log"

    def __enter__(self) -> psutil.Process:
        with self._log.open("wb") as out:
            self._process = start_module(["aftermind_workers.reconciler"], env=self._env, output=out)
        return self._process

    def __exit__(self, *_: object) -> None:
        end([self._process], timeout=30)
