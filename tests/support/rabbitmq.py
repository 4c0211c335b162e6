"""RabbitMQ nodes of one test session, where the machine has it installed (Debian: rabbitmq-server)."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from aftermind.stack.ports import choose
from tests.support.waiting import wait_until_sync

# The distribution's own script first: what lies in PATH may be a wrapper that changes the user.
PLACES = (
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/opt/homebrew/sbin/rabbitmq-server",
    "/usr/local/sbin/rabbitmq-server",
)
START_SECONDS = 180.0  # an Erlang node takes 5 s here
COOKIE = "aftermind"  # nodes of a cluster share it


@dataclass(slots=True)
class Node:
    """One node: its folder, its ports and its process."""

    folder: Path
    mapper_port: int
    port: int
    distribution: int
    cluster: str = ""  # lines of its configuration
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def name(self) -> str:
        """Of the Erlang node."""
        return f"aftermind-{self.port}@localhost"

    @property
    def url(self) -> str:
        """As Celery takes it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self, server: str) -> None:
        """Begin to start it."""
        self.folder.mkdir(exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(COOKIE)
            cookie.chmod(0o400)
        (self.folder / "rabbitmq.conf").write_text(self.cluster)
        with (self.folder / "out.log").open("wb") as log:
            self.process = subprocess.Popen(
                [server], env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Until it takes connections."""
        log = self.folder / "out.log"
        wait_until_sync(
            lambda: "Starting broker... completed" in log.read_text(errors="replace"),
            timeout=START_SECONDS,
            description=f"{self.name} is up",
        )

    def kill(self) -> None:
        """kill -9 of the node and its helpers."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def environment(self) -> dict[str, str]:
        """Of its process and of its tools."""
        own = {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.mapper_port),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
        }
        return {**os.environ, **own}


@contextmanager
def running_rabbitmq() -> Iterator[str]:
    """The amqp:// URL of one node; skips with the reason where there is none."""
    with running_cluster(1) as (node,):
        yield node.url


@contextmanager
def running_cluster(count: int = 3) -> Iterator[list[Node]]:
    """Nodes that form one cluster; skips with the reason where RabbitMQ is not installed."""
    server = next((place for place in PLACES if Path(place).exists()), None) or shutil.which("rabbitmq-server")
    epmd = shutil.which("epmd")
    if server is None or epmd is None:
        pytest.skip("no RabbitMQ is installed here (Debian: apt install rabbitmq-server)")
    folder = Path(tempfile.mkdtemp(prefix="aftermind-rabbitmq-"))
    mapper_port, *ports = choose(1 + 2 * count)
    nodes = [Node(folder / str(n), mapper_port, ports[2 * n], ports[2 * n + 1]) for n in range(count)]
    for node in nodes if count > 1 else []:
        lines = (f"cluster_formation.classic_config.nodes.{n} = {each.name}\n" for n, each in enumerate(nodes, 1))
        node.cluster = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(lines)
    # Started by us, or a node would leave one behind as a daemon.
    mapper = subprocess.Popen([epmd, "-port", str(mapper_port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for node in nodes:
            node.start(server)
            node.wait()  # one after the other: each joins those that are up
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        mapper.kill()
        mapper.wait()
        shutil.rmtree(folder, ignore_errors=True)


def refused_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
