"""Run the snippets of a framework's documentation with our drop-in: `python snippets.py NAME FOLDER`.

FOLDER has the framework's documentation, a checkout of `SOURCES`; it is not part of this project. Every snippet runs
twice, with the framework's own memory and with ours, and a scripted server answers in place of OpenAI. Those about
memory count. One that fails with the framework's own too is no measure of ours: a signature, a placeholder, a name that
a release has removed, or a service that is not there. The result goes into `snippets.json`, of which `docs/generate.py`
makes a table.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from snippet_page import SECONDS, snippets

from tests.support.scripted_openai import scripted_openai

HERE = Path(__file__).parent
# The repository, and the pages in it that run.
SOURCES = {
    "definable": (
        "definableai/definable.ai, tag v0.2.8",
        r"README|definable/(memory/README|examples/README|docs/(memory/|agents/|examples/memory|quickstart))",
    ),
    "loomflow": ("the README of the release", "README"),
    "tframex": ("TesslateAI/TFrameX", "docs-site/docs/(api|concepts)/memory"),
    "upsonic": (
        "Upsonic/Docs",
        "(concepts|reference)/(memory|chat|storage)"
        "|.*/(adding-a-memory|memory-(integration|modes|manager)|6-integrate-a-memory)",
    ),
}
COUNTED = re.compile("memory|chat|user_id", re.IGNORECASE)  # in the snippet, or in the path of its page
PAGES_AT_ONCE = 3  # each is a process
DID_NOT_END = "did not end"
SECONDS_ALONE = 4 * SECONDS  # of a page that did not end with ours alone: another try, with no other page
RESULTS = HERE / "snippets.json"
ROOT = HERE.parents[2]


def main(name: str, folder: Path) -> int:
    """Run all pages, print what fails with ours alone, and keep the counts."""
    source, wanted = SOURCES[name]
    found = [each for each in sorted(folder.rglob("*.md*")) if re.match(wanted, str(each.relative_to(folder)))]
    pages = [each for each in found if each.is_file() and snippets(each)]
    with scripted_openai() as server, ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        started = {
            each: [pool.submit(run_page, name, each, server.url, theirs=theirs) for theirs in (True, False)]
            for each in pages
        }
        runs = {each: [future.result() for future in futures] for each, futures in started.items()}
        for page, ((theirs, _), (ours, _)) in runs.items():
            if any(their is None and DID_NOT_END in (our or "") for their, our in zip(theirs, ours, strict=True)):
                runs[page][1] = run_page(name, page, server.url, theirs=False, seconds=SECONDS_ALONE)
    counted = [
        (f"{page.relative_to(folder)} {number}", their, our)
        for page, ((theirs, _), (ours, _)) in runs.items()
        for number, (code, their, our) in enumerate(zip(snippets(page), theirs, ours, strict=True), 1)
        if COUNTED.search(str(page.relative_to(folder))) or COUNTED.search(code)
    ]
    for place, their, our in counted:
        sys.stdout.write(f"{place}: theirs {their or 'ok'} | ours {our or 'ok'}\n")
    valid = [(place, our) for place, their, our in counted if their is None]
    failed = [f"{place}: {our}" for place, our in valid if our is not None]
    result = {
        "version": version_of(name),
        "source": source,
        "snippets": len(counted),
        "total": len(valid),
        "passed": len(valid) - len(failed),
        "failed": failed,
        "turns": sum(turns for _, (_, turns) in runs.values()),
        "date": datetime.now(UTC).date().isoformat(),
    }
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(dict(sorted((results | {name: result}).items())), indent=1) + "\n")
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0 if not failed else 1


def run_page(name: str, page: Path, url: str, *, theirs: bool, seconds: int = SECONDS) -> tuple[list[str | None], int]:
    """The error of each snippet of a page, None where there is none; and the turns that Aftermind was handed."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        given = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "key",
            "AFTERMIND_DATABASE_URL": "inmemory",
            "AFTERMIND_BROKER_URL": "redis://localhost:6379/0",  # a store in Postgres needs one
            "AFTERMIND_STATE_DIR": f"{scratch}/state",
            "PYTHONPATH": str(ROOT),
            "SNIPPET_SECONDS": str(seconds),
        }
        python = ROOT / ".integrations" / name / "bin" / "python"
        command = [str(python), str(HERE / "snippet_page.py"), name, str(page.resolve()), str(result)]
        count = len(snippets(page))
        last = "the process ended"
        try:
            done = subprocess.run(
                [*command, "--theirs"] if theirs else command,
                cwd=scratch,
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120 + count * seconds,
                check=False,
            )
            last = "".join(done.stderr.strip().splitlines()[-1:]) or last
        except subprocess.TimeoutExpired:
            last = f"the process {DID_NOT_END}"
        found = json.loads(result.read_text()) if result.exists() else {}
        errors: list[str | None] = found.get("errors", [])
        return errors + [last] * (count - len(errors)), int(found.get("turns", 0))


def version_of(name: str) -> str:
    """The version that the environment has."""
    pins = (HERE.parent / "environments" / f"{name}.txt").read_text().splitlines()
    return next(line for line in pins if line.startswith(f"{name}==")).removesuffix(" \\").partition("==")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
