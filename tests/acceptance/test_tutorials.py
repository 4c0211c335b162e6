"""Each tutorial as a reader follows it: its file, its command, its requests, on a stack that is up."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from aftermind.stack import ports
from tests.acceptance.conftest import Shell
from tests.support.waiting import PATIENCE_SECONDS, wait_until_sync

pytestmark = pytest.mark.long

PAGES = Path(__file__).parents[2] / "docs" / "tutorials"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (PAGES / f"{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)


@contextmanager
def application(shell: Shell, folder: Path, page: str) -> Iterator[str]:
    """The tutorial's application, started by its first command on another port; its address."""
    (code,), command = blocks(page, "python"), blocks(page, "sh")[0].splitlines()[0]
    (folder / "shop.py").write_text(code)
    (port,) = ports.choose(1)
    name, *rest = shlex.split(command.replace("8000", str(port)))
    argv = [sys.executable, *rest] if name == "python" else [sys.executable, "-m", name, *rest]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, env=dict(shell.env), stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _answers(url):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "the application does not answer"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=1)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize("page", ["fastapi", "flask", "django"])
def test_the_application_of_a_tutorial_remembers_its_users(shell: Shell, tmp_path: Path, page: str) -> None:
    with application(shell, tmp_path, page) as url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        said = client.post(f"/chat/{page}", json={"text": "I am allergic to nuts."})
        asked = client.post(f"/chat/{page}", json={"text": "What am I allergic to?"})
        other = client.post(f"/chat/another-user-{page}", json={"text": "What am I allergic to?"})

        assert (said.status_code, asked.status_code) == (200, 200), (tmp_path / "log").read_text()
        assert "allergic to nuts" in asked.json()["context"]
        assert "nuts" not in other.text


def test_an_empty_text_is_a_problem_that_the_flask_tutorial_names(shell: Shell, tmp_path: Path) -> None:
    with application(shell, tmp_path, "flask") as url:
        empty = httpx.post(f"{url}/chat/flask", json={"text": ""}, timeout=PATIENCE_SECONDS)

    assert empty.status_code == 422, (tmp_path / "log").read_text()
    assert empty.json()["detail"]


def test_a_repeated_request_of_the_fastapi_tutorial_is_one_turn(shell: Shell, tmp_path: Path) -> None:
    with application(shell, tmp_path, "fastapi") as url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        answers = [
            client.post("/chat/repeating", json={"text": "I like opera."}, headers={"Idempotency-Key": "k1"}).json()
            for _ in range(2)
        ]

    def stored() -> list[str]:
        return [each["content"] for each in json.loads(shell.must("export", "--user", "repeating"))["episodes"]]

    assert answers[0]["answer"] != answers[1]["answer"]
    assert wait_until_sync(stored, description="the turn is stored") == ["I like opera.", answers[0]["answer"]]


def test_the_browser_of_the_fastapi_tutorial_sees_that_a_message_was_processed(shell: Shell, tmp_path: Path) -> None:
    with application(shell, tmp_path, "fastapi") as url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        page = client.get("/").text
        named = set(re.findall(r'"(MemoryUpdate\w+)"', page))
        with client.stream("GET", "/events/browser") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: "), "the position, for a browser that is disconnected before an event"
            client.post("/chat/browser", json={"text": "I moved to Oslo."})
            events = set()
            for line in lines:
                if line.startswith("event: "):
                    events.add(line.removeprefix("event: "))
                if "MemoryUpdateCompleted" in events:
                    break

    assert "MemoryUpdateStarted" in named & events
    assert "MemoryUpdateCompleted" in named & events


CELLS = """
import asyncio, json, sys
from IPython.core.interactiveshell import InteractiveShell

async def main():
    shell = InteractiveShell()
    for cell in json.load(sys.stdin):
        ran = await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))
        ran.raise_error()
        if hasattr(ran.result, "_repr_html_"):
            print(ran.result._repr_html_())
        elif ran.result is not None:
            print(ran.result)

asyncio.run(main())
"""


def test_the_cells_of_the_jupyter_tutorial_run_in_their_order(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CELLS],
        cwd=tmp_path,
        input=json.dumps(blocks("jupyter", "python")),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "<table" in done.stdout, "a block is shown as a table"
    assert "Oslo" in done.stdout
