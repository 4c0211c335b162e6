"""However a stack's owner goes, no process stays."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aftermind.stack import Command, ComponentState, Stack
from tests.support import faults
from tests.support.paths import without_setpriv
from tests.support.servers import FAST, psql
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.long

# What `aftermind demo` does: up in the foreground, commands beside it, waiting for Ctrl-C. It heeds signals as what a
# terminal starts does, also where these tests run under nohup or in the background, which lets children ignore some.
OWNER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from aftermind.stack import Command, Stack
stack = Stack(Path(sys.argv[1]), postgres_settings={"fsync": "off"})
stack.up()
stack.supervise([Command(name="worker", argv=("sleep", "600"), cwd=sys.argv[1])])
print("up", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    stack.down()
"""
# A forked copy, as multiprocessing makes them, inherits the pipe to the supervisor and so keeps it open.
FORKED = OWNER.replace('print("up"', 'import os; os.fork() or (time.sleep(600), sys.exit(0)); print("up"')


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    Stack(tmp_path / "state").destroy()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_an_owner_ended_by(number: signal.Signals, state_dir: Path) -> None:
    owner = _start(OWNER, state_dir)

    owner.send_signal(number)

    owner.communicate(timeout=180)
    _wait_until_nobody_is_left(state_dir)


def test_no_process_outlives_a_closed_terminal(state_dir: Path) -> None:
    leader, follower = pty.openpty()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state_dir)], stdin=follower, stdout=follower, stderr=follower, process_group=0
    )
    os.close(follower)
    assert b"up" in os.read(leader, 1000)

    os.close(leader)
    owner.send_signal(signal.SIGHUP)  # what the kernel sends to the terminal's foreground group

    owner.wait(timeout=180)
    _wait_until_nobody_is_left(state_dir)


def test_a_forked_copy_of_the_owner_does_not_keep_the_stack_alive(state_dir: Path) -> None:
    owner = _start(FORKED, state_dir)
    copies = [child for child in psutil.Process(owner.pid).children() if FORKED in child.cmdline()]
    assert len(copies) == 1

    owner.kill()

    try:
        wait_until_sync(
            lambda: faults.processes_of(state_dir) == copies,
            description="only the forked copy is left",
        )
    finally:
        copies[0].kill()
        owner.communicate(timeout=180)


def test_a_start_right_after_the_owner_was_killed_waits_for_the_last_stop(state_dir: Path) -> None:
    owner = _start(OWNER, state_dir)
    owner.kill()
    owner.communicate(timeout=180)

    with Stack(state_dir, postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}


def test_no_process_outlives_an_owner_killed_during_the_start(state_dir: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(state_dir)], stdout=subprocess.PIPE)
    wait_until_sync((state_dir / "postgres").exists, description="the primary has been made")

    owner.kill()

    owner.communicate(timeout=180)
    _wait_until_nobody_is_left(state_dir)
    with Stack(state_dir, postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start ends what was left")
def test_no_process_outlives_a_killed_supervisor(state_dir: Path) -> None:
    owner = _start(OWNER, state_dir)
    assert len(faults.processes_of(state_dir)) > 10

    faults.kill(_supervisor(state_dir))

    wait_until_sync(
        lambda: [process.pid for process in faults.processes_of(state_dir)] == [owner.pid],
        description="the kernel has ended everything but the owner",
    )
    owner.kill()
    owner.communicate(timeout=180)


def test_the_next_start_ends_what_a_killed_supervisor_left(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(without_setpriv(tmp_path)))  # as on macOS: nothing dies with its parent
    first = Stack(state_dir, postgres_settings=FAST)
    endpoints = first.up()
    first.supervise([Command(name="worker", argv=(sys.executable, "-c", "import time; time.sleep(600)"))])
    psql(endpoints.postgres_url, "CREATE TABLE kept ()")
    left = {each.name: each.pid for each in first.status()}

    faults.kill(_supervisor(state_dir))
    first.down()
    assert [name for name, pid in left.items() if not faults.is_alive(pid or 0)] == []

    with Stack(state_dir, postgres_settings=FAST) as second:
        assert [name for name, pid in left.items() if faults.is_alive(pid or 0)] == []
        assert second.running() == endpoints
        assert psql(endpoints.postgres_url, "SELECT to_regclass('kept')") == "kept"


def _start(program: str, state_dir: Path) -> "subprocess.Popen[bytes]":
    owner = subprocess.Popen([sys.executable, "-c", program, str(state_dir)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    return owner


def _supervisor(state_dir: Path) -> int:
    return int((state_dir / "lock").read_text())


def _wait_until_nobody_is_left(state_dir: Path) -> None:
    wait_until_sync(
        lambda: not faults.processes_of(state_dir),
        description="no process of the stack is left",
    )
