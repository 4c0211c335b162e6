"""A vector index next to the store: it names candidates, and costs recall at most, whatever it does."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from aftermind import Memory, Settings, errors
from aftermind.api.store_from_url import split_index
from aftermind.indexes import client
from aftermind.indexes.factory import parse
from aftermind.types import EpisodeId
from tests.support.vector_index import ProcessIndex
from tests.support.waiting import wait_until

PATIENT = {"index_budget_seconds": 20.0, "recall_budget_seconds": 20.0}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)


@pytest.fixture(params=["inmemory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/bot.db"


def memory_at(store: Any, folder: Path, index: Any, **changed: Any) -> Memory:  # Any: what `Memory` takes
    named: dict[str, Any] = {"state_dir": folder / "state", "embedder": "hash", "extractor": "off", **PATIENT}
    return Memory(store, index=index, settings=Settings(**{**named, **changed}))


async def tell(memory: Memory, user: str, *texts: str) -> None:
    for text in texts:
        await (await memory.remember(text, user_id=user, session_id=f"{user}'s")).stored(timeout=30)


async def test_an_index_follows_the_store_and_is_emptied_by_a_forget(store: str, tmp_path: Path) -> None:
    index = ProcessIndex()
    async with memory_at(store, tmp_path, index) as memory:
        await tell(memory, "alice", "I live in Oslo.", "I like tea.")
        await tell(memory, "bob", "I live in Rome.")
        await wait_until(lambda: len(index.entries) == 3, description="the index has all episodes")
        assert {each.text for each in index.entries.values()} == {"I live in Oslo.", "I like tea.", "I live in Rome."}
        assert not any("alice" in str(each.labels) for each in index.entries.values())

        block = await memory.recall("Where do I live?", user_id="alice")
        assert "Oslo" in block.text
        assert block.degraded is None
        assert index.searches

        before = await memory.verify_erasure(user_id="alice")
        assert [place.owned for place in before.places if place.name == "index test"] == [2]
        await memory.forget(user_id="alice")
        assert [each.text for each in index.entries.values()] == ["I live in Rome."]
        assert (await memory.verify_erasure(user_id="alice")).is_clean


async def test_a_hostile_or_stale_index_costs_recall_and_never_leaks(store: str, tmp_path: Path) -> None:
    index = ProcessIndex()
    async with memory_at(store, tmp_path, index) as memory:
        await tell(memory, "bob", "My PIN is 4711.")
        await tell(
            memory, "alice", *(f"I saw film number {n}." for n in range(30)), "I keep a spare key at the office."
        )
        await wait_until(lambda: len(index.entries) == 32, description="the index has all episodes")
        (pin,) = [each.id for each in index.entries.values() if "PIN" in each.text]
        forgotten = (await memory.history(user_id="alice", limit=31))[3]
        await memory.forget(user_id="alice", ids=[forgotten.id])
        for answer in ([pin], [pin, forgotten.id], [], [pin] * 1_000):
            index.answer = answer
            block = await memory.recall("What is my PIN, and where is the spare key?", user_id="alice")
            assert "4711" not in block.text
            assert forgotten.content not in block.text
            assert "spare key" in block.text  # by its words


async def test_an_index_that_is_away_is_named_delays_nothing_and_catches_up(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aftermind_tasks import index as index_job

    monkeypatch.setattr(index_job, "RETRY_AFTER", index_job.RETRY_AFTER / 100)
    index = ProcessIndex()
    async with memory_at(store, tmp_path, index) as memory:
        await tell(memory, "alice", "I live in Oslo.")
        await wait_until(lambda: len(index.entries) == 1, description="the index has the episode")
        index.is_away = True
        await tell(memory, "alice", "I like tea.")
        block = await memory.recall("tea", user_id="alice")
        assert "I like tea." in block.text
        assert "the index test does not answer" in str(block.degraded)
        assert (await memory.forget(user_id="alice", ids=[(await memory.history(user_id="alice"))[0].id])).rows

        index.is_away = False

        def is_same() -> bool:
            return [each.text for each in index.entries.values()] == ["I like tea."]

        await wait_until(is_same, description="the index has caught up")
        assert (await memory.recall("tea", user_id="alice")).degraded is None


async def test_an_index_of_another_dimension_is_refused_before_a_turn_is_accepted(store: str, tmp_path: Path) -> None:
    memory = memory_at(store, tmp_path, ProcessIndex(dimension=3))
    with pytest.raises(errors.IndexMismatch, match="dimension 3, this memory needs 384"):
        await memory.remember("I live in Oslo.", user_id="alice")
    assert await memory.history(user_id="alice") == []

    assert [each async for each in memory.reindex(recreate=True)] == []
    await tell(memory, "alice", "I live in Oslo.")
    await memory.close()


async def test_reindex_fills_an_empty_index_removes_strays_and_continues(store: str, tmp_path: Path) -> None:
    index = ProcessIndex()
    async with memory_at(store, tmp_path, index) as memory:
        for user in ("alice", "bob", "carol"):
            await tell(memory, user, f"I am {user}.", "I like tea.")
        await wait_until(lambda: len(index.entries) == 6, description="the index has all episodes")
        (known,) = [each for each in index.entries.values() if each.text == "I am bob."]
        stray = replace(known, id=EpisodeId(uuid4()))
        index.entries = {stray.id: stray}

        (first, second, third) = [each async for each in memory.reindex()]
        assert (first.user_id, first.entries, first.added, first.removed) == ("alice", 2, 2, 0)
        assert (second.user_id, second.entries, second.added, second.removed) == ("bob", 2, 2, 1)
        assert third.entries == 2
        assert [each.user_id async for each in memory.reindex(after="alice")] == ["bob", "carol"]
        assert [each.added async for each in memory.reindex()] == [0, 0, 0]


async def test_an_index_is_found_by_url_dict_and_setting(tmp_path: Path) -> None:
    index = ProcessIndex()
    described = {"backend": "sqlite", "path": str(tmp_path / "a.db"), "index": index}
    async with memory_at(described, tmp_path, None) as memory:
        await tell(memory, "alice", "I live in Oslo.")
        await wait_until(lambda: len(index.entries) == 1, description="the index has the episode")
    with pytest.raises(errors.InvalidSettings, match="names an index already"):
        memory_at("chroma:./x", tmp_path, "qdrant:./y")
    with pytest.raises(errors.InvalidSettings, match="unknown index"):
        memory_at("inmemory", tmp_path, "faiss:./y")
    with pytest.raises(errors.InvalidSettings, match="incomplete"):
        memory_at("inmemory", tmp_path, "pinecone://host")
    with pytest.raises(errors.InvalidSettings, match="it is a URL or an object"):
        memory_at("inmemory", tmp_path, 7)


@pytest.mark.parametrize(
    ("url", "store", "index"),
    [
        ("chroma", "sqlite:STATE/chroma/memory.db", "chroma:STATE/chroma/index"),
        ("chroma:./dir", "sqlite:dir/memory.db", "chroma:dir/index"),
        ("qdrant:/abs/dir", "sqlite:/abs/dir/memory.db", "qdrant:/abs/dir/index"),
        ("chroma+http://host:8000", "sqlite:STATE/memory.db", "chroma+http://host:8000"),
        ("pinecone:name", "sqlite:STATE/memory.db", "pinecone:name"),
        ("mem0:", "sqlite:STATE/memory.db", "mem0:"),
    ],
)
def test_a_shorthand_names_a_record_store_and_an_index(url: str, store: str, index: str) -> None:
    assert split_index(url, Path("STATE")) == (store, index)


def test_an_address_shows_no_password() -> None:
    address = parse("qdrant+https://secret@host:6334/mine")

    assert (address.host, address.port, address.password, address.collection) == ("host", 6334, "secret", "mine")
    assert address.is_secure
    assert "secret" not in address.name
    pinecone = parse("pinecone:se%2Fcret@mine")
    assert (pinecone.path, pinecone.password, pinecone.name) == ("mine", "se/cret", "pinecone:mine")


async def test_a_redis_without_query_engine_is_refused_by_name(redis_url: str, tmp_path: Path) -> None:
    memory = memory_at("inmemory", tmp_path, redis_url)
    with pytest.raises(errors.InvalidSettings, match="no query engine"):
        await memory.remember("I live in Oslo.", user_id="alice")
    await memory.close()
