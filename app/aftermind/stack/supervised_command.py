"""A named command (a worker, the web service) as something that the supervisor can run."""

import asyncio
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

from aftermind.stack import ports, server_tools
from aftermind.stack.component_types import Command, HealthCheck, Restart
from aftermind.stack.run_without_root import dying_with_parent
from aftermind.stack.supervised_program_protocol import Launch


class CommandProgram:
    """Runs a `Command` as it was specified."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.port = command.port

    @property
    def name(self) -> str:
        """As in its specification."""
        return self.command.name

    @property
    def restart(self) -> Restart:
        """As in its specification."""
        return self.command.restart

    @property
    def stop_order(self) -> int:
        """As in its specification."""
        return self.command.stop_order

    @property
    def stop_signals(self) -> tuple[tuple[signal.Signals, float], ...]:
        """SIGTERM, and the grace that was asked for."""
        return ((signal.SIGTERM, self.command.grace_seconds),)

    @property
    def probe_seconds(self) -> float:
        """As in its health check."""
        return self.command.health.every_seconds if self.command.health else 3600.0

    async def prepare(self) -> Launch:
        """Return the command to start. Raises `StackError` if another program has its port."""
        if self.port is not None:
            ports.require_free(self.name, self.port)
        if self.command.health is not None and self.command.health.ready_file:
            _forget(self.command.health.ready_file)
        argv = (*dying_with_parent("KILL"), *self.command.argv)  # every effect survives a kill; a warm stop could hang
        return Launch(argv=argv, env=self._environment(), cwd=Path(self.command.cwd) if self.command.cwd else None)

    async def probe(self) -> str | None:
        """Run its health check; without one it is well as long as it lives."""
        check = self.command.health
        if check is None:
            return None
        if check.argv:
            done = await server_tools.run(check.argv, timeout_seconds=check.timeout_seconds, env=self._environment())
            return None if done.code == 0 else done.reason
        if check.ready_file:
            return None if _is_ready(check.ready_file) else "not ready yet"
        return await _ask(check)

    async def on_ready(self) -> None:
        """Nothing to finish."""

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.command.env}


def _forget(ready_file: str) -> None:
    """Discard the output of a previous run."""
    Path(ready_file).unlink(missing_ok=True)


def _is_ready(ready_file: str) -> bool:
    return Path(ready_file).exists()


async def _ask(check: HealthCheck) -> str | None:
    parts = urlsplit(check.url)
    try:
        async with asyncio.timeout(check.timeout_seconds):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                return None if parts.scheme == "tcp" else await _get(check.url, reader, writer)
            finally:
                writer.close()
    except TimeoutError:
        return f"{check.url} did not answer within {check.timeout_seconds:g} s"
    except (OSError, ValueError) as exc:
        return f"{check.url}: {exc}"


async def _get(url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
    # By hand: the library's client would ask the proxy of the environment, even for this machine.
    parts = urlsplit(url)
    path = parts._replace(scheme="", netloc="", path=parts.path or "/").geturl()
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.readline()).decode(errors="replace").strip()
    return None if answer.split(" ")[1:2] and answer.split(" ")[1].startswith("2") else f"{url} answers {answer!r}"
