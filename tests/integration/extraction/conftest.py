"""A memory without servers, a database of the module, and a model that answers by script."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Memory, Settings
from tests.support.learning import Learning, learning
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database, Servers


@pytest.fixture(scope="module")
def shared_database(servers: Servers) -> Iterator[Database]:
    """Shared by the tests of a module, each with a user of its own."""
    made = servers.create_database()
    yield made
    servers.drop_database(made)


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    """A memory without servers."""
    settings = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0)
    url = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path / 'memory.db'}"
    async with Memory(url, settings=settings) as one:
        yield one


@pytest.fixture
def provider() -> Iterator[ScriptedOpenAI]:
    """A model provider with an empty script."""
    with scripted_openai() as server:
        yield server


@pytest.fixture
def opened(
    database: Database, servers: Servers, tmp_path: Path, provider: ScriptedOpenAI
) -> Callable[..., AbstractAsyncContextManager[Learning]]:
    """Memories of a database of the test's own: `opened(summary_turns=4)`."""
    return partial(learning, database, servers.redis_url, tmp_path, provider)


@pytest.fixture
async def learnt(opened: Callable[..., AbstractAsyncContextManager[Learning]]) -> AsyncIterator[Learning]:
    """One with the settings that everybody has."""
    async with opened() as one:
        yield one


@pytest.fixture
def user() -> str:
    """Somebody whom nobody has met before."""
    return f"user-{uuid4().hex[:12]}"
