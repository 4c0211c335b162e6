"""The former release: its code as the repository's history has it, run beside this one's as a deployment does."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "tasks", "workers")
# No release was tagged yet. This is the last commit whose schema is 0009: what came then gives facts terms, lets their
# lexemes be NULL and keeps claims (0010, 0011), so agents and workers of either side write what the other has not.
FORMER = "de5b26ebc627809976aea3d949305a77ecc90506"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Which code a process runs: `path` is its PYTHONPATH, None this checkout's as it is installed."""

    name: str
    path: str | None = None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment in which a process runs this code."""
        clean = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        return clean if self.path is None else {**clean, "PYTHONPATH": self.path}

    def files(self, folder: Path) -> list[str]:
        """Where a process of it finds each package: whether it is that code that runs."""
        told = "import aftermind, aftermind_tasks, aftermind_workers as w; "
        told += "print(aftermind.__file__, aftermind_tasks.__file__, w.__file__)"
        argv = [sys.executable, "-c", told]
        env = self.environment(os.environ)
        return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


NEW = Release(name="new")


def former(folder: Path) -> Release:
    """The former release, unpacked into a folder. Skips where there is no history to have it from."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("the former release is a commit of the history, and there is no git or no history here")
    packed = subprocess.run([git, "archive", FORMER, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the history here does not have {FORMER[:9]} (a shallow clone?): {packed.stderr.decode()[:200]}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Release(name="former", path=os.pathsep.join(str(folder / name) for name in PACKAGES))
