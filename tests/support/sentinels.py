"""Three Redis nodes and three sentinels, as `sentinel://` needs them."""

import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import redis

from aftermind.stack import binaries
from aftermind.stack.ports import choose
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until_sync

SERVICE = "memories"
# A primary without a replica takes no turn: an old one that is cut off would otherwise lose what it takes.
OPTIONS = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "5", "--repl-diskless-sync-delay", "0")


class Sentinels:
    """Nodes and sentinels on free ports; `url` names the sentinels."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.password = secrets.token_hex(8)  # of each node
        self.nodes = [self._node(number) for number in range(3)]
        self._ports = choose(3)
        self._processes: list[subprocess.Popen[bytes]] = []

    def url(self, service: str = SERVICE) -> str:
        """As `AFTERMIND_REDIS_URL` and `AFTERMIND_BROKER_URL`."""
        places = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"sentinel://:{self.password}@{places}/{service}"

    def start(self) -> None:
        """Bring everything up; the sentinels know each other and both replicas then."""
        primary = self.nodes[0]
        primary.start()
        for node in self.nodes[1:]:
            node.start("--replicaof", "127.0.0.1", str(primary.port))
        for port in self._ports:
            self._processes.append(self._sentinel(port))
        wait_until_sync(lambda: all(map(self._is_complete, self._ports)), description="the sentinels know all nodes")

    def primary(self) -> Valkey:
        """The node that the first sentinel names."""
        with redis.Redis(port=self._ports[0]) as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(node for node in self.nodes if node.port == int(port))

    def wait_for_failover(self, old: Valkey) -> None:
        """Until the sentinels have made another node the primary."""
        wait_until_sync(lambda: self.primary() is not old, description="another node is the primary")

    def end(self) -> None:
        """Kill everything."""
        for process in self._processes:
            process.kill()
            process.wait()
        for node in self.nodes:
            node.kill()

    def _node(self, number: int) -> Valkey:
        folder = self._folder / f"node-{number}"
        folder.mkdir()
        node = Valkey(folder, *OPTIONS, "--masterauth", self.password)
        node.password = self.password
        return node

    def _sentinel(self, port: int) -> "subprocess.Popen[bytes]":
        config = self._folder / f"sentinel-{port}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.nodes[0].port} 2\n"
            f"sentinel auth-pass {SERVICE} {self.password}\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 3000\n"
        )
        argv = [str(binaries.redis_server()), str(config), "--sentinel"]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _is_complete(self, port: int) -> bool:
        try:
            with redis.Redis(port=port) as client:
                state = client.sentinel_master(SERVICE)
                replicas = client.sentinel_slaves(SERVICE)
        except redis.RedisError:
            return False
        is_healthy = all(each["master-link-status"] == "ok" for each in replicas)
        return state["num-other-sentinels"] == 2 and len(replicas) == 2 and is_healthy


@contextmanager
def running_sentinels() -> Iterator[Sentinels]:
    """Nodes and sentinels for the block."""
    folder = Path(tempfile.mkdtemp(prefix="aftermind-sentinels-"))
    running = Sentinels(folder)
    try:
        running.start()
        yield running
    finally:
        running.end()
        rmtree(folder, ignore_errors=True)
