"""A pytest plugin that gives a framework's own tests our implementation: `-p shim`, with the suite in `UPSTREAM_SUITE`.

It replaces names of the framework before the tests import them; no file of the framework is changed. Each object that a
test makes has a user of its own, in one Postgres.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind.db import migrate
from aftermind.integrations.conversations import run_blocking
from aftermind.stack import Stack

OURS = ("ours", "yes")  # a property of a test in the report
# A busy machine must not change a result.
BUDGETS = ("remember_budget", "redis_timeout", "recall_budget", "db_timeout", "db_connect_timeout")


def langgraph(memory: Callable[[], Memory]) -> None:
    """Where a test makes an `InMemoryStore`, it gets an `AftermindStore`."""
    from langgraph.store import memory as module

    from aftermind.integrations.langgraph import AftermindStore

    class Store(AftermindStore):
        def __init__(self, **options: Any) -> None:
            super().__init__(memory(), user_id=uuid4().hex, **options)

        def batch(self, ops: Any) -> Any:
            """In a thread: the tests make blocking calls in a running event loop, which `AftermindStore` refuses."""
            with ThreadPoolExecutor(1) as elsewhere:
                return elsewhere.submit(super().batch, ops).result()

    module.InMemoryStore = Store


def langgraph_sqlite(memory: Callable[[], Memory]) -> None:
    """Where a test opens one of SQLite's stores, it gets an `AftermindStore`; the user is its path."""
    import langgraph.store.sqlite.aio
    from langgraph.store.base import BaseStore

    from aftermind.integrations.langgraph import AftermindStore

    class Store(AftermindStore):
        @classmethod
        @contextmanager
        def from_conn_string(cls, path: str, **options: Any) -> Iterator[BaseStore]:
            yield cls(memory(), user_id=uuid4().hex if path == ":memory:" else path, **_with_fields(options))

        def setup(self) -> None:
            """Nothing: the tables are there."""

        def sweep_ttl(self) -> int:
            """Nothing: an expired item is never returned."""
            return 0

        def start_ttl_sweeper(self) -> None:
            """Nothing, as above."""

        stop_ttl_sweeper = start_ttl_sweeper

    class AsyncStore(AftermindStore):
        @classmethod
        @asynccontextmanager
        async def from_conn_string(cls, path: str, **options: Any) -> AsyncIterator[BaseStore]:
            yield cls(memory(), user_id=uuid4().hex if path == ":memory:" else path, **_with_fields(options))

        async def setup(self) -> None:
            """Nothing: the tables are there."""

        async def sweep_ttl(self) -> int:
            """Nothing: an expired item is never returned."""
            return 0

        async def start_ttl_sweeper(self) -> None:
            """Nothing, as above."""

        stop_ttl_sweeper = start_ttl_sweeper

    langgraph.store.sqlite.SqliteStore = Store
    langgraph.store.sqlite.AsyncSqliteStore = langgraph.store.sqlite.aio.AsyncSqliteStore = AsyncStore


def _with_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the index's `text_fields` of SQLite's store as `fields`, which LangGraph's own type has."""
    if "text_fields" in (options.get("index") or {}):
        index = options["index"]
        return {**options, "index": {**index, "fields": index["text_fields"]}}
    return options


def llama_index(memory: Callable[[], Memory]) -> None:
    """Where a test makes LlamaIndex's `Memory`, it gets `AftermindMemory` with a block more, of a user of its own.

    The block remembers every message. It recalls nothing but blocks, of which there are none: tests count messages.
    """
    from llama_index.core.memory import memory as module

    from aftermind.integrations.llama_index import AftermindMemory, AftermindMemoryBlock

    class ChatMemory(AftermindMemory):
        def model_post_init(self, context: Any) -> None:
            super().model_post_init(context)
            block = AftermindMemoryBlock(memory=memory(), user_id=uuid4().hex, options={"load": ["blocks"]})
            self.memory_blocks = [*self.memory_blocks, block]

    module.Memory = ChatMemory


def google_adk(memory: Callable[[], Memory]) -> None:
    """Where a test makes an `InMemoryMemoryService`, it gets ours with a namespace of its own."""
    from google.adk.memory import in_memory_memory_service as module

    from aftermind.integrations.google_adk import AftermindMemoryService

    class Service(AftermindMemoryService):
        def __init__(self) -> None:
            super().__init__(memory(), namespace=uuid4().hex)

    module.InMemoryMemoryService = Service


def tframex(memory: Callable[[], Memory]) -> None:
    """Where an app of TFrameX makes the memory of an agent, it gets ours with a user of its own."""
    from tframex import TFrameXApp

    from aftermind.integrations.tframex import AftermindMemoryStore

    class Store(AftermindMemoryStore):
        def __init__(self) -> None:
            super().__init__(memory(), session_id="s", user_id=uuid4().hex)

    TFrameXApp.__init__ = partialmethod(TFrameXApp.__init__, default_memory_store_factory=Store)


def openai_agents(memory: Callable[[], Memory]) -> None:
    """Where a test makes an `SQLiteSession`, it gets an `AftermindSession`; the user is the database's path."""
    import agents

    from aftermind.integrations.openai_agents import AftermindSession

    class Session(AftermindSession):
        def __init__(self, session_id: str, db_path: str | Path = ":memory:", **options: Any) -> None:
            user = uuid4().hex if str(db_path) == ":memory:" else str(db_path)
            super().__init__(
                session_id, memory(), user_id=user, **options
            )  # one for each: tests run loops of their own

        def close(self) -> None:
            """Nothing to close: the memory outlives the session."""

    agents.SQLiteSession = Session


def loomflow(memory: Callable[[], Memory]) -> None:
    """Where a test makes an `InMemoryMemory`, it gets an `AftermindMemory` with a namespace of its own; its facts where
    it makes an `InMemoryFactStore`."""
    import loomflow.memory
    from loomflow.memory import facts, inmemory

    from aftermind.integrations.loomflow import AftermindMemory

    class Store(AftermindMemory):
        def __init__(self, **options: Any) -> None:
            super().__init__(memory(), namespace=uuid4().hex)

    inmemory.InMemoryMemory = loomflow.memory.InMemoryMemory = loomflow.InMemoryMemory = Store
    loomflow.memory.InMemoryFactStore = facts.InMemoryFactStore = lambda **options: Store().facts


def definable(memory: Callable[[], Memory]) -> None:
    """Where a test makes a store or a `CognitiveMemory`, it gets Aftermind's, with a namespace of its own."""
    from definable.memory import memory as module
    from definable.memory.store import sqlite

    from aftermind.integrations.definable import AftermindStore, CognitiveMemory

    class Store(AftermindStore):
        def __init__(self, db_path: str = "") -> None:
            super().__init__(memory(), namespace=uuid4().hex)

    module.CognitiveMemory = CognitiveMemory
    sqlite.SQLiteMemoryStore = Store


def anthropic(memory: Callable[[], Memory]) -> None:
    """Where a test makes a tool on files, it gets ours; the user is the folder, in which it finds the files."""
    import anyio
    from anthropic.lib.tools import _beta_builtin_memory_tool as module

    from aftermind.integrations.anthropic import AftermindMemoryTool, AsyncAftermindMemoryTool

    class Folder:
        def __init__(self, base_path: str) -> None:
            super().__init__(memory(), user_id=base_path)  # type: ignore[call-arg]
            self._folder = Path(base_path)

        @property
        def base_path(self) -> Path:
            """The folder, with the files as they are now."""
            for block in run_blocking(lambda: memory().blocks.list(user_id=str(self._folder))):
                path = self._folder / block.name.removeprefix("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.content)
            return self._folder

        @property
        def memory_root(self) -> Path:
            """The folder of Claude's files."""
            root = self.base_path / "memories"
            root.mkdir(exist_ok=True)
            return root

    class Tool(Folder, AftermindMemoryTool):
        pass

    class AsyncTool(Folder, AsyncAftermindMemoryTool):
        @property
        def memory_root(self) -> Any:
            return anyio.Path(super().memory_root)

    module.BetaLocalFilesystemMemoryTool = Tool
    module.BetaAsyncLocalFilesystemMemoryTool = AsyncTool


def crewai(memory: Callable[[], Memory]) -> None:
    """Where a test or CrewAI makes a `LanceDBStorage`, it gets ours; the user is its path."""
    from crewai.memory.storage import lancedb_storage

    from aftermind.integrations.crewai import AftermindStorage

    class Storage(AftermindStorage):
        def __init__(self, path: str | Path | None = None, **options: Any) -> None:
            super().__init__(memory(), user_id=str(path or uuid4().hex))

    lancedb_storage.LanceDBStorage = Storage


def strands(memory: Callable[[], Memory]) -> None:
    """Where a test makes an `InMemoryStorage`, it gets ours with a user of its own."""
    import strands.storage

    from aftermind.integrations.strands import AftermindStorage

    class Storage(AftermindStorage):
        def __init__(self, **options: Any) -> None:
            super().__init__(memory(), user_id=uuid4().hex)

        async def list(self, query: str = "") -> list[str]:
            return await super().list(query)  # without a prefix, as the tests do

    strands.storage.InMemoryStorage = strands.storage.in_memory_storage.InMemoryStorage = Storage


def upsonic(memory: Callable[[], Memory]) -> None:
    """Where a test makes Upsonic's `Memory`, `Chat` or a storage, it gets ours with a namespace of its own."""
    import upsonic
    import upsonic.storage

    from aftermind.integrations.upsonic import AftermindStorage, Chat
    from aftermind.integrations.upsonic import Memory as UpsonicMemory

    class Storage(AftermindStorage):
        def __init__(self, **options: Any) -> None:
            super().__init__(memory(), namespace=uuid4().hex)

    class StoredChat(Chat):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, storage=Storage(), **options)

    upsonic.storage.Memory = UpsonicMemory
    upsonic.storage.InMemoryStorage = upsonic.storage.SqliteStorage = Storage
    upsonic.Chat = StoredChat


SUITES = {
    "anthropic": anthropic,
    "crewai": crewai,
    "definable": definable,
    "google-adk": google_adk,
    "langgraph": langgraph,
    "langgraph-sqlite": langgraph_sqlite,
    "llama-index": llama_index,
    "loomflow": loomflow,
    "openai-agents": openai_agents,
    "strands": strands,
    "tframex": tframex,
    "upsonic": upsonic,
}


MADE: list[Memory] = []  # in the test that runs


def pytest_runtest_setup() -> None:
    """Forget what the test before has made."""
    MADE.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    """Mark a test that has made one of Aftermind's objects: only these count."""
    if MADE and OURS not in item.user_properties:
        item.user_properties.append(OURS)


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, and replace the names."""
    folder = tempfile.TemporaryDirectory()
    stack = Stack(Path(folder.name) / "stack", replica=False)
    endpoints = stack.up()
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(stack.destroy)
    asyncio.run(migrate.apply(endpoints.postgres_url))
    patient: dict[str, Any] = {f"{name}_seconds": 240.0 for name in BUDGETS}  # Any: keywords of settings
    settings = Settings(
        database_url=endpoints.app_url,
        broker_url=endpoints.redis_url,
        state_dir=Path(folder.name) / "state",
        embedder="off",
        **patient,
    )

    def make() -> Memory:
        MADE.append(Memory(settings=settings))
        return MADE[-1]

    SUITES[os.environ["UPSTREAM_SUITE"]](make)
