"""What is built is what runs: the wheel, in an empty environment outside of the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT, shell_of


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel, with the versions of the lock."""
    environment = tmp_path_factory.mktemp("environment")
    _run(sys.executable, "-m", "venv", str(environment))
    python = environment / "bin" / "python"
    lock = ROOT / "requirements.lock"
    _run(str(python), "-m", "pip", "install", "--quiet", "--constraint", str(lock), f"{wheel}[embedded]")
    return python


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
def test_an_empty_environment_with_the_wheel_has_a_working_stack(python: Path, tmp_path: Path) -> None:
    shell = shell_of(tmp_path, PYTHONSAFEPATH="1")
    aftermind = str(python.with_name("aftermind"))
    env = {**shell.env, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        up = _run(aftermind, "up", env=env, cwd=tmp_path)
        assert "postgres-replica" in up
        (tmp_path / "chat.jsonl").write_text(
            '{"user_id": "eve", "messages": [{"role": "user", "content": "I like tea."}]}'
        )
        _run(aftermind, "ingest", "chat.jsonl", env=env, cwd=tmp_path)
        assert "I like tea" in _run(aftermind, "recall", "What do I like?", "--user", "eve", env=env, cwd=tmp_path)
    finally:
        _run(aftermind, "stack", "destroy", "--yes", env=env, cwd=tmp_path)


def _run(*argv: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}:\n{done.stdout}{done.stderr}"
    return done.stdout
