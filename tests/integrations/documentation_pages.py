"""The Python of a documentation page, run in an environment that has only what the page tells to install."""

import os
import re
import shlex
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

DOCS = Path(__file__).parents[2] / "docs/integrations"
# A busy machine must not change what an example shows.
UNHURRIED = {"AFTERMIND_RECALL_BUDGET_SECONDS": "30", "AFTERMIND_REMEMBER_BUDGET_SECONDS": "30"}


def examples(page: str) -> list[str]:
    """The Python of each example of the page."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def run_examples(page: str, folder: Path) -> list[str]:
    """What each example of the page prints. Raises `AssertionError` for one that fails or prints nothing."""
    lines = re.findall(r"^pip install (.+)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    python = make_environment([name for line in lines for name in shlex.split(line)], folder / "environment")
    shown = []
    for code in examples(page):
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=folder,
            env=os.environ | UNHURRIED,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), code
        shown.append(done.stdout)
    return shown


def make_environment(names: Iterable[str], folder: Path) -> Path:
    """The Python of a new environment with these distributions and those that they require, linked from this one."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    owners = Counter(top for each in distributions() for top in _tops(each))
    for each in _required(names):
        shared = {top for top in _tops(each) if owners[top] > 1}  # a namespace: `google`, `opentelemetry`
        files = [file for file in each.files or () if file.parts[0] in shared]
        for path in (*(_tops(each) - shared), *files):
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).symlink_to(Path(str(each.locate_file(path))))
    return folder / "bin" / "python"


def _required(names: Iterable[str]) -> list[Distribution]:
    """The distributions of requirements, with those that they require themselves."""
    waiting, found, seen = [Requirement(each) for each in names], dict[str, Distribution](), set[tuple[str, str]]()
    while waiting:
        wanted = waiting.pop()
        for extra in {"", *wanted.extras}:
            if (wanted.name, extra) in seen:
                continue
            seen.add((wanted.name, extra))
            one = distribution(wanted.name)
            found[one.name] = one
            given = map(Requirement, one.requires or ())
            waiting += [each for each in given if each.marker is None or each.marker.evaluate({"extra": extra})]
    return list(found.values())


def _tops(each: Distribution) -> set[str]:
    """The folders and files of a distribution in `site-packages`."""
    return {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__")}
