"""The README's Python runs as it stands, and every command that it names exists."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aftermind.cli import FAMILIES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
# The first recall of a process counts against its budget what it loads; on a starved machine it would show nothing.
UNHURRIED = {"AFTERMIND_RECALL_BUDGET_SECONDS": "10"}
SHELL = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = sorted({match for block in SHELL for match in re.findall(r"^aftermind (\w+)", block, flags=re.MULTILINE)})
TARGETS = sorted({match for block in SHELL for match in re.findall(r"^make (\w+)", block, flags=re.MULTILINE)})


def test_there_is_something_to_test() -> None:
    assert len(PYTHON) >= 3
    assert {"up", "ingest", "recall", "facts", "doctor", "down"} <= set(COMMANDS)


@pytest.mark.parametrize("snippet", PYTHON, ids=range(len(PYTHON)))
def test_a_snippet_of_the_readme_runs(snippet: str, tmp_path: Path) -> None:
    """`Memory()` needs a stack; what is shown is the same for a store inside the process."""
    code = snippet.replace("Memory()", 'Memory("inmemory")')
    if "await " in code or "async with" in code:
        code = f"import asyncio\nasync def main():\n{textwrap.indent(code, '    ')}\nasyncio.run(main())"

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=tmp_path,
        env=os.environ | UNHURRIED,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it shows what it found"


def test_the_commands_of_the_readme_exist() -> None:
    assert set(COMMANDS) <= {command for commands in FAMILIES.values() for command in commands}


def test_the_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert [name for name in TARGETS if f"\n{name}:" not in makefile] == []


def test_the_files_that_the_readme_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]

    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
