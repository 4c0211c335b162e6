"""A memory on each store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from tests.integration.stores.test_stored_memory import URLS, memory_at
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS

STORES = ["inmemory", "postgres", *sorted(URLS)]


@pytest.fixture(params=STORES)
def closed(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    """A memory on each store. That on Postgres has no workers: its turns stay pending."""
    if request.param != "postgres":
        make = URLS.get(request.param)
        url = "inmemory" if make is None else make(tmp_path, request.getfixturevalue)
        return memory_at(url, tmp_path, recall_budget_seconds=PATIENCE_SECONDS)
    database: Database = request.getfixturevalue("database")
    settings = Settings(
        database_url=database.app_url,
        broker_url=request.getfixturevalue("redis_url"),
        state_dir=tmp_path,
        embedder="off",
        recall_budget_seconds=PATIENCE_SECONDS,
    )
    return Memory(settings=settings)


@pytest.fixture
async def memory(closed: Memory) -> AsyncIterator[Memory]:
    async with closed:
        yield closed
