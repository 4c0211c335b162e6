"""Databases whose rows are in a journal, and that keep nothing in memory between transactions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from aftermind.api.record_tables import make_codec
from aftermind.db.inmemory import MemoryDatabase
from aftermind.db.record_store_journals.files import FileJournal
from aftermind.db.record_store_journals.protocol import Journal
from aftermind.db.record_store_journals.redis import RedisJournal
from aftermind.db.record_store_journals.sqlite import SqliteJournal
from aftermind.db.record_store_journals.writer import JournalWriter
from aftermind.wire.redis_keys import Keys

D = TypeVar("D", bound=MemoryDatabase)
CODEC = make_codec()

JOURNALS: Mapping[str, Callable[[Path, Callable[[], str]], Journal]] = {
    "sqlite": lambda folder, _: SqliteJournal(folder / "memory.db"),
    "json": lambda folder, _: FileJournal(folder / "memory"),
    "redis": lambda _, redis_url: RedisJournal(redis_url(), Keys().journal),
}


def reading_each_time(journal: Journal, kind: type[D] = MemoryDatabase, **more: Any) -> D:  # type: ignore[assignment]
    """A database that reads every partition again in every transaction, so that what it shows was written."""
    return kind(JournalWriter(journal, CODEC), max_partitions=0, **more)
