"""Stores that cannot be used: each has a named error with the remedy, and nothing is accepted."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from aftermind import JobFilter, Memory, Settings, errors
from aftermind.db import inmemory_database as inmemory
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals import group_commit_writer, sql_connections
from aftermind.db.record_store_journals.group_commit_writer import JournalWriter
from aftermind.db.record_store_journals.protocol import AnyJournal, Batch, SharedJournal, StoreState
from aftermind.db.record_store_journals.row_codec import SHARED_NAME
from aftermind.db.record_store_journals.sql import SqlJournal
from tests.support.journals import CODEC, JOURNALS, sql_url
from tests.support.servers import Database, psql_async
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SESSIONS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def memory_at(store: Any, folder: Path) -> Memory:  # Any: what `Memory` takes
    return Memory(store, settings=Settings(state_dir=folder / "state", embedder="hash", extractor="off"))


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("sqlite:", "name a file: 'sqlite:./bot.db'"),
        ("json:", "name a folder: 'json:./folder'"),
        ("sqlite:///", "name a file"),
        ("sqlite:./folder/", "name a file"),
        ("sqlite::memory:", "inmemory"),
        ("sqlite://server/bot.db", "a path follows the colon"),
        ("sqlite:./bot.db?mode=ro", "name a file"),
        ("inmemory:x", "unknown store"),
        ("mysql://server/bot", "store='mysql': unknown store"),
        ("chroma:./bot", r"aftermind\[chroma\]"),
        ({}, "name `backend`"),
        ({"backend": "sqlite", "type": "sqlite", "path": "x"}, "name `backend`"),
        ({"backend": "sqlite", "path": "x", "url": "sqlite:y"}, "name `backend`"),
        ({"backend": "sqlite", "url": "postgresql://server/x"}, "different stores"),
        ({"backend": "sqlite", "path": "x", "colour": "red"}, "not colour"),
    ],
)
def test_a_wrong_address_is_refused_when_the_memory_is_made(store: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=said):
        memory_at(store, tmp_path)


async def test_making_a_memory_creates_no_file(tmp_path: Path) -> None:
    memory_at(f"sqlite:{tmp_path}/folder/bot.db", tmp_path)

    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.parametrize(("scheme", "said"), [("sqlite", "that this user may write"), ("json", "make the folder")])
async def test_a_path_that_cannot_be_made(scheme: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(errors.StoreUnavailable, match=said):
        await memory_at(f"{scheme}:{tmp_path}/file/bot", tmp_path).remember("refused", user_id="alice")


async def test_a_read_only_file(tmp_path: Path) -> None:
    await write_turn(tmp_path)

    with read_only(tmp_path), pytest.raises(errors.StoreUnavailable, match="fix the permissions"):
        await memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path).remember("refused", user_id="alice")


async def test_a_file_of_another_program(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bot.db")) as other:
        other.execute("CREATE TABLE invoices (id INTEGER)")

    with pytest.raises(errors.InvalidSettings, match="belongs to another program"):
        await memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path).remember("refused", user_id="alice")


async def test_a_file_of_an_earlier_build(tmp_path: Path) -> None:
    await write_turn(tmp_path)
    with closing(sqlite3.connect(tmp_path / "bot.db")) as raw:
        for table in ("aftermind_rows", "aftermind_versions"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("CREATE TABLE rows (partition TEXT, table_name TEXT, key TEXT, value BLOB)")
        raw.execute("INSERT INTO rows VALUES ('a', 'episodes', 'k', 'v')")
        raw.commit()
    before = (tmp_path / "bot.db").read_bytes()

    with pytest.raises(errors.InvalidSettings, match=r"an earlier build wrote the file.*`aftermind copy`"):
        await memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path).remember("refused", user_id="alice")

    assert (tmp_path / "bot.db").read_bytes() == before


async def test_a_database_with_a_table_of_another_program(tmp_path: Path, database: Database) -> None:
    await psql_async(database.admin_url, "CREATE TABLE aftermind_rows (id integer)")

    with pytest.raises(
        errors.InvalidSettings, match=r"table aftermind_rows belongs to another program.*another database"
    ):
        await memory_at(sql_url(database), tmp_path).remember("refused", user_id="alice")


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "bot.db").write_bytes(b"a shopping list\n" * 1_000)

    with pytest.raises(errors.StoreDamaged, match="Restore it from a backup"):
        await memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path).remember("refused", user_id="alice")


async def test_a_damaged_row_costs_its_user_alone(tmp_path: Path) -> None:
    await write_turn(tmp_path, "alice")
    await write_turn(tmp_path, "bob")
    with closing(sqlite3.connect(tmp_path / "bot.db")) as raw:
        raw.execute("UPDATE aftermind_rows SET value = '{' WHERE table_name = 'episodes' AND partition LIKE '%alice%'")
        raw.commit()

    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        with pytest.raises(errors.StoreDamaged, match="of episodes cannot be read"):
            await memory.history(user_id="alice")
        assert [each.content for each in await memory.history(user_id="bob")] == ["said by bob"]


async def test_a_full_disk_refuses_turns_and_keeps_what_was_accepted(tmp_path: Path) -> None:
    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        await (await memory.remember("accepted", user_id="alice")).stored(timeout=30)
        connection: sqlite3.Connection = memory._parts.db._journal._shared._at._write  # type: ignore[attr-defined]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

        with pytest.raises(errors.StoreUnavailable, match="Free space"):
            await memory.remember("x" * 50_000, user_id="alice")

        connection.execute("PRAGMA max_page_count = 1000000")
        await (await memory.remember("later", user_id="alice")).stored(timeout=30)
        assert [each.content for each in await memory.history(user_id="alice")] == ["accepted", "later"]


async def test_a_store_that_opens_slowly_fails_no_call_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inmemory, "LOCK_SECONDS", 0.05)
    open_at_once, tries = SqlJournal.open, threading.Event()

    def open_slowly(journal: SqlJournal) -> None:
        tries.wait(0.5)  # never set: ten times as long as a transaction waits for another one
        open_at_once(journal)

    monkeypatch.setattr(SqlJournal, "open", open_slowly)
    memory = memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path)

    await asyncio.gather(*(memory.blocks.set(name, "Alice.", user_id="alice") for name in ("a", "b", "c")))

    assert [each.name for each in await memory.blocks.list(user_id="alice")] == ["a", "b", "c"]
    await memory.close()


async def test_a_turn_is_stored_only_once_its_rows_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, reached, may_write = SqlJournal.commit, threading.Event(), threading.Event()

    def commit_later(journal: SqlJournal, batch: Batch, *state: Any, **named: Any) -> StoreState | None:
        if any(table == "episodes" for rows in batch.values() for table, _ in rows):
            reached.set()
            may_write.wait(PATIENCE_SECONDS)
        return commit(journal, batch, *state, **named)

    monkeypatch.setattr(SqlJournal, "commit", commit_later)
    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice")
        await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)
        try:
            with pytest.raises(errors.ReceiptTimeout):
                await receipt.stored(timeout=0.3)
        finally:
            may_write.set()
        await receipt.stored(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("statement", ["UPDATE aftermind_versions", "INSERT INTO aftermind_rows", "SELECT"])
async def test_a_process_that_pauses_within_a_transaction_loses_no_turn(
    statement: str, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_connections, "IDLE_SECONDS", 0.2)  # after which the server ends such a transaction
    async with memory_at(sql_url(database), tmp_path) as memory:
        await (await memory.remember("before", user_id="alice")).stored(timeout=PATIENCE_SECONDS)
        with paused_at(memory, statement) as paused:
            turns = [memory.remember(f"meanwhile {number}", user_id="alice") for number in range(20)]
            remembering = asyncio.gather(*turns)
            await wait_until(paused.is_set, description="the process pauses")
            await wait_until(
                lambda: is_empty(database, "state LIKE 'idle in transaction%' OR state = 'active'"),
                description="the server ends the transaction that waits",
            )
            monkeypatch.setattr(sql_connections, "IDLE_SECONDS", 5.0)  # of connections that are made from now on

        for receipt in await remembering:
            await receipt.stored(timeout=PATIENCE_SECONDS)
        await memory.close()
        stored = [each.content for each in await memory.history(user_id="alice")]

    assert sorted(stored) == sorted(["before", *(f"meanwhile {number}" for number in range(20))])


async def test_a_server_that_ends_its_sessions_fails_no_call(tmp_path: Path, database: Database) -> None:
    async with memory_at(sql_url(database), tmp_path) as memory:
        await (await memory.remember("before", user_id="alice")).stored(timeout=PATIENCE_SECONDS)

        await psql_async(database.admin_url, f"SELECT pg_terminate_backend(pid) {SESSIONS}")

        await (await memory.remember("after", user_id="alice")).stored(timeout=PATIENCE_SECONDS)
        assert [each.content for each in await memory.history(user_id="alice")] == ["before", "after"]


@pytest.fixture(params=["redis", "sql", "sqlite"])
def shared_journal(request: pytest.FixtureRequest, tmp_path: Path) -> AnyJournal:
    return JOURNALS[request.param](tmp_path, request.getfixturevalue)


def repeat_commits(journal: AnyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit everything twice, as the client of Redis does by itself after a lost answer."""
    commit = type(journal).commit

    def commit_twice(*given: Any, **named: Any) -> StoreState | None:
        commit(*given, **named)
        return commit(*given, **named)

    monkeypatch.setattr(type(journal), "commit", commit_twice)


async def test_a_commit_that_is_repeated_because_its_answer_was_lost_counts_once(
    shared_journal: AnyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_commits(shared_journal, monkeypatch)
    database = MemoryDatabase(JournalWriter(shared_journal, CODEC))
    for number in range(3):
        async with database.transaction() as tx:
            tx.put(tx.table("generation"), "last", number)
    await database.close()  # what follows is read from the journal

    assert await database.generation() == 2
    await database.close()


@pytest.mark.parametrize("ending", ["wait", "close", "another transaction"])
async def test_what_no_transaction_waits_for_is_written_soon_and_before_a_store_is_closed(
    shared_journal: SharedJournal, ending: str
) -> None:
    database = MemoryDatabase(JournalWriter(shared_journal, CODEC))
    async with database.transaction() as tx:
        tx.put(tx.table("generation"), "last", 1)
    async with database.transaction(is_awaited=False) as tx:
        tx.put(tx.table("generation"), "last", 2)

    def is_written() -> bool:
        (found,) = shared_journal.read(-1, (), SHARED_NAME).changes
        return {(table, key): row for table, key, row in found.rows}["generation", '"last"'] == b"2"

    if ending == "wait":
        await wait_until(lambda: asyncio.to_thread(is_written), description="the journal has it")
    elif ending == "another transaction":
        async with database.transaction() as tx:
            tx.put(tx.table("generation"), "other", 1)
        assert await asyncio.to_thread(is_written)
    await database.close()  # what follows is read from the journal

    assert await database.generation() == 2
    await database.close()


async def test_a_repeated_commit_counts_once_also_where_another_process_waits_for_the_turn(
    shared_journal: AnyJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit_writer, "TURN_SECONDS", 0.0)
    database = MemoryDatabase(JournalWriter(shared_journal, CODEC))
    async with database.transaction() as tx:
        tx.put(tx.table("generation"), "last", 1)
    shared_journal.ask("another process")
    repeat_commits(shared_journal, monkeypatch)

    for number in (2, 3):  # the first sees that another process waits, and the second hands over
        async with database.transaction() as tx:
            tx.put(tx.table("generation"), "last", number)
    await database.close()

    assert await database.generation() == 3
    await database.close()


async def write_turn(folder: Path, user: str = "alice") -> None:
    async with memory_at(f"sqlite:{folder}/bot.db", folder) as memory:
        await (await memory.remember(f"said by {user}", user_id=user)).stored(timeout=30)


async def is_empty(database: Database, condition: str) -> bool:
    """Whether no other session of the database is in such a state."""
    return await psql_async(database.admin_url, f"SELECT count(*) {SESSIONS} AND ({condition})") == "0"


@contextmanager
def paused_at(memory: Memory, statement: str) -> Iterator[threading.Event]:
    """Once, between sending such a statement and reading its result, pause the thread that talks to the server."""
    server = memory._parts.db._journal._shared._at  # type: ignore[attr-defined]
    engine, paused, goes_on = server._async.sync_engine, threading.Event(), threading.Event()

    def pause() -> None:
        goes_on.wait(PATIENCE_SECONDS)

    def on_statement(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.startswith(statement) and not paused.is_set():
            paused.set()
            server._loop.call_soon(pause)  # before the loop reads from its sockets again

    sqlalchemy.event.listen(engine, "before_cursor_execute", on_statement)
    try:
        yield paused
    finally:
        goes_on.set()
        sqlalchemy.event.remove(engine, "before_cursor_execute", on_statement)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Root may write everything, and in a container tests run as root: the user changes as well."""
    user = os.geteuid()
    (folder / "bot.db").chmod(0o400)
    folder.chmod(0o500)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


WRONG_LIMITS = (0, -1, 10**20, True, "5")


@pytest.mark.parametrize("limit", WRONG_LIMITS)
async def test_a_wrong_limit_is_refused_by_every_call_that_lists(limit: Any) -> None:
    async with Memory("inmemory") as memory:
        calls = [
            memory.facts.query(limit=limit),
            memory.facts.history(limit=limit),
            memory.facts.graph("user", limit=limit),
            memory.sessions(limit=limit),
            memory.history(limit=limit),
            memory.jobs.list(limit=limit),
            memory.dead_letters.list(JobFilter(), limit=limit),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidInput, match="whole number from 1 to"):
                await call


async def test_wrong_arguments_are_refused_before_the_store_is_asked() -> None:
    async with Memory("inmemory") as memory:
        with pytest.raises(errors.InvalidQuery, match="ids of episodes"):
            await memory.facts.add("user", "likes", "tea", sources=("zz",))  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidFact, match="it is text"):
            await memory.facts.query(subject=5)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidQuery, match="it is a date"):
            await memory.spending(since="2026-11-01")  # type: ignore[arg-type]
