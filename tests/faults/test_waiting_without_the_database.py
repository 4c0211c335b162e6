"""Waits with a timeout end by it, also while the database does not answer at all."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aftermind import Memory, Settings, errors
from tests.support.proxy import Proxy
from tests.support.servers import Database

LONGER_THAN_A_TEST = 3_600.0


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    at = urlsplit(database.app_url)
    one = Proxy(at.hostname or "", at.port or 0)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def memory(database: Database, redis_url: str, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Memory]:
    settings = Settings(
        database_url=proxy.url(database.app_url),
        broker_url=redis_url,
        state_dir=tmp_path,
        db_timeout_seconds=LONGER_THAN_A_TEST,
        embedder="hash",
    )
    async with Memory(settings=settings) as one:
        yield one


async def test_a_receipt_gives_up_by_its_timeout_and_says_that_the_state_is_unknown(
    memory: Memory, proxy: Proxy
) -> None:
    receipt = await memory.remember("The bees live behind the barn.", user_id="alice")
    proxy.blackhole()

    with pytest.raises(errors.ReceiptTimeout, match="unknown, since the store does not answer in time"):
        await receipt.stored(timeout=0.1)


async def test_the_error_of_a_receipt_has_the_state_that_was_read_last(memory: Memory) -> None:
    receipt = await memory.remember("The bees live behind the barn.", user_id="alice")  # and no worker runs

    with pytest.raises(errors.ReceiptTimeout, match="waiting"):
        await receipt.stored(timeout=0.5)


async def test_a_drain_gives_up_by_its_timeout(memory: Memory, proxy: Proxy) -> None:
    await memory.remember("The bees live behind the barn.", user_id="alice")
    proxy.blackhole()

    with pytest.raises(errors.StoreUnavailable, match="no answer within"):
        await memory.drain(user_id="alice", timeout=0.1)
