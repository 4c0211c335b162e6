"""Postgres, its replica and Redis of a run, and the ways to hurt them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from aftermind.stack import Stack
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from benchmarks.harness import messages as harness_messages
from benchmarks.harness.history import now
from tests.support import faults
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import Database, Servers, psql
from tests.support.waiting import wait_until

_RUNNING = "SELECT count(*) FROM aftermind.jobs WHERE state = 'running' AND worker LIKE $1"
BACK = 30.0  # seconds within which the supervisor has a killed server up again; it takes one or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What one leg runs on: its own database, an emptied Redis, and two doors to it that can be shut."""

    servers: Servers
    database: Database
    agents_door: Proxy
    workers_door: Proxy
    folder: Path

    @property
    def redis_url(self) -> str:
        """Redis itself, past the doors: for looking, not for taking part."""
        return self.servers.redis_url

    def settings(self, door: Proxy) -> Mapping[str, str]:
        """Where things are, as environment of a process that reaches Redis by one of the doors."""
        url = door.url(self.servers.redis_url)
        replicas = ",".join(f'"{each}"' for each in self.database.app_replica_urls)
        return {
            "AFTERMIND_DATABASE_URL": self.database.app_url,
            "AFTERMIND_RELAY_URL": self.database.relay_url,
            "AFTERMIND_REPLICA_URLS": f"[{replicas}]",
            "AFTERMIND_BROKER_URL": url,
            "AFTERMIND_REDIS_URL": url,
            "AFTERMIND_STATE_DIR": str(self.folder / "state"),
        }

    async def waiting_pops(self) -> int:
        """How many workers' connections wait in a blocking pop right now; none while Redis is away."""
        with suppress(RedisError, OSError):
            async with aioredis.Redis.from_url(self.redis_url, socket_timeout=2) as client:
                return sum("b" in each["flags"] and each["cmd"] == "brpop" for each in await client.client_list())
        return 0

    async def running_jobs(self, pid: int) -> int:
        """How many jobs of the ledger a worker's process has claimed and not ended; none while Postgres is away."""
        with suppress(asyncpg.PostgresError, OSError, TimeoutError):
            connection = await asyncpg.connect(self.database.url, timeout=2)
            try:
                return int(await connection.fetchval(_RUNNING, f"%:{pid}"))
            finally:
                await connection.close()
        return 0

    async def push_garbage(self, messages: Sequence[bytes]) -> None:
        """Push these to every queue of the workers, as an agent's own Redis user could."""
        with suppress(RedisError, OSError):
            async with aioredis.Redis.from_url(self.redis_url, socket_timeout=2) as client:
                for name in queues.QUEUES:
                    await client.lpush(Keys().queue(name), *messages)

    def damage_spool(self) -> set[str]:
        """Flip one bit in the oldest record of a spool file that has several; the marker of the turn that it held."""
        for path in sorted((self.folder / "state" / "spool").rglob("*.spool")):
            with suppress(FileNotFoundError):
                data = path.read_bytes()
                markers = harness_messages.markers_in(data.decode("utf-8", "replace"))
                if len(set(markers)) < 3:
                    continue
                with path.open("r+b") as file:
                    file.seek(data.index(markers[0].encode()))
                    first = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([first[0] ^ 1]))
                return {markers[0]}
        return set()

    async def kill_redis(self) -> None:
        """kill -9; the supervisor starts it again from its append-only file."""
        await self._killed("redis", signal.SIGKILL)

    async def wipe_redis(self) -> None:
        """Empty it, and kill it so that it comes back as another life with nothing in it."""
        patient = Retry(ConstantBackoff(0.1), retries=100)  # one that was killed before may still be loading
        async with aioredis.Redis.from_url(self.redis_url, retry=patient) as client:
            await client.flushall()
        await self.kill_redis()

    async def freeze_redis(self, seconds: float) -> None:
        """SIGSTOP: connections stand, nothing answers."""
        with faults.frozen(self.servers.pid("redis")):
            await asyncio.sleep(seconds)

    async def restart_postgres(self) -> None:
        """An immediate shutdown, as a crash is: recovery replays the log."""
        await self._killed("postgres", signal.SIGQUIT)

    async def restart_replica(self) -> None:
        """The same for the replica."""
        await self._killed("postgres-replica", signal.SIGQUIT)

    async def pause_replica(self, seconds: float) -> None:
        """It takes the log and does not replay it: alive, and behind."""
        url = self.database.replica_admin_urls[0]
        await asyncio.to_thread(psql, url, "SELECT pg_wal_replay_pause()")
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(psql, url, "SELECT pg_wal_replay_resume()")

    @asynccontextmanager
    async def late_replica(self, seconds: float) -> AsyncIterator[None]:
        """Within the block the replica replays each commit so much later than it received it."""
        if not seconds:
            yield
            return
        url = self.database.replica_admin_urls[0]
        reload = "SELECT pg_reload_conf()"
        late = f"ALTER SYSTEM SET recovery_min_apply_delay = '{seconds * 1000:.0f}ms'"
        await asyncio.to_thread(psql, url, late, reload)
        try:
            yield
        finally:
            await asyncio.to_thread(psql, url, "ALTER SYSTEM RESET recovery_min_apply_delay", reload)

    async def _killed(self, component: str, number: signal.Signals) -> None:
        before = self.servers.pid(component)
        os.kill(before, number)

        def is_back() -> bool:
            found = next(each for each in self.servers.stack.status() if each.name == component)
            return found.state == "running" and found.pid not in (None, before)

        await wait_until(is_back, timeout=BACK, description=f"{component} is back")


@asynccontextmanager
async def site(servers: Servers, folder: Path) -> AsyncIterator[Site]:
    """A site for one leg: the servers are shared with the next, nothing in them is."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    database = await asyncio.to_thread(servers.create_database)
    await asyncio.to_thread(servers.empty_redis)
    try:
        async with proxy_to(servers.redis_url) as agents, proxy_to(servers.redis_url) as workers:
            yield Site(servers=servers, database=database, agents_door=agents, workers_door=workers, folder=folder)
    finally:
        await asyncio.to_thread(servers.drop_database, database)


# No power is cut here: what a killed process had written is with the kernel, synced or not. What differs is how long a
# killed Postgres takes to come back, because before its recovery it syncs every file that it has.
NO_POWER_IS_CUT = {"fsync": "off"}


def up(folder: Path) -> Servers:
    """The embedded stack, in a folder of the run's own, with a migrated template to copy from."""
    stack = Stack(folder, postgres_settings=NO_POWER_IS_CUT)
    servers = Servers(stack, stack.up())
    servers.make_template()
    return servers


@asynccontextmanager
async def shut(door: Proxy, seconds: float) -> AsyncIterator[float]:
    """A door that swallows everything for a while; yields when it was shut."""
    began = now()
    door.blackhole()
    try:
        await asyncio.sleep(seconds)
        yield began
    finally:
        door.reset()  # what hangs in a swallowed connection is not coming back: a network that heals resets it
        door.let_pass()
