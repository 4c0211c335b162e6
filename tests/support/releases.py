"""Three releases: this tree, a synthetic next one with another schema, and the one after it, which contracts it.

The next release is a copy of this tree with the migrations in `next_release/` and the code changed to match: it reads a
new column of episodes, and it reads and writes `extractions.mined_by` where this tree has `extractions.extractor`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "tasks", "workers")
MIGRATIONS = Path("app/aftermind/db/migrations/versions")
NEXT, AFTER = Path(__file__).with_name("next_release"), Path(__file__).with_name("release_after")

_TABLE = r'(EXTRACTIONS = Table\((?:(?!\n\)).)*)Column\("extractor", Text'
_EDITS = (
    (_TABLE, r'\1Column("mined_by", Text, key="extractor"'),
    (r"(INSERT INTO aftermind\.extractions \([^)]*)\bextractor\b", r"\1mined_by"),
    (r"\bextractor = excluded\.extractor\b", "mined_by = excluded.mined_by"),
    (r"\bmined\.extractor,", "mined.mined_by AS extractor,"),
    (r'(EPISODES = Table\((?:(?!\n\)).)*Column\("role", Text, nullable=False\),)', r'\1 Column("channel", Text),'),
)
_HEAD = r'\bHEAD = "\w+"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Which code a process runs: `path` is its PYTHONPATH, None for this tree as it is installed."""

    name: str
    path: str | None = None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment in which a process runs this code."""
        clean = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        return clean if self.path is None else {**clean, "PYTHONPATH": self.path}

    def imported_files(self, folder: Path) -> list[str]:
        """The file of each package that a process of this release imports."""
        code = "import aftermind, aftermind_tasks, aftermind_workers as w; "
        code += "print(aftermind.__file__, aftermind_tasks.__file__, w.__file__)"
        argv = [sys.executable, "-c", code]
        env = self.environment(os.environ)
        return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


PREVIOUS = Release(name="previous")


def next_release(folder: Path) -> Release:
    """The synthetic next release, written into a folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    _replace(folder, *_EDITS)
    return _with_migrations(folder, NEXT, name="newer")


def release_after(folder: Path) -> Release:
    """The release after the next one: the same code, and the migrations that contract the schema."""
    next_release(folder)
    return _with_migrations(folder, AFTER, name="after")


def _with_migrations(folder: Path, migrations: Path, *, name: str) -> Release:
    files = sorted(migrations.glob("*.py"))
    for file in files:
        shutil.copy(file, folder / MIGRATIONS)
    _replace(folder, (_HEAD, f'HEAD = "{files[-1].stem}"'))
    return Release(name=name, path=os.pathsep.join(str(folder / package) for package in PACKAGES))


def _replace(folder: Path, *edits: tuple[str, str]) -> None:
    """Apply each edit to every file. An edit that matches nothing is an error: the tree has changed under it."""
    files = {path: path.read_text() for path in folder.rglob("*.py") if "migrations" not in path.parts}
    for pattern, replacement in edits:
        counts = 0
        for path, text in files.items():
            files[path], count = re.subn(pattern, replacement, text, flags=re.DOTALL)
            counts += count
            if count:
                path.write_text(files[path])
        assert counts, f"nothing in the tree matches {pattern}"
