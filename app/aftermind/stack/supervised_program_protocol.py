"""The interface of a program that the supervisor keeps running."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Protocol

from aftermind.stack.component_types import Restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process about to be started, with its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None


class Program(Protocol):
    """One kind of process: how it is made ready, started, asked for its health, and stopped."""

    @property
    def name(self) -> str:
        """Unique within a stack; also names its log file."""

    @property
    def port(self) -> int | None:
        """Where it listens, if it does."""

    @property
    def restart(self) -> Restart:
        """What to do when it ends by itself."""

    @property
    def stop_order(self) -> int:
        """Lower stops earlier."""

    @property
    def stop_signals(self) -> tuple[tuple[Signals, float], ...]:
        """What to send and how many seconds to wait then, one after the other; SIGKILL to the group comes last."""

    @property
    def probe_seconds(self) -> float:
        """How often its health is asked for once it runs."""

    async def prepare(self) -> Launch:
        """Repair what can be repaired and return the command. Runs before every start. Raises StackError for other
        faults.
        """

    async def probe(self) -> str | None:
        """None when it is well, else what is wrong. Raises StackError where only a new start, with `prepare`, helps."""

    async def on_ready(self) -> None:
        """Finish what needs the running process; runs once, before others may rely on it."""
