"""MongoDB as the store, by its client and protocol.

MongoDB's own server is in no package, so the server is BriskDB, which answers a part of the protocol: no transactions,
no write concern (hence `w=1`), no list of connections.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import briskdb
import pymongo
import pytest

from aftermind import Memory, errors
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals import mongodb
from aftermind.db.record_store_journals.mongodb import MongoJournal
from aftermind.integrations.upsonic_parameters import PARAMETERS
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.stores.inmemory import InMemoryStore
from tests.conformance import ledger_fixtures, store_fixtures, test_ledgers
from tests.conformance.ledger_contract import LedgerContract
from tests.conformance.store_contract import StoreContract
from tests.integration.stores.test_stored_memory import (
    memory_at,
    test_a_job_whose_process_was_killed_runs_again_after_the_restart,  # noqa: F401
    test_a_key_is_the_same_turn_after_a_restart,  # noqa: F401
    test_everything_is_there_after_a_restart,  # noqa: F401
    test_nothing_acknowledged_is_lost_or_doubled_by_a_kill,  # noqa: F401
)
from tests.support.journals import reading_each_time

ROWS = {"p": {("t", "a"): b"1", ("t", "b"): b"2"}}


@pytest.fixture(scope="class")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server: not one for all tests, as it has a limit of databases."""
    with (
        briskdb.open(str(tmp_path_factory.mktemp("briskdb")), shards=2, documents=True) as database,
        database.serve(mongo="127.0.0.1:0") as listener,
    ):
        yield str(listener.mongo_address)


@pytest.fixture
def url(server: str) -> str:
    """A database of the test's own."""
    return f"mongodb://{server}/d{uuid4().hex}?w=1"


class TestMongoStore(StoreContract):
    """The in-memory store, written to MongoDB."""

    @pytest.fixture
    async def rig(self, url: str) -> AsyncIterator[store_fixtures.Rig]:
        """A store that reads its rows back each time."""
        database: MemoryDatabase = reading_each_time(MongoJournal(url))
        yield store_fixtures.Rig(db=database, store=InMemoryStore())
        await database.close()


class TestMongoLedger(LedgerContract):
    """The in-memory ledger, written to MongoDB."""

    @pytest.fixture
    async def rig(self, url: str) -> AsyncIterator[ledger_fixtures.Rig]:
        """A ledger that reads its rows back each time."""
        database = reading_each_time(MongoJournal(url), test_ledgers.MovedDatabase)

        async def pass_time(by: timedelta) -> None:
            database.ahead += by

        yield ledger_fixtures.Rig(db=database, ledger=InMemoryLedger(database), pass_time=pass_time)
        await database.close()


@pytest.fixture
def journal(url: str) -> Iterator[MongoJournal]:
    made = MongoJournal(url)
    made.open()
    yield made
    made.close()


def content(url: str) -> str:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        names = ("aftermind_rows", "aftermind_state", "aftermind_parts")
        return "".join(str(list(database[name].find())) for name in names)


async def test_what_was_forgotten_is_in_no_collection(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await (await memory.remember("My code word is heliotrope.", user_id="alice")).stored(timeout=30)
        assert "heliotrope" in await asyncio.to_thread(content, url)
        await memory.forget(user_id="alice")

        assert "heliotrope" not in await asyncio.to_thread(content, url)


async def test_a_storage_of_upsonic_keeps_what_it_was_given(server: str, tmp_path: Path) -> None:
    given = {"db_url": f"mongodb://{server}/?w=1", "db_name": f"d{uuid4().hex}"}
    async with memory_at(PARAMETERS["MongoStorage"].place(**given), tmp_path) as memory:
        await memory.blocks.set("human", "Alice.", user_id="alice")

    async with memory_at(PARAMETERS["AsyncMongoStorage"].place(**given), tmp_path) as memory:
        assert [each.content for each in await memory.blocks.list(user_id="alice")] == ["Alice."]


async def test_a_process_whose_store_was_opened_by_another_cannot_write(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as first:
        await (await first.remember("first", user_id="alice")).stored(timeout=30)
        async with memory_at(url, tmp_path) as second:
            with pytest.raises(errors.StoreInUse):
                await first.remember("refused", user_id="alice")

            await (await second.remember("second", user_id="alice")).stored(timeout=30)
            assert [each.content for each in await second.history(user_id="alice")] == ["first", "second"]


def test_a_commit_whose_rows_were_not_written_is_completed_by_the_next_opening(url: str) -> None:
    killed = MongoJournal(url)
    killed.open()
    killed.commit(ROWS)
    killed._put([("p", "t", "a", b"3"), ("p", "t", "b", None)], killed._opener, {})

    after = MongoJournal(url)
    after.open()

    assert list(after.load("p")) == [("t", "a", b"3")]
    after.close()


@pytest.mark.parametrize("is_erased", [True, False])
def test_rows_that_a_replaced_process_writes_late_change_nothing(url: str, is_erased: bool) -> None:
    late = MongoJournal(url)
    late.open()
    late.commit(ROWS)
    changes = [("p", "t", "a", b"late"), ("p", "t", "b", None), ("p", "t", "c", b"late")]
    late._put(changes, late._opener, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MongoJournal, "_disconnect", lambda journal: None)
        now = MongoJournal(url)
        now.open()
    now.commit({"p": {("t", "b"): b"new", ("t", "c"): None if is_erased else b"new"}})

    late._write(changes)

    found = {(table, key): row for table, key, row in now.load("p")}
    assert found == {("t", "a"): b"late", ("t", "b"): b"new"} | ({} if is_erased else {("t", "c"): b"new"})
    now.close()


def test_a_commit_larger_than_a_document_is_one_step(journal: MongoJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongodb, "PART_BYTES", 1_000)
    rows = {("t", str(number)): b"x" * 100 for number in range(100)}

    journal.commit({"p": rows})
    journal._is_written = False  # as after an answer that was lost

    assert {(table, key): row for table, key, row in journal.load("p")} == rows
    journal.compact(["p"])
    assert "aftermind_parts" not in journal._database.list_collection_names() or not list(
        journal._database["aftermind_parts"].find()
    )


@pytest.mark.parametrize("url", ["mongodb://user:secret@/db", "mongodb://user:secret@h:port/db", "mongodb:db"])
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        Memory(url)
    assert "secret" not in str(refused.value)


async def test_a_server_that_does_not_answer_is_reported_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongodb, "TIMEOUT_MS", 200)
    memory = memory_at("mongodb://user:secret@127.0.0.1:1/db", tmp_path)

    with pytest.raises(errors.StoreUnavailable, match=r"mongodb://127\.0\.0\.1:1: .*Check MongoDB") as refused:
        await memory.remember("refused", user_id="alice")

    assert "secret" not in str(refused.value)
