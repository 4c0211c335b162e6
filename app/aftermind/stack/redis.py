"""Redis or Valkey with an append-only file that is synced on every write."""

import asyncio
import os
import signal
from pathlib import Path

from aftermind.errors import StackError
from aftermind.stack import binaries, ports
from aftermind.stack.component_types import Restart, StopOrder
from aftermind.stack.run_without_root import dying_with_parent
from aftermind.stack.saved_settings import StackConfig
from aftermind.stack.state_dir import StateFolder
from aftermind.stack.supervised_program_protocol import Launch

PROBE_TIMEOUT = 2.0  # seconds; a loopback PING takes 0.1 ms


class Redis:
    """The Redis or Valkey server of a stack: pending turns and doorbells live in it, so it forgets nothing."""

    name = "redis"
    restart = Restart.ALWAYS
    stop_order = StopOrder.DATA
    stop_signals = ((signal.SIGTERM, 20.0),)  # SIGTERM syncs the file and ends; with everything synced it is instant
    probe_seconds = 5.0

    def __init__(self, folder: StateFolder, config: StackConfig) -> None:
        self._folder = folder
        self._config = config

    @property
    def port(self) -> int:
        """The loopback port it listens on."""
        return self._config.redis_port

    async def prepare(self) -> Launch:
        """Write the configuration and return the command to start."""
        server = binaries.redis_server(self._config.redis_binary)
        ports.require_free(self.name, self.port)
        self._folder.redis.mkdir(mode=0o700, exist_ok=True)
        self._require_own_files()
        conf = self._folder.redis / "redis.conf"
        descriptor = os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._configuration())
        argv = (*dying_with_parent("TERM"), str(server), str(conf))
        return Launch(argv=argv, env=dict(os.environ), cwd=self._folder.redis)

    async def probe(self) -> str | None:
        """PING it, as its clients would."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await self._ping()
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT:g} s"
        except OSError as exc:
            return str(exc)

    async def on_ready(self) -> None:
        """Nothing to finish."""

    async def _ping(self) -> str | None:
        # Four lines of RESP: the library's client belongs to wire/redis/client.py, and no pool is wanted here.
        reader, writer = await asyncio.open_connection(ports.LOOPBACK, self.port)
        try:
            writer.write(f"AUTH {self._config.redis_password}\r\nPING\r\n".encode())
            answers = [(await reader.readline()).decode().strip() for _ in range(2)]
        finally:
            writer.close()
        return None if answers == ["+OK", "+PONG"] else " ".join(answers)

    def _configuration(self) -> str:
        return "\n".join(
            (
                "# Written at every start; edits are lost.",
                f"bind {ports.LOOPBACK}",
                f"port {self.port}",
                f"requirepass {self._config.redis_password}",
                f"dir {_quoted(self._folder.redis)}",
                "daemonize no",
                'logfile ""',  # to stdout, which the supervisor appends to logs/redis.log
                "appendonly yes",
                "appendfsync always",  # `remember` promises what the file holds; everysec could lose a second or two
                "no-appendfsync-on-rewrite no",  # the same promise while the file is rewritten
                "aof-load-truncated yes",  # a tail cut off by a crash was never acknowledged
                'save ""',  # the append-only file is the only copy; snapshots would fork without benefit
                "maxmemory-policy noeviction",  # refuse a write rather than forget one
                "tcp-keepalive 60",
                "",
            )
        )

    def _require_own_files(self) -> None:
        if not os.access(self._folder.redis, os.R_OK | os.W_OK | os.X_OK):
            why = f"its folder {self._folder.redis} belongs to another user (uid {self._folder.redis.stat().st_uid})"
            raise StackError(self.name, why, "Run as that user, or give the state folder to this one (chown -R).")


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
