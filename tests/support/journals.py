"""Databases whose rows are in a journal, and that keep nothing in memory between transactions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from aftermind.api.journalled_tables import make_codec
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.files import FileJournal
from aftermind.db.record_store_journals.group_commit_writer import JournalWriter
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.db.record_store_journals.redis import RedisJournal
from aftermind.db.record_store_journals.row_codec import SHARED_NAME
from aftermind.db.record_store_journals.sql import SqlJournal
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database

D = TypeVar("D", bound=MemoryDatabase)
CODEC = make_codec()

JOURNALS: Mapping[str, Callable[[Path, Callable[[str], Any]], AnyJournal]] = {
    "sqlite": lambda folder, _: SqlJournal(path=folder / "memory.db", shared=SHARED_NAME),
    "json": lambda folder, _: FileJournal(folder / "memory"),
    "redis": lambda _, fixture: RedisJournal(fixture("redis_url"), Keys().journal, shared=SHARED_NAME),
    "sql": lambda _, fixture: SqlJournal(sql_url(fixture("database")).removeprefix("sql+"), shared=SHARED_NAME),
}


def sql_url(database: Database) -> str:
    """A record store in a database of Postgres."""
    return f"sql+{database.url.replace('postgresql://', 'postgresql+asyncpg://', 1)}"


def reading_each_time(journal: AnyJournal, kind: type[D] = MemoryDatabase, **more: Any) -> D:  # type: ignore[assignment]
    """A database that reads every partition again in every transaction, so that what it shows was written."""
    return kind(JournalWriter(journal, CODEC), max_partitions=0, **more)
