"""The supervisor: a separate process that starts, monitors and stops all programs of one state folder.

python -m aftermind.stack.supervisor STATE_DIR RUN [--until-stdin-ends]

It reads its programs from `wanted.json` and reports in `status.json`. SIGHUP: read `wanted.json` again. SIGTERM,
SIGINT: stop all programs in order and exit. With `--until-stdin-ends` it also stops when its parent has ended for any
reason, because the pipe closes. If the supervisor itself is killed, the kernel ends its children (Linux), and the next
start ends the remaining ones (everywhere).
"""

import asyncio
import itertools
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from aftermind.errors import StackError
from aftermind.stack import binaries, desired_state, orphans, run_without_root, saved_settings
from aftermind.stack.component_types import ComponentState
from aftermind.stack.desired_state import Report
from aftermind.stack.managed_process import Supervised
from aftermind.stack.postgres import Primary
from aftermind.stack.redis import Redis
from aftermind.stack.replica import ReplicaServer
from aftermind.stack.saved_settings import StackConfig
from aftermind.stack.state_dir import HELD_EXIT_CODE, StateFolder, write_json
from aftermind.stack.supervised_command import CommandProgram
from aftermind.stack.supervised_program_protocol import Program
from aftermind.telemetry import log_format
from aftermind.telemetry.logger import get_logger

TICK = 1.0  # seconds between checks of the parent
TRIM_EVERY = 30  # ticks between checks of the log sizes

log = get_logger(__name__)


class Supervisor:
    """Runs the desired programs of one state folder; its creator holds the folder's lock."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._wanted = desired_state.read_desired_state(folder)
        self._followed = self._wanted.revision  # not before old commands have ended: callers read states by it
        self._parts: dict[str, Supervised] = {}
        self._phase = "starting"
        self._error: StackError | None = None
        self._wish = asyncio.Event()

    async def run(self, *, until_stdin_ends: bool) -> int:
        """Start everything, keep it running until stopped, stop everything; returns an exit code."""
        work = asyncio.create_task(self._work(parent=os.getppid() if until_stdin_ends else None))
        self._listen(work, until_stdin_ends=until_stdin_ends)
        self._report()
        try:
            with suppress(asyncio.CancelledError):  # how `_listen` ends the work
                await work
        except StackError as exc:
            log.error("the stack does not come up: %s", exc)
            self._error = exc
        except Exception as exc:  # the edge of the process: whatever it is, nothing that we started may be left
            log.exception("a fault of the supervisor")
            remedy = f"Please report it with {self._folder.log('supervisor')}."
            self._error = StackError("stack", f"a fault of the supervisor itself: {exc!r}", remedy)
        self._folder.endpoints.unlink(missing_ok=True)
        self._enter("stopping")
        await self._take_down()
        self._enter("failed" if self._error else "down")
        return 1 if self._error else 0

    def _listen(self, work: "asyncio.Task[None]", *, until_stdin_ends: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        loop.add_signal_handler(signal.SIGHUP, self._wish.set)
        if until_stdin_ends:
            loop.add_reader(sys.stdin.fileno(), _on_stdin, loop, work)

    async def _work(self, *, parent: int | None) -> None:
        await self._bring_up()
        self._enter("up")
        for tick in itertools.count():
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._wish.wait()
            if self._wish.is_set():
                self._wish.clear()
                await self._follow_wish()
            if tick % TRIM_EVERY == 0:
                self._folder.trim_logs()
            if parent is not None and os.getppid() != parent:
                return  # a forked child of the parent may still hold the pipe open; the parent's id shows its end

    async def _bring_up(self) -> None:
        known = saved_settings.load(self._folder)
        ours = saved_settings.with_free_ports(known) if known else saved_settings.new()
        adopting = known is None and self._folder.primary.exists()
        if not adopting:
            saved_settings.save(self._folder, ours)
        primary, replica = self._clusters(ours, adopting=adopting)
        redis = self._start(Redis(self._folder, ours))
        await self._start(primary).until_ready()
        # not before the data has taken the new password, if it was to be adopted
        saved_settings.save(self._folder, ours)
        if replica is not None:
            await self._start(replica).until_ready()
        await redis.until_ready()
        write_json(self._folder.endpoints, ours.endpoints(replica=self._wanted.replica).public())

    def _clusters(self, ours: StackConfig, *, adopting: bool) -> tuple[Primary, ReplicaServer | None]:
        programs = binaries.postgres_bin()
        user = run_without_root.for_postgres(programs / "postgres", data=self._folder.primary)
        settings = self._wanted.postgres_settings
        primary = Primary(
            self._folder,
            ours,
            programs=programs,
            identity=user,
            settings=settings,
            replica=self._wanted.replica,
            adopting=adopting,
        )
        if not self._wanted.replica:
            return primary, None
        return primary, ReplicaServer(self._folder, ours, programs=programs, identity=user, settings=settings)

    def _start(self, program: Program) -> Supervised:
        part = Supervised(program, self._folder.log(program.name), on_change=self._report)
        self._parts[program.name] = part
        part.start()
        return part

    async def _follow_wish(self) -> None:
        try:
            self._wanted = desired_state.read_desired_state(self._folder)
        except StackError as exc:
            log.error("a wish is not followed: %s", exc)
            return
        commands = {command.name: command for command in self._wanted.commands}
        outdated = [
            part
            for part in self._parts.values()
            if isinstance(part.program, CommandProgram) and commands.get(part.program.name) != part.program.command
        ]
        await _stop_in_order(outdated)
        for part in outdated:
            del self._parts[part.program.name]
        await self._hold_and_release()
        for name in commands.keys() - self._parts.keys():
            self._start(CommandProgram(commands[name]))
        self._followed = self._wanted.revision
        self._report()

    async def _hold_and_release(self) -> None:
        for name, part in list(self._parts.items()):
            held = part.status.state is ComponentState.HELD
            if name in self._wanted.held and not held:
                await part.stop(state=ComponentState.HELD)
                log.info("%s is held by a command", name)
            elif held and name not in self._wanted.held:
                log.info("%s is released by a command", name)
                self._start(part.program)

    async def _take_down(self) -> None:
        await _stop_in_order(list(self._parts.values()))

    def _enter(self, phase: str) -> None:
        self._phase = phase
        log.info("the stack over %s is %s", self._folder.root, phase)
        self._report()

    def _report(self) -> None:
        error = self._error
        report = Report(
            run=self._wanted.run,
            revision=self._followed,
            pid=os.getpid(),
            phase=self._phase,
            error=(error.component, error.why, error.remedy) if error else None,
            components=tuple(part.status for part in self._parts.values()),
        )
        try:
            desired_state.write_report(self._folder, report)
        except StackError as exc:  # a full disk must not end the supervision
            log.error("the report is not written: %s", exc)


async def _stop_in_order(parts: list[Supervised]) -> None:
    by_order = sorted(parts, key=lambda part: part.program.stop_order)
    for _, group in itertools.groupby(by_order, key=lambda part: part.program.stop_order):
        async with asyncio.TaskGroup() as stopping:
            for part in group:
                stopping.create_task(part.stop())


def _on_stdin(loop: asyncio.AbstractEventLoop, work: "asyncio.Task[None]") -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        work.cancel()


def main(arguments: list[str]) -> int:
    """Run the supervisor of a state folder until it is stopped."""
    log_format.configure()
    folder = StateFolder(Path(arguments[0]))
    try:
        descriptor = folder.lock()
    except StackError as exc:
        log.error("%s", exc)
        return HELD_EXIT_CODE
    try:
        desired_state.accept(folder, arguments[1])
        orphans.end(desired_state.remembered_processes(folder))
        supervisor = Supervisor(folder)
    except StackError as exc:
        log.error("%s", exc)
        return 1
    try:
        return asyncio.run(supervisor.run(until_stdin_ends="--until-stdin-ends" in arguments[2:]))
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
