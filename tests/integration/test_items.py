"""`memory.items` on a deployment: fresh reads through a replica that lags, filters, vectors, erasure and bounds."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import ItemWrite, Memory, Settings, errors
from tests.support.servers import Database, psql


@pytest.fixture
async def memory(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Memory]:
    settings = Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        broker_url=redis_url,
        state_dir=tmp_path,
        embedder="off",
    )
    async with Memory(settings=settings) as opened:
        yield opened


def note(key: str, path: tuple[str, ...] = ("notes",), **value: object) -> ItemWrite:
    return ItemWrite(path=path, key=key, value=value)  # type: ignore[arg-type]  # JSON


async def test_a_write_is_read_while_the_replica_stands_still(memory: Memory, database: Database) -> None:
    await memory.items.write([note("1", text="before")], user_id="alice")
    await asyncio.to_thread(psql, database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        await memory.items.write([note("1", text="after"), note("2", text="new")], user_id="alice")
        first, second, third = await memory.items.get(
            (["notes"], "1"), (["notes"], "2"), (["notes"], "3"), user_id="alice"
        )
        listed = await memory.items.search(user_id="alice")
    finally:
        await asyncio.to_thread(psql, database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")

    assert first is not None
    assert second is not None
    assert (first.value, second.value, third) == ({"text": "after"}, {"text": "new"}, None)
    assert len(listed) == 2


async def test_a_search_filters_compares_vectors_and_pages() -> None:
    async with Memory("inmemory") as memory:
        vectors = {"north": [[0.0, 1.0]], "east": [[1.0, 0.0]], "both": [[1.0, 0.0], [0.0, 1.0]], "none": []}
        writes = [
            ItemWrite(path=("map", "eu"), key=key, value={"at": number, "where": {"city": key}}, vectors=vectors[key])
            for number, key in enumerate(vectors)
        ]
        await memory.items.write(writes)

        near = await memory.items.search(("map",), vector=[0.1, 1.0])
        paged = await memory.items.search(("map",), vector=[0.1, 1.0], limit=1, offset=2)
        between = await memory.items.search(("map",), filter={"at": {"$gte": 1, "$lt": 3}})
        nested = await memory.items.search(filter={"where": {"city": "east"}})

        assert [each.key for each in near][2:] == ["east", "none"]
        assert [each.key for each in paged] == ["east"]
        assert near[3].score is None
        assert near[0].score == near[1].score == pytest.approx(0.995, abs=1e-3)
        assert {each.key for each in between} == {"east", "both"}
        assert [each.key for each in nested] == ["east"]
        assert await memory.items.search(("ma",)) == []
        assert await memory.items.paths() == [("map", "eu")]


async def test_items_leave_with_their_user_and_are_exported(memory: Memory) -> None:
    await memory.items.write([note("1", text="hers")], user_id="alice")
    await memory.items.write([note("1", text="his")], user_id="bob")

    exported = await memory.export(user_id="alice")
    forgot = await memory.forget(user_id="alice", prove=True)

    assert [each.value for each in exported.items] == [{"text": "hers"}]
    assert forgot.rows["items"] == 1
    assert forgot.proof is not None
    assert not [place for place in forgot.proof.after.places if place.owned and not place.kept]
    assert await memory.items.search(user_id="alice") == []
    assert len(await memory.items.search(user_id="bob")) == 1


async def test_a_batch_is_written_as_a_whole_or_not_at_all() -> None:
    async with Memory("inmemory") as memory:
        await memory.items.write([note("1", n=1), note("2", n=1)])
        with pytest.raises(errors.InvalidItem):
            await memory.items.write([note("1", n=2), note("", n=2)])

        await memory.items.write([note("1", n=3), ItemWrite(path=("notes",), key="1", value=None), note("2", n=3)])

        first, second = await memory.items.get((["notes"], "1"), (["notes"], "2"))
        assert first is None
        assert second is not None
        assert second.value == {"n": 3}


@pytest.mark.parametrize(
    "write",
    [
        ItemWrite(path=(), key="k", value={}),
        ItemWrite(path="notes", key="k", value={}),
        ItemWrite(path=("a\x1fb",), key="k", value={}),
        ItemWrite(path=("a", ""), key="k", value={}),
        ItemWrite(path=("a",), key="k\x00", value={}),
        ItemWrite(path=("a",), key="\ud800", value={}),
        ItemWrite(path=("a",), key="k" * 1_025, value={}),
        ItemWrite(path=("a",), key="k", value=["list"]),  # type: ignore[arg-type]
        ItemWrite(path=("a",), key="k", value={"set": {1}}),  # type: ignore[dict-item]
        ItemWrite(path=("a",), key="k", value={"nul": "\x00"}),
        ItemWrite(path=("a",), key="k", value={"text": "x" * 1_048_577}),
        ItemWrite(path=("a",), key="k", value={}, vectors=[[1.0], [1.0, 2.0]]),
        ItemWrite(path=("a",), key="k", value={}, vectors=[[float("nan")]]),
        ItemWrite(path=("a",), key="k", value={}, ttl=timedelta(0)),
    ],
    ids=repr,
)
async def test_a_malformed_item_is_refused_with_the_field_that_is_wrong(write: ItemWrite) -> None:
    memory = Memory("inmemory")

    with pytest.raises(errors.InvalidItem):
        await memory.items.write([write])
