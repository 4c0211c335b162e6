"""A RabbitMQ of one test session, where the machine has one installed (Debian: rabbitmq-server)."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
START_SECONDS = 60.0  # an Erlang node takes 5 s here


@contextmanager
def running_rabbitmq() -> Iterator[str]:
    """Its amqp:// URL; skips with the reason where there is none."""
    server = next((place for place in PLACES if Path(place).exists()), None) or shutil.which("rabbitmq-server")
    epmd = shutil.which("epmd")
    if server is None or epmd is None:
        pytest.skip("no RabbitMQ is installed here (Debian: apt install rabbitmq-server)")
    folder = Path(tempfile.mkdtemp(prefix="aftermind-rabbitmq-"))
    mapper_port, port, distribution = choose(3)
    environment = _environment(folder, mapper_port, port, distribution)
    with (folder / "out.log").open("wb") as log:
        # Started by us, or the node would leave one behind as a daemon.
        mapper = subprocess.Popen([epmd, "-port", str(mapper_port)], stdout=log, stderr=log)
        node = subprocess.Popen([server], env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_sync(lambda: _is_up(folder), timeout=START_SECONDS, description="RabbitMQ is up")
            yield f"amqp://guest:guest@127.0.0.1:{port}//"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
            mapper.kill()
            mapper.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, mapper_port: int, port: int, distribution: int) -> dict[str, str]:
    own = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_NODENAME": f"aftermind-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
    }
    return {**os.environ, **own}


def _is_up(folder: Path) -> bool:
    return "Starting broker... completed" in (folder / "out.log").read_text(errors="replace")


def refused_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
