"""The command as a user runs it: by subprocess, over a stack of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fork_server import run_module
from tests.support.waiting import PATIENCE_SECONDS, PATIENT_SETTINGS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command said, and with which exit code it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Runs commands in one folder, with the settings of one stack."""

    folder: Path
    env: Mapping[str, str]

    def run(self, *argv: str, timeout: float = PATIENCE_SECONDS) -> CommandResult:
        """`aftermind` with these arguments."""
        done = run_module(["aftermind.cli", *argv], cwd=self.folder, env=self.env, timeout=timeout)
        return CommandResult(code=done.returncode, out=done.stdout, err=done.stderr)

    def must(self, *argv: str, timeout: float = PATIENCE_SECONDS) -> str:
        """The same, for a command that has to succeed."""
        answered = self.run(*argv, timeout=timeout)
        assert answered.code == 0, (
            f"aftermind {' '.join(argv)} ended with {answered.code}:\n{answered.out}{answered.err}"
        )
        return answered.out


def shell_of(folder: Path, **settings: str) -> Shell:
    """A shell whose stack lies in `folder`, on ports of its own."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("AFTERMIND_", "OPENAI_", "FLOWER_"))
    }
    ours = {
        "AFTERMIND_STATE_DIR": str(folder / "state"),
        "AFTERMIND_WEB_PORT": "0",
        "AFTERMIND_FLOWER_PORT": "0",
        "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.5",
        "AFTERMIND_RECONCILE_SECONDS": "0.5",
        "COLUMNS": "160",
        **PATIENT_SETTINGS,
        **settings,
    }
    return Shell(folder=folder, env={**clean, **ours})


@pytest.fixture(scope="session")
def aftermind() -> list[str]:
    """The `aftermind` command of this environment."""
    return [sys.executable, "-m", "aftermind.cli"]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell over a whole stack that is up, as `aftermind up` leaves it."""
    opened = shell_of(tmp_path_factory.mktemp("acceptance"))
    try:
        opened.must("up")
        yield opened
    finally:
        opened.run("stack", "destroy", "--yes")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run_to_end(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel, and of the lock what the wheel requires."""
    environment = tmp_path_factory.mktemp("environment")
    run_to_end(sys.executable, "-m", "venv", str(environment))
    python = environment / "bin" / "python"
    pip = (str(python), "-m", "pip", "install", "--quiet")
    constraints = tmp_path_factory.mktemp("constraints") / "constraints.txt"  # pip takes no hashes for a local wheel
    lock = (ROOT / "requirements.lock").read_text()
    constraints.write_text("\n".join(re.findall(r"^([\w.-]+==.*) \\$", lock, re.MULTILINE)))
    run_to_end(*pip, "--constraint", str(constraints), f"{wheel}[embedded]")
    return python


def run_to_end(*argv: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """A command that has to succeed; its output."""
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}:\n{done.stdout}{done.stderr}"
    return done.stdout
