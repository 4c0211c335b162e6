"""MongoDB as the store, by its client and protocol.

MongoDB's own server is in no package, so the server is BriskDB, which answers a part of the protocol: no transactions,
no write concern (hence `w=1`), and eight connections, which the processes share through a proxy. It
takes 5 ms for an insert and 15 ms for an update, so tests of three writing processes or more are left out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
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
from aftermind.db.record_store_journals.protocol import Batch, PartitionChange
from aftermind.db.record_store_journals.row_codec import SHARED_NAME
from aftermind.integrations.upsonic_parameters import PARAMETERS
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.stores.inmemory import InMemoryStore
from tests.conformance import ledger_fixtures, store_fixtures, test_ledgers
from tests.conformance.ledger_contract import LedgerContract
from tests.conformance.store_contract import StoreContract
from tests.integration.stores.test_shared_stores import (
    test_a_job_that_outlasts_its_lease_runs_once,  # noqa: F401
    test_a_process_that_is_frozen_in_a_transaction_stops_no_other,  # noqa: F401
    test_a_subscriber_hears_events_of_another_process,  # noqa: F401
    test_each_process_sees_a_commit_of_another_in_its_next_transaction,  # noqa: F401
    test_jobs_of_a_frozen_process_are_done_by_another,  # noqa: F401
    test_jobs_of_a_killed_process_are_done_by_one_that_is_idle,  # noqa: F401
    test_turns_of_a_session_are_in_the_order_in_which_processes_accepted_them,  # noqa: F401
    test_what_one_process_forgets_is_gone_in_the_others,  # noqa: F401
)
from tests.integration.stores.test_stored_memory import (
    memory_at,
    test_a_job_whose_process_was_killed_runs_again_after_the_restart,  # noqa: F401
    test_a_key_is_the_same_turn_after_a_restart,  # noqa: F401
    test_everything_is_there_after_a_restart,  # noqa: F401
    test_nothing_acknowledged_is_lost_or_doubled_by_a_kill,  # noqa: F401
)
from tests.integration.stores.test_workers_of_shared_stores import (
    broker,  # noqa: F401
    test_agents_leave_jobs_to_a_worker,  # noqa: F401
    test_nothing_is_lost_or_doubled_when_workers_are_killed,  # noqa: F401
)
from tests.support.journals import reading_each_time
from tests.support.shared_connections import sharing_connections

ROWS: Batch = {"p": {("t", "a"): b"1", ("t", "b"): b"2"}}


@pytest.fixture(scope="class")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server: not one for all tests, as it has a limit of databases."""
    with (
        briskdb.open(str(tmp_path_factory.mktemp("briskdb")), shards=2, documents=True) as database,
        database.serve(mongo="127.0.0.1:0") as listener,
        sharing_connections(str(listener.mongo_address)) as address,
    ):
        yield address


@pytest.fixture
def url(server: str) -> str:
    """A database of the test's own."""
    return f"mongodb://{server}/d{uuid4().hex}?w=1"


class TestMongoStore(StoreContract):
    """The in-memory store, written to MongoDB."""

    @pytest.fixture
    async def rig(self, url: str) -> AsyncIterator[store_fixtures.Rig]:
        """A store that reads its rows back each time."""
        database: MemoryDatabase = reading_each_time(MongoJournal(url, shared=SHARED_NAME))
        yield store_fixtures.Rig(db=database, store=InMemoryStore())
        await database.close()


class TestMongoLedger(LedgerContract):
    """The in-memory ledger, written to MongoDB."""

    @pytest.fixture
    async def rig(self, url: str) -> AsyncIterator[ledger_fixtures.Rig]:
        """A ledger that reads its rows back each time."""
        database = reading_each_time(MongoJournal(url, shared=SHARED_NAME), test_ledgers.MovedDatabase)

        async def pass_time(by: timedelta) -> None:
            database.ahead += by

        yield ledger_fixtures.Rig(db=database, ledger=InMemoryLedger(database), pass_time=pass_time)
        await database.close()


@pytest.fixture
def journal(url: str) -> Iterator[MongoJournal]:
    made = MongoJournal(url, shared="s")
    made.open()
    yield made
    made.close()


def content(url: str) -> str:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        names = ("aftermind_rows", "aftermind_state", "aftermind_parts", "aftermind_partitions")
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


def content_of(journal: MongoJournal, partition: str = "p") -> dict[tuple[str, str], bytes | None]:
    """All rows of a partition, as a process reads them that has none of them."""
    [change] = journal.read(-1, (), partition).changes
    return {(table, key): row for table, key, row in change.rows}


def committed(journal: MongoJournal, batch: Batch, *erased: str) -> int:
    """The version of a commit by a process that holds the turn."""
    done = journal.commit(batch, journal.state(), holder="a", erased=erased)
    assert done is not None
    return done.version


@contextmanager
def unwritten() -> Iterator[None]:
    """Commits whose process ends before it writes their rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MongoJournal, "_write", lambda journal, changes, version, erased: None)
        yield


def test_a_commit_whose_rows_were_not_written_is_completed_by_the_next_reader(url: str, journal: MongoJournal) -> None:
    committed(journal, ROWS)
    with unwritten():
        committed(journal, {"p": {("t", "a"): b"3", ("t", "b"): None}})
    after = MongoJournal(url, shared="s")
    after.open()

    assert content_of(after) == {("t", "a"): b"3"}
    after.close()


def test_a_commit_whose_rows_were_not_written_is_completed_by_the_next_commit(url: str, journal: MongoJournal) -> None:
    with unwritten():
        committed(journal, ROWS)
    after = MongoJournal(url, shared="s")
    after.open()
    committed(after, {"p": {("t", "c"): b"3"}})

    assert content_of(journal) == {**ROWS["p"], ("t", "c"): b"3"}
    after.close()


@pytest.mark.parametrize("is_erased", [True, False])
def test_rows_that_a_frozen_process_writes_late_change_nothing(url: str, is_erased: bool) -> None:
    late, now = MongoJournal(url, shared="s"), MongoJournal(url, shared="s")
    late.open()
    now.open()
    committed(late, ROWS)
    batch: Batch = {"p": {("t", "a"): b"late", ("t", "b"): None, ("t", "c"): b"late"}}
    with unwritten():
        version = committed(late, batch)
    if is_erased:
        committed(now, {"p": {("t", "a"): None, ("t", "c"): None}}, "p")
        now.compact(["p"])
    else:
        committed(now, {"p": {("t", "b"): b"new", ("t", "c"): b"new"}})

    late._write([(name, *place, row) for name, rows in batch.items() for place, row in rows.items()], version, ())

    assert content_of(now) == ({} if is_erased else {("t", "a"): b"late", ("t", "b"): b"new", ("t", "c"): b"new"})
    late.close()
    now.close()


def test_a_row_that_was_deleted_and_comes_again_is_the_last_one(journal: MongoJournal) -> None:
    committed(journal, ROWS)
    committed(journal, {"p": {("t", "a"): None}})
    committed(journal, {"p": {("t", "a"): b"3"}})

    assert list(content_of(journal)) == [("t", "b"), ("t", "a")]


def test_a_process_reads_what_changed_since_it_read(journal: MongoJournal) -> None:
    version = committed(journal, {**ROWS, "q": {("t", "x"): b"1"}})
    committed(journal, {"p": {("t", "a"): b"2", ("t", "b"): None}})

    found = journal.read(version, {"p", "q"})
    committed(journal, {"p": {("t", "a"): None}}, "p")
    erased = journal.read(found.version, {"p"})

    assert set(found.partitions) == {"p"}
    assert [(each.is_whole, set(each.rows)) for each in found.changes] == [
        (False, {("t", "a", b"2"), ("t", "b", None)})
    ]
    assert [(each.is_whole, each.rows) for each in erased.changes] == [(True, [])]
    assert not journal.read(erased.version, {"p"}).changes


def test_a_commit_larger_than_a_document_is_one_step(
    url: str, journal: MongoJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongodb, "PART_BYTES", 1_000)
    rows = {("t", str(number)): b"x" * 100 for number in range(100)}

    with unwritten():
        committed(journal, {"p": rows})
    after = MongoJournal(url, shared="s")
    after.open()

    assert content_of(after) == rows
    assert list(content_of(after)) == list(rows)
    after.compact(["p"])
    assert list(after._parts.find()) == []
    after.close()


def test_a_store_of_an_earlier_build_is_refused(url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        client.get_default_database()["aftermind_state"].insert_one({"_id": "state", "opener": None, "commit": 3})

    with pytest.raises(errors.InvalidSettings, match="Name another database"):
        MongoJournal(url, shared="s").open()


def test_a_commit_of_a_process_whose_turn_was_taken_is_refused(url: str, journal: MongoJournal) -> None:
    other = MongoJournal(url, shared="s")
    other.open()
    seen = journal.state()
    other.commit({}, seen, holder="b")

    assert journal.commit(ROWS, seen, holder="a") is None
    assert journal.read(-1, (), "p").changes == [PartitionChange(partition="p", rows=[], is_whole=True)]
    other.close()


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
