"""A Valkey of one test, to freeze, kill, restart, wipe and fill; its append-only file is synced on each write."""

import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import redis

from aftermind.stack import binaries
from aftermind.stack.ports import choose
from tests.support.faults import freeze, thaw
from tests.support.waiting import wait_until_sync


class Valkey:
    """One server on a free loopback port. `stop` ends it in order, `kill` without a word; `start` brings it back."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.password = secrets.token_hex(8)
        self.port = choose(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As `AFTERMIND_REDIS_URL` and Celery take it."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the server that runs."""
        assert self._process is not None, "it is not started"
        return self._process.pid

    def start(self, *options: str, wait: bool = True) -> None:
        """Bring it up; what its append-only file holds is there. Without `wait` it may still be loading that."""
        argv = [
            str(binaries.redis_server()),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
        ]
        argv += ["--requirepass", self.password, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process = subprocess.Popen(
            [*argv, *self.options, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if wait:
            self.wait_until_answers()

    def wait_until_answers(self) -> None:
        """Until it answers: its append-only file is loaded then."""
        wait_until_sync(self._answers, description="Valkey answers")

    def stop(self) -> None:
        """End it in order; nothing listens on the port any more."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def wipe(self) -> None:
        """Come back empty, as after the loss of its disk."""
        self.kill()
        for path in self.folder.iterdir():
            rmtree(path) if path.is_dir() else path.unlink()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP within the block: connected, and silent."""
        freeze(self.pid)
        try:
            yield
        finally:
            thaw(self.pid)

    def client(self) -> redis.Redis:
        """redis-py's blocking client, for looking and for planting faults."""
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (OSError, redis.ConnectionError):
            return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(timeout=180)


@contextmanager
def running_valkey(*options: str) -> Iterator[Valkey]:
    """A server for the block, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="aftermind-valkey-"))
    server = Valkey(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        rmtree(folder, ignore_errors=True)
