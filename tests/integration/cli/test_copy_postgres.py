"""`aftermind copy` from and to Postgres: everything arrives, in both directions, and a killed copy continues."""

import asyncio
import json
import os
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aftermind import JobFilter, Memory, Message, Settings, errors
from aftermind.api import copy_postgres
from aftermind.api.copy_postgres import CODEC
from aftermind.api.copy_store import CopiedPartition, copy_store
from aftermind.cli.terminal import to_plain
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.group_commit_writer import JournalWriter
from aftermind.db.record_store_journals.row_codec import SHARED_NAME
from aftermind.db.record_store_journals.sql import SqlJournal
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.protocol import EpisodeFilter
from aftermind.types import Scope, Summary, Trait
from tests.conformance.store_fixtures import NOW
from tests.integration.stores.test_dead_letters import RefusingModel, are_dead_letters
from tests.integration.stores.test_stored_memory import ROOT, memory_at
from tests.support.fork_server import run_module
from tests.support.killed_copy import KILLED_AFTER
from tests.support.servers import Database, psql_async
from tests.support.waiting import PATIENCE_SECONDS

ALICE = Scope(user_id="alice")
USERS = ("alice", "bob", "carol", None)
LONG = " ".join(f"On day {day} I walked from Oslo to village number {day}." for day in range(150))  # several passages
FORGOTTEN = "marigold"
PAUSES = "SELECT count(*) FROM aftermind.job_pauses"
SEALED = {"episodes": "content", "facts": "object", "assertions": "object", "blocks": "content", "items": "content"}
SEALED |= {"summaries": "text", "profile_traits": "value"}
PLAIN = 'live in|heliotrope|Prefers |Alice moved|"travel"|^"?Oslo"?$|^Bergen$'
# A user of the source, with a vector of zeros of an embedder that no test has.
VECTOR_OF_ANOTHER = """
    UPDATE aftermind.meta SET value = regexp_replace(value, '^[^\\n]*', 'openai:another') WHERE key = 'active_embedder';
    INSERT INTO aftermind.episodes (namespace, user_id, id, role, content, occurred_at, remembered_at, position, terms,
                                    embedding)
    SELECT 'default', 'alice', gen_random_uuid(), 'user', 'x', now(), now(), 1, '{}',
           array_fill(0, ARRAY[split_part(value, E'\\n', 2)::int])::public.halfvec
    FROM aftermind.meta WHERE key = 'active_embedder'
"""


def settings(folder: Path, **more: Any) -> Settings:  # Any: settings by name
    return Settings(**{"state_dir": folder / "state", "embedder": "hash", **more})


async def copied(source: str, destination: str, folder: Path, *, update: bool = False) -> list[CopiedPartition]:
    def work() -> list[CopiedPartition]:
        return list(copy_store(source, destination, settings=settings(folder), update=update))

    return await asyncio.to_thread(work)


def on_postgres(database: Database, redis_url: str, folder: Path) -> Memory:
    """A memory without workers, so that nothing changes."""
    named = {"database_url": database.app_url, "relay_url": database.relay_url, "broker_url": redis_url}
    return Memory(settings=settings(folder, recall_budget_seconds=PATIENCE_SECONDS, **named))


def in_file(url: str, folder: Path, **more: Any) -> Memory:  # Any: as `Memory` takes them
    return Memory(url, settings=settings(folder, recall_budget_seconds=PATIENCE_SECONDS), **more)


async def fill(url: str, folder: Path) -> None:
    """Something of everything that a store of one process keeps."""
    async with memory_at(url, folder) as memory:
        for user in USERS[:2]:
            for text in (f"I am {user}. I live in Oslo.", "I moved to Bergen.", LONG):
                receipt = await memory.remember(
                    Message(role="user", content=text, metadata={"z": 1.0, "a": ["y", "x"]}),
                    user_id=user,
                    session_id="s1",
                    idempotency_key=text[:20],
                )
                await receipt.extracted(timeout=PATIENCE_SECONDS)
                await receipt.embedded(timeout=PATIENCE_SECONDS)
        expiring = Message(role="user", content="Gone in a year.", expires_at=datetime.now(UTC) + timedelta(days=365))
        await (await memory.remember(expiring, user_id="bob")).stored(timeout=PATIENCE_SECONDS)
        for text in ("Prefers tea.", "Prefers coffee."):
            await memory.blocks.set("human", text, user_id="alice")
        await memory.update_session_metadata({"topic": "travel"}, user_id="alice", session_id="s1")
        await memory.checkpoints.save("run 1", {"step": 3}, user_id="alice")
        await memory.groups.add("team", "alice")
        receipt = await memory.remember("The code word is heliotrope.", user_id="alice", group="team")
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        mistake = await memory.remember("My name is a mistake.", user_id="bob", session_id="s2")
        await mistake.extracted(timeout=PATIENCE_SECONDS)
        await memory.undo(*mistake.episode_ids, user_id="bob")
        wrong = await memory.remember("Forget this one.", user_id="bob", session_id="s3")
        await wrong.extracted(timeout=PATIENCE_SECONDS)
        await memory.forget(user_id="bob", session_id="s3")
        await (await memory.remember(f"I grow {FORGOTTEN}.")).extracted(timeout=PATIENCE_SECONDS)
    async with Memory(url, extractor=RefusingModel(), settings=settings(folder, extract_quiet_seconds=0.1)) as memory:
        await (await memory.remember("I live in Rome.", user_id="carol")).stored(timeout=PATIENCE_SECONDS)
        await are_dead_letters(memory, 1)
    await write_documents(url)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a filled store, to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(f"sqlite:{folder}/bot.db", folder))
    return folder


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> str:
    """A filled store in SQLite of this test alone."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return f"sqlite:{tmp_path}/bot.db"


async def write_documents(url: str) -> None:
    """A summary and traits: what otherwise a model has to make."""
    db = MemoryDatabase(JournalWriter(SqlJournal(path=Path(url.partition(":")[2]), shared=SHARED_NAME), CODEC))
    store = InMemoryStore()
    async with db.transaction() as tx:
        (first, *_) = await store.history(tx, ALICE, EpisodeFilter(), limit=10)
        for text in ("Alice lives in Oslo.", "Alice moved."):
            made = Summary(
                scope=Scope(user_id="alice", session_id="s1"),
                text=text,
                covers_to=first.position,
                messages=1,
                updated_at=NOW,
                summariser="test",
                version=0,
            )
            await store.put_summary(tx, made)
        await store.merge_profile(tx, ALICE, {"city": Trait(value="Oslo", evidence=(first.id,))}, at=NOW)
        await store.merge_profile(tx, ALICE, {"likes": Trait(value=["tea", 2, None])}, at=NOW + timedelta(hours=1))
        await store.want_profiled(tx, ALICE, [first.id])
    await db.close()


async def content(memory: Memory) -> dict[str, Any]:  # Any: what the calls return, as JSON
    """What a memory has, as its users and operators see it."""
    found: dict[str, Any] = {}
    async with memory:
        for user in USERS:
            taken = to_plain(await memory.export(user_id=user, vectors=True))
            # The mean of a long text's vectors is computed where it is stored: in single or in half precision.
            taken["vectors"] = {id_: [round(each, 2) for each in row] for id_, row in taken["vectors"].items()}
            found[str(user)] = taken
            events = [to_plain(each) for each in await memory.past_events(user_id=user, after="0")]
            found[f"events of {user}"] = [{**each, "watermark": None} for each in events]  # it is that of the reader
            found[f"recall of {user}"] = (await memory.recall("Where do I live now?", user_id=user)).text
        (dead,) = await memory.dead_letters.list(JobFilter())
        found["dead letter"] = to_plain(await memory.dead_letters.get(dead.id))
        found["members"] = to_plain(await memory.groups.members("team"))
        found["shared"] = to_plain(await memory.history(user_id="alice", group="team"))
        found["metadata"] = await memory.session_metadata(user_id="alice", session_id="s1")
        found["checkpoints"] = to_plain(await memory.checkpoints.list(user_id="alice"))
    return {name: in_order(each) for name, each in found.items()}


def in_order(value: Any) -> Any:  # Any: JSON, and what `to_plain` leaves in it
    """Lists, sets and objects in an order of the test's own: that of rows of one time differs between stores."""
    if isinstance(value, dict):
        return {str(name): in_order(each) for name, each in sorted(value.items(), key=repr)}
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(map(in_order, value), key=repr)
    return value


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs here, so none has to see the pause first."""
    monkeypatch.setattr(copy_postgres, "PAUSE_SECONDS", 0.0)


async def test_everything_arrives_in_postgres_and_back(
    store: str, tmp_path: Path, database: Database, redis_url: str
) -> None:
    last = f"json:{tmp_path}/back"

    there = await copied(store, database.url, tmp_path)
    back = await copied(database.url, last, tmp_path)
    again = await copied(store, database.url, tmp_path)

    before = await content(in_file(store, tmp_path))
    on_server, after = await content(on_postgres(database, redis_url, tmp_path)), await content(in_file(last, tmp_path))
    for name, expected in before.items():
        assert on_server[name] == expected, name
        assert after[name] == expected, name
    assert not any(each.was_there for each in there + back)
    assert all(each.was_there for each in again)
    assert [each.checksum for each in again] == [each.checksum for each in there]
    assert len(there) == 6, "jobs, four users, a group"
    assert await psql_async(database.url, PAUSES) == "0"


async def test_after_a_cutover_postgres_gets_the_vectors_that_serve(tmp_path: Path, database: Database) -> None:
    source = f"sqlite:{tmp_path}/bot.db"
    async with in_file(source, tmp_path) as memory:
        receipt = await memory.remember(["I live in Oslo.", LONG], user_id="alice")
        await receipt.embedded(timeout=PATIENCE_SECONDS)
        await memory.reembedding.start("hash", dimension=128)
        await memory.reembedding.cutover()

    await copied(source, database.url, tmp_path)
    again = await copied(source, database.url, tmp_path)

    dimensions = "SELECT DISTINCT vector_dims(embedding) FROM aftermind.episodes"
    assert await psql_async(database.url, dimensions) == "128"
    assert all(each.was_there for each in again)


@pytest.mark.parametrize("is_destination", [True, False], ids=["to postgres", "from postgres"])
async def test_a_copy_that_was_killed_continues(
    is_destination: bool, store: str, tmp_path: Path, database: Database
) -> None:
    source, destination = store, database.url
    if not is_destination:
        await copied(store, database.url, tmp_path)
        source, destination = database.url, f"sqlite:{tmp_path}/back.db"
    env = {**os.environ, "AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    killed = run_module(["tests.support.killed_copy", source, destination], env=env, cwd=ROOT)
    paused = await psql_async(database.url, PAUSES)
    continued = await copied(source, destination, tmp_path)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [each.was_there for each in continued] == [each.number <= KILLED_AFTER for each in continued]
    assert await psql_async(database.url, PAUSES) == "0"
    assert paused == str(int(is_destination)), "jobs wait until their users are there"


@pytest.mark.parametrize("is_destination", [True, False], ids=["to postgres", "from postgres"])
async def test_an_update_copies_what_has_changed_and_erases_what_was_forgotten(
    is_destination: bool, store: str, tmp_path: Path, database: Database, redis_url: str
) -> None:
    file = Path(store.partition(":")[2])
    if is_destination:
        await copied(store, database.url, tmp_path)
        source, destination, memory = store, database.url, in_file(store, tmp_path)
    else:
        await copied(store, database.url, tmp_path)
        source, destination, memory = database.url, store, on_postgres(database, redis_url, tmp_path)
    async with memory:
        await memory.forget()
        await memory.blocks.set("human", "Prefers water.", user_id="alice")

    with pytest.raises(errors.InvalidSettings, match="--update"):
        await copied(source, destination, tmp_path)
    updated = await copied(source, destination, tmp_path, update=True)

    assert [each.was_there for each in updated].count(False) <= 3, "jobs and two users"
    assert all(each.was_there for each in await copied(source, destination, tmp_path))
    async with on_postgres(database, redis_url, tmp_path) if is_destination else in_file(store, tmp_path) as copy:
        assert [each.content for each in await copy.blocks.list(user_id="alice")] == ["Prefers water."]
        assert await copy.history() == []
    if is_destination:
        found = await psql_async(database.url, f"SELECT count(*) FROM aftermind.episodes WHERE content ~ '{FORGOTTEN}'")
        assert found == "0"
    else:
        assert not any(FORGOTTEN.encode() in path.read_bytes() for path in file.parent.glob("bot.db*"))


@pytest.mark.long
async def test_what_only_the_destination_has_is_kept(
    store: str, tmp_path: Path, database: Database, redis_url: str
) -> None:
    await copied(store, database.url, tmp_path)
    async with on_postgres(database, redis_url, tmp_path) as memory:
        before = await memory.history(user_id="alice")
    async with in_file(store, tmp_path) as memory:
        await memory.remember("Only here.", user_id="alice", session_id="s9")
        await (await memory.remember("And here.", user_id="alice", session_id="s9")).stored(timeout=PATIENCE_SECONDS)

    with pytest.raises(errors.InvalidSettings, match="2 messages of a user that the source never had"):
        await copied(database.url, store, tmp_path, update=True)

    async with in_file(store, tmp_path) as memory:
        assert len(await memory.history(user_id="alice")) == len(before) + 2


@pytest.mark.long
async def test_an_encrypted_namespace_is_encrypted_in_the_destination_and_decrypted_by_the_way_back(
    store: str, tmp_path: Path, database: Database, redis_url: str
) -> None:
    async with on_postgres(database, redis_url, tmp_path) as memory:
        await memory.encryption.encrypt(spread_seconds=0.1)

    await copied(store, database.url, tmp_path)
    await copied(database.url, f"json:{tmp_path}/back", tmp_path)

    assert all(each.was_there for each in await copied(store, database.url, tmp_path))
    assert any("Prefers coffee." in path.read_text() for path in (tmp_path / "back").rglob("*") if path.is_file())
    for table, column in SEALED.items():
        found = await psql_async(
            database.url, f"SELECT count(*) FROM aftermind.{table} WHERE {column}::text ~ '{PLAIN}'"
        )
        assert found == "0", table


async def test_a_role_embedder_or_plan_that_does_not_fit_is_refused(
    store: str, tmp_path: Path, database: Database
) -> None:
    with pytest.raises(errors.InvalidSettings, match="owner of the tables"):
        await copied(store, database.app_url, tmp_path)
    with pytest.raises(errors.SchemaOutdated):
        await copied(store, database.admin_url.rpartition("/")[0] + "/postgres", tmp_path)
    await psql_async(database.url, VECTOR_OF_ANOTHER)
    with pytest.raises(errors.EmbedderMismatch):
        await copied(store, database.url, tmp_path, update=True)
    await psql_async(database.url, "DELETE FROM aftermind.episodes")
    async with in_file(store, tmp_path, extractor=RefusingModel()) as memory:
        plan = NewPlan(name="again", reason="a better model", actor="ops", rate=1)
        await memory.replays.create(JobFilter(), plan)
    with pytest.raises(errors.InvalidSettings, match="1 unfinished replay plans"):
        await copied(store, database.url, tmp_path)
    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.jobs") == "0"


async def test_the_command_copies_into_the_embedded_stack(tmp_path: Path, database: Database, redis_url: str) -> None:
    source = f"sqlite:{tmp_path}/memory.db"
    await fill(source, tmp_path)
    known = {
        "postgres_url": database.app_url,
        "replica_urls": [],
        "redis_url": redis_url,
        "owner_url": database.url,
    }
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "endpoints.json").write_text(json.dumps(known))
    env = {**os.environ, "AFTERMIND_STATE_DIR": str(tmp_path / "stack"), "AFTERMIND_DATABASE_URL": source}

    done = run_module(["aftermind.cli", "copy", source, "embedded"], env=env)

    assert done.returncode == 0, done.stderr
    assert "copied and verified" in done.stdout
