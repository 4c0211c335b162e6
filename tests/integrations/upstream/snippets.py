"""Run the snippets of a framework's documentation with our drop-in: `python snippets.py NAME FOLDER`.

FOLDER has pages in Markdown, as the framework publishes them; they are not part of this project. Every snippet runs
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
COUNTED = re.compile("memory|chat|user_id", re.IGNORECASE)  # in the snippet, or in the path of its page
PAGES_AT_ONCE = 3  # each is a process
RESULTS = HERE / "snippets.json"
ROOT = HERE.parents[2]


def main(name: str, folder: Path) -> int:
    """Run all pages, print what fails with ours alone, and keep the counts."""
    pages = [each for each in sorted(folder.rglob("*.md*")) if each.is_file() and snippets(each)]
    with scripted_openai() as server, ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        started = {
            each: [pool.submit(run_page, name, each, server.url, theirs=theirs) for theirs in (True, False)]
            for each in pages
        }
        runs = {each: [future.result() for future in futures] for each, futures in started.items()}
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


def run_page(name: str, page: Path, url: str, *, theirs: bool) -> tuple[list[str | None], int]:
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
                timeout=60 + count * SECONDS,
                check=False,
            )
            last = "".join(done.stderr.strip().splitlines()[-1:]) or last
        except subprocess.TimeoutExpired:
            last = "the process did not end"
        found = json.loads(result.read_text()) if result.exists() else {}
        errors: list[str | None] = found.get("errors", [])
        return errors + [last] * (count - len(errors)), int(found.get("turns", 0))


def version_of(name: str) -> str:
    """The version that the environment has."""
    pins = (HERE.parent / "environments" / f"{name}.txt").read_text().splitlines()
    return next(line for line in pins if line.startswith(f"{name}==")).removesuffix(" \\").partition("==")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
