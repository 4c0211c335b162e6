"""`pip install aftermind` has what an agent's process needs, and no more; what is missing names its extra."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import redis
from packaging.requirements import Requirement

from aftermind import extras
from aftermind.wire.queues import STORE
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database
from tests.support.valkey import running_valkey

MAX_DISTRIBUTIONS = 32
MAX_MEGABYTES = 130
MAX_MODULES = 1_100  # of an agent; 967 with Python 3.11
ABSENT = sorted({"flower", "tornado", *extras.EXTRA_OF})

# What an installation without extras cannot import is hidden from the process.
HIDE = f"""
import importlib.abc, importlib.machinery, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {ABSENT!r} else found(name, package)
"""
AGENT = """
import asyncio, os
from aftermind import Agent, Memory, Settings
from aftermind.testing import ScriptedChatModel

async def main(store):
    settings = Settings(embedder="hash", recall_budget_seconds=60, remember_budget_seconds=30)
    shared = {} if store == "inmemory" else {"broker": os.environ["BROKER"], "redis": os.environ["REDIS"]}
    async with Memory(store, **shared, settings=settings) as memory:
        receipt = await memory.remember("I prefer dark mode.", user_id="ann")
        assert not receipt.spooled
        assert "dark mode" in (await memory.recall("Which mode?", user_id="ann")).text
        assert (await Agent(model=ScriptedChatModel("Hello."), memory=memory).arun("Hi", user_id="ann")).receipt

for store in ("inmemory", os.environ["STORE"]):
    asyncio.run(main(store))
"""


def test_an_installation_without_extras_is_small() -> None:
    found = _distributions("aftermind")
    size = sum(_bytes(name) for name in found)

    assert len(found) <= MAX_DISTRIBUTIONS, sorted(found)
    assert size <= MAX_MEGABYTES * 1_000_000, {name: _bytes(name) for name in found}
    assert not found & {"alembic", "celery", "fastapi", "flower", "kombu", "openai", "uvicorn"}


def test_an_agent_loads_few_modules() -> None:
    loaded = _run(f"{HIDE}from aftermind import Agent, Memory\nimport sys; print(len(sys.modules))")

    assert int(loaded.stdout) <= MAX_MODULES


@pytest.mark.parametrize("broker", ["the Redis of turns", "another Redis"])
def test_an_agent_runs_without_any_extra(database: Database, redis_url: str, broker: str) -> None:
    with running_valkey() as other:
        at = redis_url if broker == "the Redis of turns" else other.url
        done = _run(HIDE + AGENT, STORE=database.app_url, BROKER=at, REDIS=redis_url)

        assert done.returncode == 0, done.stderr
        assert "doorbell not sent" not in done.stderr
        with redis.Redis.from_url(at) as client:
            assert client.llen(Keys().queue(STORE)) > 0


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["web"], "server"),
        (["worker"], "worker"),
        (["reconciler"], "worker"),
        (["up"], "embedded"),
        (["migrate"], "server"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    arguments: list[str], extra: str, database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = {"AFTERMIND_DATABASE_URL": database.url, "AFTERMIND_BROKER_URL": redis_url}

    done = _run(
        f"{HIDE}sys.argv[1:] = {arguments!r}\nfrom aftermind.cli import main; main()",
        cwd=tmp_path,
        **(env if arguments != ["up"] else {}),
        AFTERMIND_ALLOW_OWNER="true",
        AFTERMIND_STATE_DIR=str(tmp_path),
    )

    assert done.returncode == 2, done.stderr
    assert f"pip install 'aftermind[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_explains_itself_without_any_extra() -> None:
    done = _run(HIDE + "sys.argv[1:] = ['--help']\nfrom aftermind.cli import main; main()")

    assert "doctor" in done.stdout, done.stderr


def test_a_model_of_openai_names_its_extra() -> None:
    code = "from aftermind import Memory, Settings; Memory('inmemory', settings=Settings(openai_api_key='k'))"

    done = _run(HIDE + code)

    assert done.stderr.splitlines()[-1].startswith("aftermind.errors.ExtraMissing: package='openai'")
    assert "pip install 'aftermind[openai]'" in done.stderr


def test_every_extra_that_an_error_names_exists() -> None:
    provided = set(metadata.metadata("aftermind").get_all("Provides-Extra") or ())

    assert {*extras.EXTRA_OF.values(), "all"} <= provided


def _distributions(name: str, wanted: frozenset[str] = frozenset()) -> set[str]:
    """A distribution and all that it requires, without extras of its own."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, wanted)]
    while waiting:
        current, of_extras = waiting.pop()
        if (current, of_extras) in found:
            continue
        found.add((current, of_extras))
        for line in metadata.requires(current) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": each}) for each in ("", *of_extras)):
                waiting.append((re.sub(r"[-_.]+", "-", needed.name).lower(), frozenset(needed.extras)))
    return {each for each, _ in found}


def _bytes(name: str) -> int:
    if name == "aftermind":  # installed in place here
        packages = (Path(__file__).parents[2] / root for root in ("app", "tasks", "workers"))
        files = [path for folder in packages for path in folder.rglob("*") if "__pycache__" not in path.parts]
    else:
        files = [Path(str(each.locate())) for each in metadata.files(name) or () if each.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files if path.is_file())


def _run(code: str, *, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AFTERMIND_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env | more,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
