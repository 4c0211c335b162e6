"""Every numbered example runs as it stands, in an empty folder, and shows something."""

import os
from pathlib import Path

import pytest

from tests.support.fork_server import run_module

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def test_the_examples_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    folders = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": folders}
    done = run_module([f"examples.{path.stem}"], env=env, cwd=tmp_path, timeout=180)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
