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


SUITES = {"definable": definable, "langgraph": langgraph, "loomflow": loomflow, "openai-agents": openai_agents}


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
