"""The quick start, block by block, as a reader runs it: commands and Python on a stack of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Shell, shell_of

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = shell_of(tmp_path)
    yield made
    made.run("stack", "destroy", "--yes")


def test_every_block_of_the_quick_start_runs_in_its_order(shell: Shell) -> None:
    shown: list[str] = []
    for kind, text in BLOCKS:
        if kind == "python":
            shown.append(_python(shell, text))
        else:
            lines = [line for line in text.splitlines() if line.startswith("aftermind ")]
            shown += [shell.must(*_words(line)) for line in lines]

    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    everything = "\n".join(shown)
    assert "Oslo" in everything
    assert "Flower" in everything


def _python(shell: Shell, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shell.folder,
        env=dict(shell.env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "<" in done.stdout, "a block for a system prompt"
    assert "lives" in done.stdout or "Oslo" in done.stdout
    return done.stdout


def _words(line: str) -> list[str]:
    return [quoted or word for quoted, word in re.findall(r'"([^"]*)"|(\S+)', line)][1:]
