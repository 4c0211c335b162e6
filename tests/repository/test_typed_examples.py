"""The Python of the README, the docs and the examples is correct for strict type checkers, as users' code has to be."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Without docs/integrations, whose frameworks are installed in separate environments, and Django, which has no types.
PAGES = (
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent.name != "integrations" and page.name != "django.md"
    ),
)
WRONG = """
from aftermind.sync import Agent, Memory

memory = Memory("inmemory", namespce="a")
memory.recall("x", usr_id="ann")
number: int = memory.remember("x").stored(timeout=1.0)
Agent(memory=3)
awaited: int = Agent().run("x").receipt
"""


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each example, as a module that can be checked."""
    folder = tmp_path_factory.mktemp("typed")
    for path in (ROOT / "examples").glob("*.py"):
        (folder / f"example_{path.name}").write_text(path.read_text())
    for page in PAGES:
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        if page.name == "jupyter.md":  # cells of one notebook
            blocks = ["\n".join(blocks)]
        for number, code in enumerate(blocks):
            if re.search(r"^(await|async with|async for)\b|^\w.*= await ", code, flags=re.M):
                code = f"async def main() -> None:\n{textwrap.indent(code, '    ')}"
            (folder / f"{name}_{number}.py").write_text(code)
    (folder / "wrong.py").write_text(WRONG)
    return folder


def test_pyright_strict_accepts_the_examples_and_finds_faults(snippets: Path) -> None:
    strict = {"typeCheckingMode": "strict", "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}"}
    (snippets / "pyrightconfig.json").write_text(json.dumps(strict))

    done = _run("basedpyright", "--project", str(snippets), "--pythonpath", sys.executable, "--outputjson")

    found = json.loads(done.stdout)["generalDiagnostics"]
    by_file: dict[str, list[str]] = {}
    for each in found:
        line = f"{each['range']['start']['line'] + 1}: {each['message']}"
        by_file.setdefault(Path(each["file"]).name, []).append(line)
    assert len(by_file.pop("wrong.py", [])) >= 5
    assert by_file == {}


@pytest.mark.long
def test_mypy_strict_accepts_the_examples_and_finds_faults(snippets: Path) -> None:
    files = [str(path) for path in sorted(snippets.glob("*.py"))]

    done = _run("mypy", "--strict", "--no-error-summary", "--config-file", "", "--cache-dir", str(snippets), *files)

    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len({line.split(":")[1] for line in lines if Path(line.split(":")[0]).name == "wrong.py"}) == 5
    assert [line for line in lines if Path(line.split(":")[0]).name != "wrong.py"] == []


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=110, check=False
    )
