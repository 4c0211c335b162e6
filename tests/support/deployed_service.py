"""A whole deployment by its settings: `aftermind web`, a worker, and who holds which key."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from aftermind import Settings
from aftermind.stack.ports import choose
from tests.fundamentals.conftest import as_environment
from tests.support.fork_server import Process, start_module
from tests.support.waiting import wait_until_sync


@dataclass(frozen=True)
class Service:
    """A running service, and how to reach it as different people."""

    url: str
    settings: Settings
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, key: str | None = "all", **headers: str) -> httpx.Client:
        """A client with one of `keys` (by name), or without any."""
        if key is not None:
            headers = {"Authorization": f"Bearer {self.keys[key]}", **headers}
        # Over plain HTTP: to read the authorities' certificates would take 15 ms.
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, verify=False)


@contextmanager
def serving(settings: Settings, log: Path, *, host: str = "127.0.0.1") -> Iterator[str]:
    """`aftermind web` on a free port until the block ends; its URL on this machine."""
    port = choose(1)[0]
    url = f"http://127.0.0.1:{port}"
    with running(["web", "--port", str(port), "--host", host], settings, log):
        wait_until_sync(_answers(url), description=f"the service answers ({log})")
        yield url


@contextmanager
def running(command: list[str], settings: Settings, log: Path, *, patience: float = 30) -> Iterator[Process]:
    """`aftermind …` until the block ends, then SIGTERM; one that does not heed it in so many seconds fails the test."""
    with log.open("wb") as output:
        env = {**os.environ, **as_environment(settings)}
        process = start_module(["aftermind.cli", *command], env=env, output=output, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(patience)
        except psutil.TimeoutExpired as exc:
            process.kill()
            process.wait()
            raise AssertionError(f"{command[0]} did not stop on SIGTERM:\n{log.read_text()[-4000:]}") from exc


def _answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=2, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    return ask
