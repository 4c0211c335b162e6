"""Loopback ports: choosing free ones, and asking whether one is free."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from aftermind.errors import StackError

LOOPBACK = "127.0.0.1"
# Below the range from which Linux (32768+) and macOS (49152+) take ports of outgoing connections: otherwise any client
# could use a stored port at the next start.
FIRST, LAST = 15_000, 32_000
TRIES = 200
_CLAIMED: set[int] = set()


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT does not count
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def choose(count: int) -> list[int]:
    """Distinct free ports, chosen at random so that concurrently started stacks do not compete for the same."""
    rng = random.SystemRandom()
    candidates = (port for port in rng.sample(range(FIRST, LAST), TRIES + count) if is_free(port))
    found = [port for port, _ in zip(candidates, range(count), strict=False)]
    return found + [_from_kernel() for _ in range(count - len(found))]


def _from_kernel() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def claim(port: int) -> bool:
    """Whether this process may give the port to a server that it starts; no other one claims it until this one exits.

    Two stacks that start together would both find the port free, and the slower one's server could not listen.
    """
    if port in _CLAIMED:
        return True
    path = Path(tempfile.gettempdir()) / f"aftermind-port-{port}.lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return True  # of another user, for example: whether the port is free shows at its start
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _CLAIMED.add(port)
    return True


def require_free(component: str, port: int, host: str = LOOPBACK) -> None:
    """Raise StackError if another process listens on the port; of another address than loopback, or all, it may."""
    if host in (LOOPBACK, "localhost", "0.0.0.0") and not is_free(port):
        raise StackError(
            component,
            f"its port {port} is in use by another program",
            f"End that program (`lsof -i :{port}` names it), or choose another port.",
        )
