"""A pytest plugin that gives a framework's own tests our implementation: `-p shim`, with the suite in `UPSTREAM_SUITE`.

It replaces names of the framework before the tests import them; no file of the framework is changed. Each object that a
test makes has a user of its own, in one Postgres.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from aftermind.db import migrate
from aftermind.integrations.conversations import run_blocking
from aftermind.stack import Stack

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
    from loomflow.memory import inmemory

    from aftermind.integrations.loomflow import AftermindMemory

    class Store(AftermindMemory):
        def __init__(self, **options: Any) -> None:
            super().__init__(memory(), namespace=uuid4().hex)

    inmemory.InMemoryMemory = loomflow.memory.InMemoryMemory = Store
    loomflow.memory.InMemoryFactStore = lambda: Store().facts


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

    strands.storage.InMemoryStorage = Storage


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
    "langgraph": langgraph,
    "loomflow": loomflow,
    "openai-agents": openai_agents,
    "strands": strands,
    "upsonic": upsonic,
}


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers, and replace the names."""
    folder = tempfile.TemporaryDirectory()
    stack = Stack(Path(folder.name) / "stack", replica=False)
    endpoints = stack.up()
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(stack.destroy)
    asyncio.run(migrate.apply(endpoints.postgres_url))
    patient: dict[str, Any] = {f"{name}_seconds": 60.0 for name in BUDGETS}  # Any: keywords of settings
    settings = Settings(
        database_url=endpoints.app_url,
        broker_url=endpoints.redis_url,
        state_dir=Path(folder.name) / "state",
        embedder="off",
        **patient,
    )
    SUITES[os.environ["UPSTREAM_SUITE"]](lambda: Memory(settings=settings))
