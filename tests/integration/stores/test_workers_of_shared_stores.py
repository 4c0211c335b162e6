"""`aftermind worker` on stores of several processes: agents leave jobs to it, and nothing is lost when it is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aftermind import errors
from tests.integration.stores.test_stored_memory import ROOT, SHARED_URLS, memory_at
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return SHARED_URLS[request.param](tmp_path, request.getfixturevalue)


@contextmanager
def worker(url: str, folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    named = {
        "DATABASE_URL": url,
        "STATE_DIR": str(folder / "state"),
        "EMBEDDER": "hash",
        "EXTRACT_QUIET_SECONDS": "0.1",
    }
    environment = {**os.environ, **{f"AFTERMIND_{name}": value for name, value in named.items()}}
    process = subprocess.Popen([sys.executable, "-m", "aftermind.cli", "worker"], cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_agents_leave_jobs_to_a_worker(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path, run_jobs=False) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice")
        assert "Oslo" in (await memory.recall("Where do I live?", user_id="alice")).text
        assert (await memory.progress(user_id="alice")).pending_turns == 1

        with worker(url, tmp_path) as process:
            await receipt.extracted(timeout=PATIENCE_SECONDS)
            assert [fact.object for fact in await memory.facts.query(user_id="alice")] == ["Oslo"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


async def test_nothing_is_lost_or_doubled_when_workers_are_killed(url: str, tmp_path: Path) -> None:
    texts = [f"turn {number}" for number in range(30)]
    async with memory_at(url, tmp_path, run_jobs=False) as memory:
        receipts = []
        for start in range(0, len(texts), 10):
            with worker(url, tmp_path):
                receipts += [
                    await memory.remember(text, user_id="alice", session_id="s") for text in texts[start : start + 10]
                ]
                await receipts[start].stored(timeout=PATIENCE_SECONDS)  # it is killed in its work, as a rule
        with worker(url, tmp_path):
            for receipt in receipts:
                await receipt.stored(timeout=PATIENCE_SECONDS)
        stored = [each.content for each in await memory.history(user_id="alice", limit=100)]

    assert stored == texts
    assert max(Counter(stored).values()) == 1


def test_a_store_of_one_process_keeps_its_jobs(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="only stores of several processes"):
        asyncio.run(memory_at(f"json:{tmp_path}/bot", tmp_path, run_jobs=False).remember("x", user_id="alice"))
