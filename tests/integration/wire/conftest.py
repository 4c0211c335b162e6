"""A Redis of each test's own, and its pending turns."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from aftermind.wire.pending import Pending
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.valkey import Valkey, running_valkey


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server to do anything to."""
    with running_valkey() as server:
        yield server


@pytest_asyncio.fixture
async def link(valkey: Valkey) -> AsyncIterator[RedisLink]:
    """A connection as the agent's side has it."""
    made = RedisLink(valkey.url, timeout=0.5)
    yield made
    await made.close()


@pytest.fixture
def keys() -> Keys:
    """The keys under the default prefix."""
    return Keys()


@pytest.fixture
def pending(link: RedisLink, keys: Keys) -> Pending:
    """The pending turns of the server."""
    return Pending(link, keys)
