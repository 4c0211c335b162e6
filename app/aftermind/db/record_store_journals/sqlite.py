"""`SqliteJournal`: rows in one SQLite file, in WAL mode, synced at every commit."""

import ctypes
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch
from aftermind.private_files import PRIVATE_MODE, make_folder

APPLICATION_ID = 0x41465431  # "AFT1": distinguishes the file from those of other programs
_PRAGMAS = (
    "PRAGMA locking_mode = EXCLUSIVE",  # the lock ends with the process, however that ends
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # with NORMAL a power failure takes the last commits
    "PRAGMA secure_delete = ON",
)
_SCHEMA = """
    CREATE TABLE rows (
        partition TEXT NOT NULL, table_name TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (partition, table_name, key)
    )
"""
# The update keeps the row's place: rows are loaded in the order in which they were inserted.
_PUT = """
    INSERT INTO rows (partition, table_name, key, value) VALUES (?, ?, ?, ?)
    ON CONFLICT (partition, table_name, key) DO UPDATE SET value = excluded.value
"""
_DELETE = "DELETE FROM rows WHERE partition = ? AND table_name = ? AND key = ?"
_LOAD = "SELECT table_name, key, value FROM rows WHERE partition = ? ORDER BY rowid"
_PARTITIONS = "SELECT DISTINCT partition FROM rows"
_BUSY_SECONDS = 1.0  # a process that was killed a moment ago may still hold the lock


class SqliteJournal:
    """See `Journal`. The file and its folder are created if they do not exist."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = f"sqlite:{path}", path
        self._connection: sqlite3.Connection | None = None
        _journals.add(self)

    def open(self) -> None:
        self._create_file()
        with self._errors():
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors():
                self._prepare()
        except errors.AftermindError:
            self.close()
            raise

    def partitions(self) -> Iterable[str]:
        with self._errors():
            return [partition for (partition,) in self._open_connection.execute(_PARTITIONS)]

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        with self._errors():
            return self._open_connection.execute(_LOAD, (partition,)).fetchall()

    def commit(self, batch: Batch) -> None:
        rows = [(name, *place, value) for name, changes in batch.items() for place, value in changes.items()]
        with self._errors(), self._transaction() as connection:
            connection.executemany(_PUT, [row for row in rows if row[3] is not None])
            connection.executemany(_DELETE, [row[:3] for row in rows if row[3] is None])

    def compact(self, partitions: Iterable[str]) -> None:
        """Deleted content was overwritten in the file; copies of its pages are in the log."""
        with self._errors():
            self._open_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abandon(self) -> None:
        """Leave the connection to the parent process, without closing it: that would delete the parent's log."""
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))  # not even when the interpreter ends
            self._connection = None

    @property
    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
        return self._connection

    def _create_file(self) -> None:
        try:
            make_folder(self._path.parent)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
        except OSError as exc:
            hint = "Choose a file in a folder that this user may write, or fix the permissions."
            raise errors.StoreUnavailable(self.name, exc.strerror or str(exc), hint) from exc

    def _prepare(self) -> None:
        connection = self._open_connection
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        with self._transaction():
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != APPLICATION_ID and tables:
                why = "the file belongs to another program. Name another file."
                raise errors.InvalidSettings("url", self.name, why)
            if not tables:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._open_connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            code = getattr(exc, "sqlite_errorcode", None)
            primary = None if code is None else code & 0xFF
            if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise errors.StoreInUse(self.name) from exc
            if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise errors.StoreDamaged(self.name, str(exc)) from exc
            hint = _HINTS.get(primary or 0, "Check the file and its disk.")
            raise errors.StoreUnavailable(self.name, str(exc), hint) from exc


def _abandon_all() -> None:
    for journal in list(_journals):
        journal.abandon()


_journals: WeakSet[SqliteJournal] = WeakSet()
os.register_at_fork(after_in_child=_abandon_all)

_HINTS = {
    sqlite3.SQLITE_FULL: "Free space on the disk; the next call tries again.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
    sqlite3.SQLITE_CANTOPEN: "Make the file and its folder readable and writable for this user.",
}
