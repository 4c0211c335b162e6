"""A primary and a streaming replica without a supervisor: to kill, promote and bring back."""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from urllib.parse import urlsplit, urlunsplit

from aftermind.errors import StackError
from aftermind.stack import binaries, run_without_root
from aftermind.stack.component_types import Endpoints
from aftermind.stack.ports import choose
from aftermind.stack.postgres import Cluster, Primary
from aftermind.stack.replica import ReplicaServer
from aftermind.stack.saved_settings import StackConfig
from aftermind.stack.state_dir import StateFolder
from aftermind.stack.supervised_program_protocol import Launch
from tests.support import faults
from tests.support.servers import FAST, migrate, psql_async
from tests.support.waiting import wait_until

SYNCHRONOUS: Mapping[str, str] = {**FAST, "synchronous_standby_names": "ANY 1 (*)"}


class PostgresPair:
    """Two nodes, each with the roles and the migrated database of the embedded stack."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        primary, replica, redis = choose(3)
        config = StackConfig(postgres_port=primary, replica_port=replica, redis_port=redis)
        self._folder, programs = StateFolder(folder), binaries.postgres_bin()
        self._folder.create()
        identity = run_without_root.for_postgres(programs / "postgres", data=self._folder.primary)
        self._settings = settings
        self._primary = Primary(
            self._folder,
            config,
            programs=programs,
            identity=identity,
            settings=FAST,  # synchronous replication only once there is a replica
            replica=True,
            adopting=False,
        )
        self._replica = ReplicaServer(self._folder, config, programs=programs, identity=identity, settings=FAST)
        self.endpoints: Endpoints = config.endpoints(replica=True)
        self._hosts = f"127.0.0.1:{primary},127.0.0.1:{replica}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def url(self, one: str) -> str:
        """A URL of one node as a URL of both."""
        login, _, _ = urlsplit(one).netloc.rpartition("@")
        return urlunsplit(urlsplit(one)._replace(netloc=f"{login}@{self._hosts}"))

    async def start(self) -> None:
        """Bring both up, and migrate; commits wait for the replica from then on if the settings say so."""
        await self._start(self._primary, await self._primary.prepare())
        await self._primary.on_ready()
        await asyncio.to_thread(migrate, self.endpoints.postgres_url)
        await self._start(self._replica, await self._replica.prepare())
        for name in self._settings.keys() - FAST.keys():
            wanted = f"ALTER SYSTEM SET {name} = '{self._settings[name]}'"
            await psql_async(self.endpoints.admin_url, wanted, "SELECT pg_reload_conf()")

    async def kill_primary(self) -> None:
        """kill -9 of the primary with all its backends; its data stay."""
        await asyncio.to_thread(self._kill, self._primary.name)

    async def kill_replica(self) -> None:
        """kill -9 of the other one, also once it is promoted."""
        await asyncio.to_thread(self._kill, self._replica.name)

    async def promote_replica(self) -> None:
        """Make the replica a primary; returns once it takes writes."""
        await psql_async(self.endpoints.replica_admin_urls[0], "SELECT pg_promote()")

    async def return_old_primary(self) -> None:
        """Start the killed primary again over its old data, as a primary."""
        await self._start(self._primary, await self._primary.prepare())

    def back_up_primary(self) -> None:
        """Copy the data of the killed primary."""
        subprocess.run(["cp", "-a", str(self._folder.primary), str(self._backup)], check=True)

    async def restore_primary(self) -> None:
        """Start the killed primary over the copy of its data."""
        await asyncio.to_thread(rmtree, self._folder.primary)
        self._backup.rename(self._folder.primary)
        await self.return_old_primary()

    @property
    def _backup(self) -> Path:
        return self._folder.root / "backup"

    def freeze_replica(self) -> None:
        """SIGSTOP of the replica: connected, and silent."""
        faults.freeze(self._running[self._replica.name].pid)

    def thaw_replica(self) -> None:
        """SIGCONT of the replica."""
        faults.thaw(self._running[self._replica.name].pid)

    async def _start(self, cluster: Cluster, launch: Launch) -> None:
        started = _spawn(launch, self._folder.log(cluster.name))
        self._running[cluster.name] = started

        async def is_up() -> bool:
            assert started.poll() is None, self._folder.log(cluster.name).read_text()[-2_000:]
            try:
                return await cluster.probe() is None
            except StackError:
                return False

        await wait_until(is_up, description=f"{cluster.name} answers")

    def _kill(self, name: str) -> None:
        process = self._running.pop(name)
        faults.thaw(process.pid)
        faults.kill_tree(process.pid)
        process.wait()

    def end(self) -> None:
        """Kill whatever runs, and remove the data."""
        for name in list(self._running):
            self._kill(name)
        rmtree(self._folder.root, ignore_errors=True)


def _spawn(launch: Launch, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen(launch.argv, env=dict(launch.env), cwd=launch.cwd, stdout=out, stderr=out)


@asynccontextmanager
async def running_pair(settings: Mapping[str, str] = SYNCHRONOUS) -> AsyncIterator[PostgresPair]:
    """A pair for the block, in a folder of its own."""
    pair = PostgresPair(Path(tempfile.mkdtemp(prefix="aftermind-pair-")), settings)
    try:
        await pair.start()
        yield pair
    finally:
        await asyncio.to_thread(pair.end)
