"""A pair of copies taken as docs/guides/backup.md says, restored: nothing that was accepted before them is lost."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from aftermind import Memory
from aftermind.stack import binaries
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.long


def copy_redis(servers: Servers, to: Path) -> None:
    """The append-only file, with no rewrite meanwhile."""
    with redis.Redis.from_url(servers.endpoints.redis_url) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
        shutil.copytree(servers.stack.logs.parent / "redis" / "appendonlydir", to)
        client.config_set("auto-aof-rewrite-percentage", 100)


def copy_postgres(servers: Servers, to: Path) -> None:
    """The whole cluster, while it runs."""
    argv = [str(binaries.postgres_bin() / "pg_basebackup"), "-d", servers.endpoints.admin_url, "-D", str(to)]
    subprocess.run([*argv, "-X", "stream", "-c", "fast"], check=True, capture_output=True, timeout=180)


def restore(servers: Servers, *, postgres: Path, redis_folder: Path) -> None:
    """Both copies in the place of what was there, Postgres first, then Redis."""
    state = servers.stack.logs.parent
    owner = state.joinpath("postgres").stat()
    servers.stack.down()
    for here, copy in ((state / "postgres", postgres), (state / "redis" / "appendonlydir", redis_folder)):
        kept = [(path, path.read_bytes()) for path in here.glob("*.conf")]
        shutil.rmtree(here)
        shutil.copytree(copy, here)
        for path, text in kept:
            path.write_bytes(text)
        for path in (here, *here.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
    state.joinpath("postgres").chmod(0o700)
    servers.stack.up()


async def test_a_restored_pair_has_every_turn_that_was_accepted_before_it_was_taken(
    own_servers: Callable[..., Servers], tmp_path: Path
) -> None:
    servers = await asyncio.to_thread(own_servers, replica=False)
    at = servers.endpoints
    env = environment(at.relay_url, at.redis_url, AFTERMIND_RECONCILE_SECONDS="0.5")

    def pending() -> int:
        with redis.Redis.from_url(at.redis_url) as client:
            return int(client.zcard(Keys().index()))

    async with Memory(at.app_url, broker=at.redis_url) as memory:
        await memory.remember("Stored before both copies.", user_id="ann")
        with workers(env, tmp_path):
            await wait_until(lambda: pending() == 0, description="the first turn is stored")
        await memory.remember("Pending when Redis was copied, stored when Postgres was.", user_id="ann")
        await asyncio.to_thread(copy_redis, servers, tmp_path / "redis")
        with workers(env, tmp_path):
            await wait_until(lambda: pending() == 0, description="the second turn is stored")
        await memory.remember("Accepted and stored between the copies.", user_id="ann")
        with workers(env, tmp_path):
            await wait_until(lambda: pending() == 0, description="the third turn is stored")
        await asyncio.to_thread(copy_postgres, servers, tmp_path / "postgres")
        await memory.remember("After both.", user_id="ann")

    await asyncio.to_thread(restore, servers, postgres=tmp_path / "postgres", redis_folder=tmp_path / "redis")

    async with Memory(at.app_url, broker=at.redis_url) as memory:
        with workers(env, tmp_path):
            await wait_until(lambda: pending() == 0, description="what the copy of Redis held is stored")
        said = [episode.content for episode in await memory.history(user_id="ann")]
        assert said == [
            "Stored before both copies.",
            "Pending when Redis was copied, stored when Postgres was.",
            "Accepted and stored between the copies.",
        ]
        await (await memory.remember("Life goes on.", user_id="ann", accept="postgres")).status()
        assert len(await memory.history(user_id="ann")) == 4
