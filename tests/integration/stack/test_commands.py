"""Further commands beside the data servers: workers, the web service, whatever is to be kept running."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermind.errors import InvalidSettings, StackError
from aftermind.stack import Command, ComponentState, ComponentStatus, HealthCheck, Restart, Stack, StopOrder
from aftermind.stack.ports import choose, claim
from tests.support import faults
from tests.support.servers import FAST
from tests.support.waiting import wait_until_sync

# Notes its end in a file, so that a test can see who stopped when.
POLITE = """
import pathlib, signal, sys, time
def leave(*_):
    with open("stopped", "a") as file:
        file.write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("here is", sys.argv[1], flush=True)
pathlib.Path(sys.argv[1] + ".started").touch()
while True:
    time.sleep(60)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
WITH_A_CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print('up', flush=True); input()"


@pytest.fixture(scope="module")
def module_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("commands") / "state", replica=False, postgres_settings=FAST)
    stack.up()
    yield stack
    stack.destroy()


@pytest.fixture
def stack(module_stack: Stack) -> Iterator[Stack]:
    """One stack for the module, without commands before and after each test."""
    yield module_stack
    module_stack.supervise([])


def test_a_command_runs_with_its_environment_and_its_own_log(stack: Stack, tmp_path: Path) -> None:
    argv = ("sh", "-c", "echo hello $GREETED; exec sleep 600")

    stack.supervise([Command(name="greeter", argv=argv, env={"GREETED": "world"}, cwd=str(tmp_path))])

    wait_until_sync(lambda: "hello world" in _log(stack, "greeter"), description="the greeting is in its log")


def test_a_command_that_dies_is_started_again_and_a_finished_one_is_not(stack: Stack) -> None:
    stack.supervise(
        [
            Command(name="worker", argv=("sleep", "600")),
            Command(name="once", argv=("true",), restart=Restart.NEVER),
            Command(name="succeeds", argv=("true",), restart=Restart.ON_FAILURE),
        ]
    )
    first = _status(stack, "worker")
    assert first.pid is not None

    faults.kill(first.pid)

    wait_until_sync(
        lambda: (now := _status(stack, "worker")).state is ComponentState.RUNNING and now.pid != first.pid,
        description="the worker runs as another process",
    )
    assert _status(stack, "worker").restarts == 1
    for name in ("once", "succeeds"):
        wait_until_sync(lambda name=name: _status(stack, name).state is ComponentState.EXITED, description=name)  # type: ignore[misc]
        assert _status(stack, name).restarts == 0


def test_a_command_that_never_comes_up_is_reported_with_its_last_words(stack: Stack) -> None:
    broken = Command(name="broken", argv=("sh", "-c", "echo no such broker >&2; exit 3"), health=_never())

    with pytest.raises(StackError, match="exit code 3: no such broker"):
        stack.supervise([broken])


def test_a_program_that_does_not_exist_is_reported(stack: Stack) -> None:
    missing = Command(name="missing", argv=("/nonexistent/program",), health=_never())

    with pytest.raises(StackError, match=r"missing: .*(No such file|exit code)"):
        stack.supervise([missing])


def test_a_command_counts_as_running_once_its_port_answers(stack: Stack) -> None:
    port = choose(1)[0]
    serve = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))

    stack.supervise(
        [
            Command(name="web", argv=serve, health=HealthCheck(url=f"http://127.0.0.1:{port}/")),
            Command(name="tcp", argv=("sleep", "600"), health=HealthCheck(url=f"tcp://127.0.0.1:{port}")),
            Command(name="asked", argv=("sleep", "600"), health=HealthCheck(argv=("true",))),
        ]
    )

    socket.create_connection(("127.0.0.1", port)).close()
    assert {_status(stack, name).state for name in ("web", "tcp", "asked")} == {ComponentState.RUNNING}


def test_a_command_is_not_started_while_another_program_has_its_port(stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_program:
        port = other_program.getsockname()[1]
        health = HealthCheck(url=f"tcp://127.0.0.1:{port}")
        with pytest.raises(StackError, match=rf"web: .*its port {port} is in use by another program"):
            stack.supervise([Command(name="web", argv=("sleep", "600"), health=health, port=port)])

        assert _status(stack, "web").pid is None
        assert _status(stack, "web").port == port

    wait_until_sync(lambda: _status(stack, "web").pid is not None, description="it is started once the port is free")


def test_of_two_processes_one_has_the_claim_to_a_port() -> None:
    port = choose(1)[0]
    claims = f"from aftermind.stack.ports import claim; print(claim({port}), flush=True); input()"
    first = subprocess.Popen([sys.executable, "-c", claims], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "True\n"
        assert not claim(port)
        first.communicate("\n")
    assert [claim(port), claim(port)] == [True, True]


def test_a_sick_command_is_shown_as_such_and_let_live(stack: Stack, tmp_path: Path) -> None:
    well = tmp_path / "well"
    well.touch()
    check = HealthCheck(argv=("test", "-e", str(well)), every_seconds=0.1)
    stack.supervise([Command(name="sick", argv=("sleep", "600"), health=check)])
    before = _status(stack, "sick")

    well.unlink()

    wait_until_sync(lambda: _status(stack, "sick").state is ComponentState.UNHEALTHY, description="it is seen as sick")
    assert _status(stack, "sick").pid == before.pid


def test_only_what_changed_is_restarted(stack: Stack) -> None:
    kept, changed = Command(name="kept", argv=("sleep", "600")), Command(name="changed", argv=("sleep", "600"))
    stack.supervise([kept, changed, Command(name="gone", argv=("sleep", "600"))])
    before = {name: _status(stack, name).pid for name in ("kept", "changed")}

    stack.supervise([kept, Command(name="changed", argv=("sleep", "601"))])

    assert _status(stack, "kept").pid == before["kept"]
    assert _status(stack, "changed").pid != before["changed"]
    assert "gone" not in {each.name for each in stack.status()}


def test_a_command_that_stops_slowly_is_not_taken_for_its_successor(stack: Stack) -> None:
    slow = ("sh", "-c", "trap 'sleep 1; exit' TERM; while :; do sleep 0.1; done")
    stack.supervise([Command(name="changed", argv=slow), Command(name="gone", argv=("sleep", "600"))])
    before = _status(stack, "changed").pid

    stack.supervise([Command(name="changed", argv=("sleep", "600"))])

    assert _status(stack, "changed").pid != before


def test_the_web_stops_before_the_workers_and_those_before_the_data(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", replica=False, postgres_settings=FAST)
    stack.up()
    stack.supervise(
        [
            _polite("worker", tmp_path, StopOrder.WORKER),
            _polite("web", tmp_path, StopOrder.WEB),
        ]
    )
    for name in ("web", "worker"):
        wait_until_sync((tmp_path / f"{name}.started").exists, description=f"{name} is there")

    stack.down()

    assert (tmp_path / "stopped").read_text().split() == ["web", "worker"]
    last = [each.name for each in sorted(stack.status(), key=lambda each: each.since)]
    assert last == ["web", "worker", "redis", "postgres"]
    stack.destroy()


def test_whoever_ignores_the_request_to_stop_is_killed_after_its_grace(stack: Stack) -> None:
    command = Command(name="stubborn", argv=(sys.executable, "-c", STUBBORN), grace_seconds=0.5)
    stack.supervise([command])
    wait_until_sync(lambda: "up" in _log(stack, "stubborn"), description="it ignores SIGTERM by now")

    began = time.monotonic()
    stack.supervise([])

    assert time.monotonic() - began >= 0.5


def test_the_children_of_a_command_go_with_it(stack: Stack, tmp_path: Path) -> None:
    command = Command(
        name="parent", argv=(sys.executable, "-c", WITH_A_CHILD), cwd=str(tmp_path), restart=Restart.NEVER
    )
    stack.supervise([command])
    wait_until_sync(lambda: "up" in _log(stack, "parent"), description="it has a child")

    # `input()` ends it at once, since its stdin is empty; the child is left behind and must be ended for it.
    wait_until_sync(lambda: _status(stack, "parent").state is ComponentState.EXITED, description="it has ended")

    wait_until_sync(lambda: not faults.processes_of(tmp_path), description="its child is gone")


@pytest.mark.parametrize("name", ["", "redis", "../outside", "a" * 65, "-x", "with space"])
def test_a_name_that_cannot_name_a_log_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettings, match="it names a log file"):
        Command(name=name, argv=("true",))


def test_two_commands_of_one_name_are_refused(stack: Stack) -> None:
    with pytest.raises(InvalidSettings, match="same name"):
        stack.supervise([Command(name="twin", argv=("true",)), Command(name="twin", argv=("false",))])


def test_a_wish_that_cannot_be_read_harms_nothing(stack: Stack) -> None:
    stack.supervise([Command(name="worker", argv=("sleep", "600"))])
    before = _status(stack, "worker").pid
    wish = stack.logs.parent / "wanted.json"
    whole = wish.read_text()

    wish.write_text("{")
    os.kill(int((stack.logs.parent / "lock").read_text()), signal.SIGHUP)

    wait_until_sync(lambda: "a wish is not followed" in _log(stack, "supervisor"), description="it is refused")
    wish.write_text(whole)
    assert _status(stack, "worker").pid == before


def test_commands_need_a_running_stack(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"nothing runs over .* `aftermind up`"):
        Stack(tmp_path / "state").supervise([])


def _polite(name: str, cwd: Path, order: StopOrder) -> Command:
    return Command(name=name, argv=(sys.executable, "-c", POLITE, name), cwd=str(cwd), stop_order=order)


def _never() -> HealthCheck:
    return HealthCheck(argv=("false",), every_seconds=0.1)


def _log(stack: Stack, name: str) -> str:
    path = stack.logs / f"{name}.log"
    return path.read_text() if path.exists() else ""


def _status(stack: Stack, name: str) -> ComponentStatus:
    return next(each for each in stack.status() if each.name == name)


def test_a_command_that_tells_when_it_takes_work_is_not_called_running_before(stack: Stack, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.touch()  # of a former life
    health = HealthCheck(ready_file=str(ready))
    opens = ("sh", "-c", f"sleep 0.3; touch {ready}; exec sleep 600")

    stack.supervise([Command(name="opens", argv=opens, health=health)])

    assert ready.exists()


def test_one_that_dies_on_its_way_to_work_is_named_with_its_reason(stack: Stack, tmp_path: Path) -> None:
    health = HealthCheck(ready_file=str(tmp_path / "ready"))
    dies = ("sh", "-c", "sleep 0.1; echo no such module; exit 3")

    with pytest.raises(StackError, match=r"dies.*does not stay up.*no such module"):
        stack.supervise([Command(name="dies", argv=dies, health=health)])
