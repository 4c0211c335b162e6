"""`make run ONCE=1`: everything at once, from nothing, and gone afterwards."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import Shell, shell_of
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.long  # a whole stack of its own each: ten processes


def test_the_demo_plays_a_conversation_and_leaves_nothing_behind(tmp_path: Path) -> None:
    shell = shell_of(tmp_path)

    first = shell.must("demo", "--once", timeout=280)

    assert "I prefer dark mode" in first, "what was recalled"
    assert "Oslo" in first, "which facts were learnt"
    assert "MemoryUpdateCompleted" in first, "the events as they came"
    assert "Flower" in first, "where to look"
    _nothing_runs(shell)


def test_the_demo_a_second_time_reuses_what_stands(tmp_path: Path) -> None:
    shell = shell_of(tmp_path)
    shell.must("demo", "--once", timeout=280)

    again = shell.must("demo", "--once", timeout=120)

    assert "I prefer dark mode" in again
    _nothing_runs(shell)


def test_the_demo_ends_when_another_terminal_stops_the_stack(tmp_path: Path) -> None:
    shell = shell_of(tmp_path)
    command = [sys.executable, "-m", "aftermind.cli", "demo"]
    with (tmp_path / "demo.log").open("w") as output:
        demo = subprocess.Popen(command, cwd=shell.folder, env=shell.env, stdout=output, stderr=output)
    try:
        log = tmp_path / "demo.log"
        wait_until_sync(lambda: "Ctrl-C" in log.read_text(), timeout=280, description="the demo is complete")

        shell.must("down", timeout=120)

        assert demo.wait(timeout=120) == 0
        assert "Another command stopped the stack." in log.read_text()
    finally:
        demo.terminate()
        demo.wait()
    _nothing_runs(shell)


def _nothing_runs(shell: Shell) -> None:
    state = str(shell.folder / "state")

    def ours() -> list[str]:
        return [
            " ".join(each.info["cmdline"] or ())
            for each in psutil.process_iter(["cmdline"])
            if state in str(each.info["cmdline"])
        ]

    wait_until_sync(lambda: not ours(), description=f"no process over {state}")
