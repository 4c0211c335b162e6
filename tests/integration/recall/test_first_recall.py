"""The first recall of a process, whose embedder has a second's worth of modules to load: each test is a process."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aftermind import Memory
from tests.support.cpu_time import slowness
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database

BUDGET = 1.0  # seconds that a recall waits for the question's vector
PRELUDE = """
import asyncio, json, sys, threading, time
from importlib.machinery import PathFinder
from aftermind import Memory, sync
from aftermind.api import blocking_portal as portal
from aftermind.recall import query_embeddings

heavy = "sentence_transformers" if len(sys.argv) > 1 else "openai"

class SlowDisk:
    begun, go = threading.Event(), threading.Event()

    def find_spec(self, name, path=None, target=None):
        if name == heavy:
            found = PathFinder.find_spec(name, path)
            self.run, found.loader.exec_module = found.loader.exec_module, self.exec_module
            return found

    def exec_module(self, module):
        self.begun.set()
        self.go.wait(20)
        self.run(module)

disk = SlowDisk()
sys.meta_path.insert(0, disk)

def is_loaded():
    return heavy in sys.modules and not getattr(sys.modules[heavy].__spec__, "_initializing", False)

def preparing():
    return [task for task in asyncio.all_tasks() if task.get_name() == "aftermind embedder"]

def tell(**told):
    print(json.dumps(told))
"""


async def told(code: str, *argv: str, store: str = "inmemory", **env: str) -> Any:  # Any: JSON
    """What a process says whose embedder is OpenAI's."""
    with scripted_openai() as model:
        known = {
            "AFTERMIND_DATABASE_URL": store,
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "AFTERMIND_QUERY_EMBEDDING_BUDGET_SECONDS": str(BUDGET),
            "AFTERMIND_RECALL_BUDGET_SECONDS": "10",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
        }
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", PRELUDE + code, *argv],
            env={**os.environ, **known, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


LATER = """
longest, run = 0.0, asyncio.Handle._run

def timed(handle):
    global longest
    started = time.thread_time()
    run(handle)
    longest = max(longest, time.thread_time() - started)

async def main():
    async with Memory() as memory:
        asyncio.Handle._run = timed
        disk.go.set()
        while preparing():
            await asyncio.sleep(0.01)
        asyncio.Handle._run = run
        loaded = is_loaded()
        block = await memory.recall("Which boat do I own?", user_id="alice")
    tell(loaded=loaded, longest=longest, degraded=block.degraded)

asyncio.run(main())
"""


async def test_the_first_recall_of_an_open_memory_has_its_questions_vector(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """What it takes is loaded beside the loop, which is held up by none of it."""
    at = {"AFTERMIND_BROKER_URL": redis_url, "AFTERMIND_STATE_DIR": str(tmp_path)}
    seen = await told(LATER, store=database.app_url, **at)

    assert seen["loaded"]
    assert seen["degraded"] is None
    assert seen["longest"] < 0.25 * slowness()


AT_ONCE = """
async def main():
    async with Memory() as memory:
        block = await memory.recall("Which boat do I own?", user_id="alice")
        tell(loaded=is_loaded(), degraded=block.degraded)
        disk.go.set()

asyncio.run(main())
"""


async def test_a_recall_at_once_is_answered_by_words_and_does_not_wait() -> None:
    seen = await told(AT_ONCE)

    assert not seen["loaded"]
    assert seen["degraded"].endswith("3-small:384 is being loaded: only a lexical search was made")


ENDS = """
async def main():
    query_embeddings.PREPARE_AFTER_SECONDS *= 100
    started = time.monotonic()
    async with Memory() as memory:
        await memory.remember("I own a boat.", user_id="alice")
    tell(quick=time.monotonic() - started < 20, begun=disk.begun.is_set(), tasks=len(asyncio.all_tasks()))

asyncio.run(main())
"""


async def test_a_process_that_is_gone_before_loads_nothing(database: Database, redis_url: str, tmp_path: Path) -> None:
    at = {"AFTERMIND_BROKER_URL": redis_url, "AFTERMIND_STATE_DIR": str(tmp_path)}

    assert await told(ENDS, store=database.app_url, **at) == {"quick": True, "begun": False, "tasks": 1}


MEANWHILE = """
async def main():
    async with Memory():
        await asyncio.to_thread(disk.begun.wait, 20)
        asyncio.get_running_loop().call_later(1, disk.go.set)
    tell(loaded=is_loaded(), tasks=len(asyncio.all_tasks()))

asyncio.run(main())
"""


async def test_closing_leaves_nothing_behind_that_still_loads() -> None:
    """Nobody can stop an import: it is waited for."""
    assert await told(MEANWHILE) == {"loaded": True, "tasks": 1}


WITHOUT_AWAIT = """
async def is_preparing():
    return bool(preparing())

disk.go.set()
with sync.Memory() as memory:
    while portal.call(is_preparing):
        time.sleep(0.01)
    tell(loaded=is_loaded(), degraded=memory.recall("Which boat do I own?", user_id="alice").degraded)
"""


async def test_the_same_without_await() -> None:
    assert await told(WITHOUT_AWAIT) == {"loaded": True, "degraded": None}


LOCAL = """
import numpy as np

class SentenceTransformer:
    def __init__(self, folder, device):
        pass

    def get_embedding_dimension(self):
        return 4

    def encode(self, texts, **how):
        return np.ones((len(texts), 4), dtype=np.float32)
"""


async def test_a_model_of_this_machine_is_loaded_before_the_first_recall(tmp_path: Path) -> None:
    """The library is an extra, and not here: something stands for it."""
    (tmp_path / "sentence_transformers.py").write_text(LOCAL)
    at = {"AFTERMIND_EMBEDDER": f"local:{tmp_path}", "PYTHONPATH": str(tmp_path)}

    later, at_once = await told(LATER, "local", **at), await told(AT_ONCE, "local", **at)

    assert (later["loaded"], later["degraded"]) == (True, None)
    assert at_once["degraded"] == f"local:{tmp_path} is being loaded: only a lexical search was made"


@pytest.mark.parametrize("embedder", ["hash", "off"])
async def test_an_embedder_that_has_nothing_to_load_is_not_prepared(
    embedder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERMIND_EMBEDDER", embedder)
    before = asyncio.all_tasks()

    async with Memory("inmemory"):
        assert asyncio.all_tasks() == before
