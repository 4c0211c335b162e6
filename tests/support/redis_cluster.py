"""A Redis Cluster on free ports: three primaries, of which each may have a replica."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import quote

import redis

from aftermind.stack.ports import choose
from aftermind.types import Scope
from aftermind.wire.redis_keys import SLOTS, shard_number, slot
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until_sync

PRIMARIES = 3
OPTIONS = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"),
    *("--repl-diskless-sync-delay", "0"),
)


class RedisCluster:
    """Primaries, each with a third of the slots, and their replicas; all with one password."""

    def __init__(self, folder: Path, *, replicas: bool) -> None:
        self._folder, self._bus_ports = folder, dict[int, int]()  # by port of the node
        self.password = secrets.token_hex(8)
        self.primaries = [self._node() for _ in range(PRIMARIES)]
        self.replicas = [self._node() for _ in self.primaries] if replicas else []

    @property
    def url(self) -> str:
        """As `AFTERMIND_REDIS_URL`."""
        return self.url_of("", self.password)

    def url_of(self, user: str, password: str) -> str:
        """The same for another user."""
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)
        return f"redis+cluster://{user}:{quote(password)}@{places}"

    def start(self) -> None:
        """Bring everything up; every slot is served then."""
        for node in (*self.primaries, *self.replicas):
            node.start()
        for number, node in enumerate(self.primaries):
            first, last = SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES - 1
            _run(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in (*self.primaries[1:], *self.replicas):
            first_port = self.primaries[0].port
            _run(node, "CLUSTER", "MEET", "127.0.0.1", first_port, self._bus_ports[first_port])
        self.wait_until_whole()
        for node, replica in zip(self.primaries, self.replicas, strict=False):
            _run(replica, "CLUSTER", "REPLICATE", _run(node, "CLUSTER", "MYID").decode())
        for replica in self.replicas:
            with replica.client() as client:
                wait_until_sync(
                    lambda client=client: client.info("replication").get("master_link_status") == "up",  # type: ignore[misc]
                    description="the replica follows its primary",
                )

    def empty(self) -> None:
        """Delete every key."""
        for node in self.primaries:
            _run(node, "FLUSHALL")

    def wait_until_whole(self) -> None:
        """Until each node that runs knows a primary of every slot, and all nodes."""
        count = len(self.primaries) + len(self.replicas)

        def is_whole(node: Valkey) -> bool:
            state = _run(node, "CLUSTER", "INFO").decode()
            wanted = ("cluster_state:ok", f"cluster_slots_ok:{SLOTS}", f"cluster_known_nodes:{count}")
            return all(each in state for each in wanted)

        nodes = (*self.primaries, *self.replicas)
        wait_until_sync(lambda: all(map(is_whole, nodes)), description="the cluster is whole")

    def wait_for_failover(self, replica: Valkey) -> None:
        """Until the replica is a primary."""
        wait_until_sync(lambda: _run(replica, "ROLE")[0] == b"master", description="the replica is a primary")

    @contextmanager
    def moving(self, shard: int) -> Iterator[None]:
        """A shard's slot is on its way to another node within the block, as `--cluster reshard` moves it."""
        moved, old = slot(shard), self._node_of(slot(shard))
        new = next(node for node in self.primaries if node is not old)
        ids = {node: _run(node, "CLUSTER", "MYID").decode() for node in (old, new)}
        _run(new, "CLUSTER", "SETSLOT", moved, "IMPORTING", ids[old])
        _run(old, "CLUSTER", "SETSLOT", moved, "MIGRATING", ids[new])
        yield
        with old.client() as client:
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", moved, 1_000)
        target = ("127.0.0.1", new.port, "", 0, 20_000, "AUTH", self.password, "KEYS")
        if keys:
            _run(old, "MIGRATE", *target, *keys)
        for node in sorted(self.primaries, key=lambda node: node is not new):
            _run(node, "CLUSTER", "SETSLOT", moved, "NODE", ids[new])

    def primary_of(self, owner: Scope) -> Valkey:
        """The node that has the owner's shard."""
        return self._node_of(slot(shard_number(owner)))

    def end(self) -> None:
        """Kill everything."""
        for node in (*self.primaries, *self.replicas):
            node.kill()

    def _node_of(self, number: int) -> Valkey:
        ranges: Any = _run(self.primaries[1], "CLUSTER", "SLOTS")  # Any: Redis's answer
        port = next(place[1] for first, last, place, *_ in ranges if first <= number <= last)
        return next(node for node in (*self.primaries, *self.replicas) if node.port == port)

    def _node(self) -> Valkey:
        folder, bus_port = self._folder / f"node-{len(self._bus_ports)}", choose(1)[0]
        folder.mkdir()
        node = Valkey(folder, *OPTIONS, "--cluster-port", str(bus_port), "--masterauth", self.password)
        node.password, self._bus_ports[node.port] = self.password, bus_port
        return node


@contextmanager
def running_redis_cluster(*, replicas: bool = False) -> Iterator[RedisCluster]:
    """A cluster for the block."""
    folder = Path(tempfile.mkdtemp(prefix="aftermind-redis-cluster-"))
    running = RedisCluster(folder, replicas=replicas)
    try:
        running.start()
        yield running
    finally:
        running.end()
        rmtree(folder, ignore_errors=True)


def _run(node: Valkey, *command: object) -> Any:  # Any: Redis's answer
    with redis.Redis(port=node.port, password=node.password) as client:
        client.response_callbacks.clear()
        return client.execute_command(*command)
