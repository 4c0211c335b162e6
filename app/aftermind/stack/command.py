"""A named command (a worker, the web service) as something that the supervisor can run."""

import asyncio
import signal
import urllib.parse
import urllib.request
from pathlib import Path

from aftermind.stack import tools
from aftermind.stack.identity import dying_with_parent
from aftermind.stack.program import Launch
from aftermind.stack.specs import Command, HealthCheck, Restart


class CommandProgram:
    """Runs a `Command` as it was specified."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.port = None

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
        """Say what to start."""
        argv = (*dying_with_parent("KILL"), *self.command.argv)  # every effect survives a kill; a warm stop could hang
        return Launch(argv=argv, env=self.command.env, cwd=Path(self.command.cwd) if self.command.cwd else None)

    async def probe(self) -> str | None:
        """Run its health check; without one it is well as long as it lives."""
        check = self.command.health
        if check is None:
            return None
        if check.argv:
            done = await tools.run(check.argv, timeout_seconds=check.timeout_seconds, env=self.command.env)
            return None if done.code == 0 else done.reason
        return await _ask(check)

    async def on_ready(self) -> None:
        """Nothing to finish."""


async def _ask(check: HealthCheck) -> str | None:
    try:
        async with asyncio.timeout(check.timeout_seconds):
            parts = urllib.parse.urlsplit(check.url)
            if parts.scheme == "tcp":
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
            else:
                await asyncio.to_thread(_get, check.url, check.timeout_seconds)
    except TimeoutError:
        return f"{check.url} did not answer within {check.timeout_seconds:g} s"
    except (OSError, ValueError) as exc:  # urllib's errors are OSErrors
        return f"{check.url}: {exc}"
    return None


def _get(url: str, timeout_seconds: float) -> None:
    with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
        answer.read(1)
