"""A key file that was lost is not replaced while rows exist that were made with its key, of whichever tenant."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from aftermind import Memory, Settings, errors
from tests.support.servers import Database

Use = Callable[[Memory], Awaitable[Any]]  # Any: what the call returns is of no interest


def open_memory(database: Database, redis_url: str, folder: Path, namespace: str, **more: Any) -> Memory:
    """A memory of a tenant that keeps its keys in a folder."""
    given: dict[str, Any] = {
        "database_url": SecretStr(database.app_url),
        "relay_url": SecretStr(database.relay_url),
        "broker_url": SecretStr(redis_url),
        "state_dir": folder,
        "namespace": namespace,
        "embedder": "off",
        "webhook_allow_private": True,
    }
    return Memory(settings=Settings(**{**given, **more}))


USES: dict[str, Use] = {
    "audit.key": lambda memory: memory.forget(user_id="ann"),
    "webhook.key": lambda memory: memory.webhooks.create("https://127.0.0.1/hook"),
    "encryption.key": lambda memory: memory.encryption.encrypt(spread_seconds=0.0),
}


@pytest.mark.parametrize("file", USES)
@pytest.mark.parametrize("namespace", ["acme", "globex"])
async def test_a_lost_key_file_is_not_replaced(
    database: Database, redis_url: str, tmp_path: Path, file: str, namespace: str
) -> None:
    async with open_memory(database, redis_url, tmp_path, "acme") as memory:
        await USES[file](memory)
    key = (tmp_path / file).read_bytes()
    (tmp_path / file).unlink()

    async with open_memory(database, redis_url, tmp_path, namespace) as memory:
        with pytest.raises((errors.KeyFileLost, errors.KeyMissing), match=r"Restore|restore"):
            await USES[file](memory)
        assert not (tmp_path / file).exists()

    (tmp_path / file).write_bytes(key)
    async with open_memory(database, redis_url, tmp_path, namespace) as memory:
        await USES[file](memory)


@pytest.mark.parametrize("file", USES)
async def test_reading_makes_no_key_file(database: Database, redis_url: str, tmp_path: Path, file: str) -> None:
    async with open_memory(database, redis_url, tmp_path, "acme") as memory:
        await memory.audit.verify()
        await memory.webhooks.list()
        await memory.encryption.key_id()

    assert not (tmp_path / file).exists()


async def test_a_new_key_is_taken_from_the_one_who_sets_it(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with open_memory(database, redis_url, tmp_path, "acme") as memory:
        await memory.forget(user_id="ann")
    (tmp_path / "audit.key").unlink()

    key = SecretStr("0" * 64)
    async with open_memory(database, redis_url, tmp_path, "acme", audit_key=key) as memory:
        await memory.forget(user_id="ann")
        assert not all(report.is_whole for report in await memory.audit.verify())
