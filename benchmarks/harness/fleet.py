"""The processes of a run: started in a session of their own, started again when they die, ended with the run."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aftermind.stack.run_without_root import dying_with_parent
from tests.support import faults

BREATH = 0.02  # seconds
BEGUN = '{"begun": true'  # the beginning of the line that a client prints when it begins
LOOK = 0.1  # seconds between looks at who died
GRACE = 15.0  # seconds after SIGTERM; the workers' own grace is 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the fleet, by the command that starts it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


class Fleet:
    """Keeps members running: whoever dies is started again at once, as a supervisor would."""

    def __init__(self, members: Sequence[Member], *, root: Path, logs: Path, grace: float = GRACE) -> None:
        self._members = {member.name: member for member in members}
        self._root, self._logs, self._grace = root, logs, grace
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self.starts = 0

    async def __aenter__(self) -> "Fleet":
        self._logs.mkdir(parents=True, exist_ok=True)
        for name in self._members:
            self._start(name)
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def names(self) -> list[str]:
        """Every member."""
        return list(self._members)

    def pid(self, name: str) -> int:
        """The member's process of this moment."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """kill -9 of the member and all its children."""
        faults.kill_tree(self.pid(name))

    async def freeze(self, name: str, seconds: float, *, then_kill: bool = False) -> None:
        """SIGSTOP for a while; then SIGCONT, or kill -9 without it ever having run again."""
        pid = self.pid(name)
        faults.freeze(pid)
        try:
            await asyncio.sleep(seconds)
        finally:
            if then_kill:
                faults.kill_tree(pid)
            else:
                faults.thaw(pid)

    @contextmanager
    def frozen(self, names: Sequence[str]) -> Iterator["Frozen"]:
        """SIGSTOP for the block; those that were not killed are thawed at its end."""
        group = Frozen([self.pid(name) for name in names])
        group.freeze()
        try:
            yield group
        finally:
            group.thaw()

    async def terminate(self, name: str, *, timeout: float = GRACE) -> float:
        """SIGTERM, and wait for the end; how many seconds it took. Kills after `timeout`."""
        process = self._running[name]
        began = asyncio.get_running_loop().time()
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, timeout)
        except subprocess.TimeoutExpired:
            faults.kill_tree(process.pid)
        return asyncio.get_running_loop().time() - began

    async def stop(self) -> None:
        """SIGTERM to all at once, then kill -9 to who stays."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await asyncio.gather(*(self.terminate(name, timeout=self._grace) for name in self._running))
        for process in self._running.values():
            faults.kill_tree(process.pid)
            process.wait()
        self._running.clear()

    def _start(self, name: str) -> None:
        member = self._members[name]
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*dying_with_parent("KILL"), *member.argv],
                cwd=self._root,
                env=dict(member.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for name, process in list(self._running.items()):
                if process.poll() is not None:
                    self._start(name)


@dataclass(frozen=True, slots=True)
class Frozen:
    """Processes of members. One that is killed while it is frozen has a successor, which runs."""

    pids: Sequence[int]

    def freeze(self) -> None:
        """SIGSTOP."""
        for pid in self.pids:
            faults.freeze(pid)

    def thaw(self) -> None:
        """SIGCONT."""
        for pid in self.pids:
            faults.thaw(pid)

    def kill(self) -> None:
        """kill -9, without any of them having run again."""
        for pid in self.pids:
            faults.kill_tree(pid)

    async def breathe(self) -> None:
        """Let them run for a moment."""
        self.thaw()
        await asyncio.sleep(BREATH)
        self.freeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProcess:
    """A process of the load: it ends by itself or by SIGTERM, and is not started again."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def has_begun(self) -> bool:
        """Whether it is past its imports: it says `BEGUN` then. Raises where it failed, with the end of its log."""
        code = self.process.poll()
        if code:
            raise ClientFailed(self.log, code)
        return BEGUN in self.log.read_text(errors="replace")

    async def stop(self) -> None:
        """SIGTERM, and the end within the grace. Raises where it failed, with the end of its log."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self.process.wait, GRACE)
        except subprocess.TimeoutExpired:
            faults.kill_tree(self.process.pid)
            code = await asyncio.to_thread(self.process.wait)
        if code != 0:
            raise ClientFailed(self.log, code)

    async def ended(self, *, timeout: float) -> None:
        """Wait for the end that it comes to by itself. Raises where it failed, with the end of its log."""
        code = await asyncio.to_thread(self.process.wait, timeout)
        if code != 0:
            raise ClientFailed(self.log, code)


class ClientFailed(RuntimeError):
    """A producer or reader of the harness broke: the run says nothing then."""

    def __init__(self, log: Path, code: int) -> None:
        self.log, self.code = log, code
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        super().__init__(f"{log.stem} ended with {code}:\n{tail}")


def client(
    module: str, spec: str, *, name: str, env: Mapping[str, str], root: Path, logs: Path, nice: int = 0
) -> LoadProcess:
    """Start a module of the harness as a process of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name}.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            [*dying_with_parent("KILL"), "nice", "-n", str(nice), sys.executable, "-m", module, spec],
            cwd=root,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return LoadProcess(process=process, log=path)
