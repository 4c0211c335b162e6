"""What is built is what runs: the wheel, in an empty environment outside of the checkout."""

import os
import zipfile
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT, run_to_end, shell_of


def test_the_wheel_holds_the_three_packages_and_everything_beside_the_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    beside = {
        str(path.relative_to(ROOT / root))
        for root in ("app", "tasks", "workers")
        for path in (ROOT / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert beside <= names
    assert {name.split("/")[0] for name in names if "/" in name} - {
        "aftermind",
        "aftermind_tasks",
        "aftermind_workers",
    } == {next(name.split("/")[0] for name in names if ".dist-info/" in name)}


@pytest.mark.timeout(600)
@pytest.mark.long
def test_an_empty_environment_with_the_wheel_has_a_working_stack(wheel_python: Path, tmp_path: Path) -> None:
    shell = shell_of(tmp_path, PYTHONSAFEPATH="1")
    aftermind = str(wheel_python.with_name("aftermind"))
    env = {**shell.env, "PATH": f"{wheel_python.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        up = run_to_end(aftermind, "up", env=env, cwd=tmp_path)
        assert "postgres-replica" in up
        (tmp_path / "chat.jsonl").write_text(
            '{"user_id": "eve", "messages": [{"role": "user", "content": "I like tea."}]}'
        )
        run_to_end(aftermind, "ingest", "chat.jsonl", env=env, cwd=tmp_path)
        assert "I like tea" in run_to_end(
            aftermind, "recall", "What do I like?", "--user", "eve", env=env, cwd=tmp_path
        )
    finally:
        run_to_end(aftermind, "stack", "destroy", "--yes", env=env, cwd=tmp_path)
