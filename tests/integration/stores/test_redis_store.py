"""A Redis as the store: its own faults, and that two processes never write at the same time."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from aftermind import Memory, Settings, errors
from aftermind.wire.redis_keys import Keys
from tests.support.valkey import Valkey, running_valkey

NOWHERE = "redis://127.0.0.1:1/0"  # port 1: refused


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


def memory_at(url: str, folder: Path) -> Memory:
    return Memory(url, settings=Settings(state_dir=folder, embedder="hash", extractor="off"))


async def texts(memory: Memory) -> list[str]:
    return [each.content for each in await memory.history(user_id="alice")]


async def test_a_redis_that_does_not_answer_is_reported_without_its_password(tmp_path: Path) -> None:
    memory = memory_at("redis://user:secret@127.0.0.1:1/0", tmp_path)

    with pytest.raises(errors.StoreUnavailable, match=r"redis://127\.0\.0\.1:1: .*[^.]\. Check Redis") as refused:
        await memory.remember("refused", user_id="alice")
    with pytest.raises(errors.StoreUnavailable, match="Check Redis") as missed:
        await memory.recall_scored("refused?", user_id="alice")

    for error in (refused, missed):
        assert ".." not in str(error.value)
        assert "Postgres" not in str(error.value)
        assert "secret" not in str(error.value)


async def test_wrong_credentials_are_refused_with_the_remedy(valkey: Valkey, tmp_path: Path) -> None:
    memory = memory_at(valkey.url.replace(valkey.password, "wrong"), tmp_path)

    with pytest.raises(errors.InvalidSettings, match="Correct user, password and rights"):
        await memory.remember("refused", user_id="alice")


async def test_what_was_accepted_outlives_a_killed_redis(valkey: Valkey, tmp_path: Path) -> None:
    async with memory_at(valkey.url, tmp_path) as memory:
        await (await memory.remember("before", user_id="alice")).stored(timeout=30)
        await asyncio.to_thread(valkey.kill)
        with pytest.raises(errors.StoreUnavailable):
            await memory.remember("refused", user_id="alice")
        await asyncio.to_thread(valkey.start)

        await (await memory.remember("after", user_id="alice")).stored(timeout=30)
        assert await texts(memory) == ["before", "after"]


async def test_processes_whose_connections_were_cut_continue(valkey: Valkey, tmp_path: Path) -> None:
    async with memory_at(valkey.url, tmp_path) as first, memory_at(valkey.url, tmp_path) as second:
        for text, memory in (("one", first), ("two", second), ("three", first)):
            with redis.Redis.from_url(valkey.url) as client:
                client.client_kill_filter(_type="normal", skipme=True)  # as a network fault
            await (await memory.remember(text, user_id="alice", idempotency_key=text)).stored(timeout=30)

        assert await texts(first) == await texts(second) == ["one", "two", "three"]


async def test_keys_of_the_former_format_are_refused(valkey: Valkey, tmp_path: Path) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.sadd(Keys().journal("partitions"), "name")

    with pytest.raises(errors.InvalidSettings, match="Name another"):
        await memory_at(valkey.url, tmp_path).remember("refused", user_id="alice")


async def test_prefixes_separate_stores_of_one_redis(valkey: Valkey, tmp_path: Path) -> None:
    async with memory_at(valkey.url, tmp_path) as plain:
        store = {"backend": "redis", "url": valkey.url, "key_prefix": "other:"}
        async with Memory(store, settings=plain.settings) as other:
            await (await other.remember("there", user_id="alice")).stored(timeout=30)

            assert await texts(plain) == []


async def test_a_redis_without_an_append_only_file_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_valkey("--appendonly", "no") as server, caplog.at_level(logging.WARNING):
        async with memory_at(server.url, tmp_path):
            pass

    assert "Redis is not durable" in caplog.text


def test_a_prefix_without_a_redis_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="only a redis:// store has keys"):
        Memory({"backend": "sqlite", "path": "bot.db", "key_prefix": "x:"})
