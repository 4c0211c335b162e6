"""One supervised process: start, watch, start again, stop."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from aftermind.errors import StackError
from aftermind.stack import diagnosis
from aftermind.stack.component_types import ComponentState, ComponentStatus, Restart
from aftermind.stack.supervised_program_protocol import Launch, Program
from aftermind.telemetry.logger import get_logger

FIRST_DELAY = 0.1  # seconds before the first restart
MAX_DELAY_SECONDS = 10.0
STABLE = 10.0  # a life of this many seconds was a success: the next delay is the first again
READY_PROBE = 0.03  # how often a starting process is asked whether it is there
TRIES_BEFORE_READY = 3  # deaths before the first readiness that make a start a failure; one may be a raced port

log = get_logger(__name__)


class Supervised:
    """Keeps one program running until it is stopped."""

    def __init__(self, program: Program, log_path: Path, *, on_change: Callable[[], None]) -> None:
        self.program = program
        self._log_path = log_path
        self._on_change = on_change
        self._state = ComponentState.STARTING
        self._since = datetime.now(UTC)
        self._detail = ""
        self._restarts = -1  # the first start is none
        # None again as soon as the process has ended: ids are reused
        self._process: asyncio.subprocess.Process | None = None
        self._reported: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._failed: StackError | None = None
        self._ended_for: StackError | None = None
        self._deaths_before_ready = 0
        self._log_offset = 0

    @property
    def status(self) -> ComponentStatus:
        """As of now."""
        return ComponentStatus(
            name=self.program.name,
            state=self._state,
            pid=self._process.pid if self._process else None,
            port=self.program.port,
            restarts=max(0, self._restarts),
            since=self._since,
            detail=self._detail,
        )

    def start(self) -> None:
        """Start the supervision; returns immediately."""
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.program.name}")

    async def until_ready(self) -> None:
        """Wait until it was well once; raises StackError when it will not come up."""
        await self._ready.wait()
        if self._failed is not None:
            raise self._failed

    async def stop(self, *, state: ComponentState = ComponentState.STOPPED) -> None:
        """Stop it for good: its signals in order, each with its grace, then SIGKILL to its whole group."""
        self._stopping.set()
        if self._process is not None:
            await self._end(self._process)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._change(state)

    async def _supervise(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            self._restarts += 1
            began = time.monotonic()
            code, why = await self._live_once()
            if self._stopping.is_set() or not self._should_restart(code):
                self._change(ComponentState.EXITED, why)
                self._ready.set()
                return
            if time.monotonic() - began > STABLE:
                delay = FIRST_DELAY
            log.warning("%s ended and is started again in %.1f s: %s", self.program.name, delay, why)
            self._change(ComponentState.BACKOFF, why)
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_DELAY_SECONDS)

    async def _live_once(self) -> tuple[int, str]:
        """One run of the process from preparation to exit: its exit code, and the reason as far as it can be
        determined.
        """
        try:
            self._change(ComponentState.STARTING, self._detail)
            launch = await self.program.prepare()
            process = self._process = await self._spawn(launch)
        except (StackError, OSError) as exc:
            error = exc if isinstance(exc, StackError) else _not_started(self.program.name, exc)
            self._give_up_before_ready(error)
            return -1, f"{error.why}. {error.remedy}"
        self._change(ComponentState.STARTING)
        watch = asyncio.create_task(self._watch(), name=f"watch {self.program.name}")
        try:
            code = await process.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        self._process = None
        _kill_group(process.pid)  # what it left of its children would hold its port or its files
        why, remedy = self._reason(code)
        self._deaths_before_ready += not self._ready.is_set()
        if self._deaths_before_ready >= TRIES_BEFORE_READY:
            self._give_up_before_ready(StackError(self.program.name, why, remedy))
        return code, f"{why}. {remedy}"

    def _reason(self, code: int) -> tuple[str, str]:
        ended_for, self._ended_for = self._ended_for, None
        if ended_for is not None:
            return ended_for.why, ended_for.remedy
        return diagnosis.explain_exit(code, self._log_path, self._log_offset)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        for number, grace in self.program.stop_signals:
            if process.returncode is not None:
                break
            _send(process, number)
            _send(process, signal.SIGCONT)  # a frozen process takes no other signal
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
        _kill_group(process.pid)
        await process.wait()

    async def _watch(self) -> None:
        try:
            while (reason := await self.program.probe()) is not None:
                self._change(ComponentState.STARTING, reason)
                await asyncio.sleep(READY_PROBE)
            if not self._ready.is_set():
                await self.program.on_ready()
            self._change(ComponentState.RUNNING)
            self._ready.set()
            while True:
                await asyncio.sleep(self.program.probe_seconds)
                reason = self._find_frozen() or await self.program.probe()
                was, state = self._state, ComponentState.UNHEALTHY if reason else ComponentState.RUNNING
                self._change(state, reason or "")
                if state is not was:
                    log.warning("health changed", extra={"component": self.program.name, "state": state, "why": reason})
        except StackError as exc:
            self._ended_for = exc
            self._give_up_before_ready(exc)
            if self._process is not None:
                _send(self._process, self.program.stop_signals[0][0])

    def _find_frozen(self) -> str | None:
        with suppress(psutil.Error):
            if self._process is not None and psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
                return "the process is frozen by SIGSTOP: kill -CONT continues it"
        return None

    async def _spawn(self, launch: Launch) -> asyncio.subprocess.Process:
        with self._log_path.open("ab") as file:
            self._log_offset = file.tell()
            return await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(launch.env),
                cwd=launch.cwd,
                # a separate process group: the terminal's Ctrl-C reaches only the supervisor, which stops processes in
                # order
                start_new_session=True,
            )

    def _should_restart(self, code: int) -> bool:
        policy = self.program.restart
        return policy is Restart.ALWAYS or (policy is Restart.ON_FAILURE and code != 0)

    def _give_up_before_ready(self, error: StackError) -> None:
        if not self._ready.is_set():
            self._failed = error
            self._ready.set()

    def _change(self, state: ComponentState, detail: str = "") -> None:
        if (state, detail) == (self._state, self._detail) and self._process is self._reported:
            return
        if state is not self._state:
            self._since = datetime.now(UTC)
        self._state, self._detail, self._reported = state, detail, self._process
        self._on_change()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        os.killpg(group, signal.SIGKILL)


def _not_started(name: str, exc: OSError) -> StackError:
    return StackError(name, f"it cannot be started: {exc}", "Check that the program exists and may be executed.")
