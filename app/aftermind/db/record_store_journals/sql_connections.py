"""Connections of `sql.SqlJournal`: to one file of SQLite, by its own module, and to a server, by SQLAlchemy."""

import asyncio
import ctypes
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aftermind import errors
from aftermind.private_files import PRIVATE_MODE, make_folder

T = TypeVar("T")
APPLICATION_ID = 0x41465431  # "AFT1": distinguishes the file from those of other programs
TIMEOUT_SECONDS = 5.0  # of a lock, and of closing
IDLE_SECONDS = 5.0  # of a connection that a frozen process holds in a transaction
ANSWER_SECONDS = 60.0  # for a commit of very many rows
ROWS_OF_A_STATEMENT = (512, 64, 8, 1)  # by which an INSERT is divided; six values each, of at most 32,766
BUSY_SECONDS = 2.0  # that SQLite waits for the write of another process
# Any: values of a row, or a parameter; by name, or a list of them for a statement that is executed for each
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Mode(StrEnum):
    """What a transaction is for."""

    READ = "read"  # of one moment
    SYNCED = "FULL"  # it survives a power failure
    UNSYNCED = "NORMAL"  # a power failure may take it


class Result(Protocol):
    """Rows of a statement."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def __iter__(self) -> Iterator[Any]:
        """The rows."""


class Connection(Protocol):
    """Executes statements in a transaction. Those of SQLAlchemy have it, too."""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """Run a statement of SQLAlchemy; a `Result`."""


class SqliteFile:
    """One file in WAL mode. Reads have a second connection, so that they wait for no write."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._read: sqlite3.Connection | None = None
        self._write: sqlite3.Connection | None = None
        self._watch: sqlite3.Connection | None = None
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._synchronous: Mode | None = None

    def open(self) -> None:
        """Create the file if it is absent. Raises `InvalidSettings` for that of another program."""
        self._create_file()
        self._read, self._write, self._watch = (self._connect() for _ in range(3))

    def run(self, work: Callable[[Connection], T], mode: Mode) -> T:
        """Run a function in a transaction."""
        if self._write is None or self._read is None:
            raise errors.StoreUnavailable(self._name, "it is closed", "Open the memory again.")
        if mode is Mode.READ:
            with self._reading, _transaction(self._read, "BEGIN"):
                return work(_Sqlite(self._read))
        with self._writing:
            if mode is not self._synchronous:
                self._write.execute(f"PRAGMA synchronous = {mode}")
                self._synchronous = mode
            with _transaction(self._write, "BEGIN IMMEDIATE"):
                return work(_Sqlite(self._write))

    def stamp(self) -> object | None:
        """It changes with each commit of another connection."""
        found: tuple[int] | None = (
            None if self._watch is None else self._watch.execute("PRAGMA data_version").fetchone()
        )
        return found

    def check(self, on: Connection) -> None:
        """Refuse the file of another program, and one of an earlier build."""
        (application,) = on.execute("PRAGMA application_id").fetchone()
        (tables,) = on.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and tables:
            why = "the file belongs to another program. Name another file."
            raise errors.InvalidSettings("url", self._name, why)
        if on.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchone():
            why = (
                "an earlier build wrote the file. Run `aftermind copy` with that build from it to a json: folder, and "
                "with this one from the folder to a new file."
            )
            raise errors.InvalidSettings("url", self._name, why)
        on.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def compact(self) -> None:
        """Deleted content was overwritten in the file; copies of its pages are in the log."""
        if self._write is not None:
            with self._writing:
                self._write.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the connections."""
        for each in (self._read, self._write, self._watch):
            if each is not None:
                each.close()
        self._read = self._write = self._watch = None

    def abandon(self) -> None:
        """Closing them in a forked process would delete the parent's log."""
        for each in (self._read, self._write, self._watch):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # not even when the interpreter ends
        self.__init__(self._name, self._path)  # type: ignore[misc]  # locks as well: a thread of the parent may hold one

    def _create_file(self) -> None:
        try:
            make_folder(self._path.parent)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
        except OSError as exc:
            hint = "Choose a file in a folder that this user may write, or fix the permissions."
            raise errors.StoreUnavailable(self._name, exc.strerror or str(exc), hint) from exc

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(str(self._path), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = WAL", "secure_delete = ON"):
            made.execute(f"PRAGMA {pragma}")
        return made


class Server:
    """A server, by the driver that its URL names. What is asynchronous runs in a loop of a thread.

    A transaction whose connection breaks runs once more, on another one: a process that was suspended, or a server that
    was restarted, has cost it no more than that. So its work must be repeatable.
    """

    def __init__(self, name: str, url: sa.URL, tables: Sequence[sa.Table]) -> None:
        self._name, self._url, self._tables = name, url, tables
        self._sync: sa.Engine | None = None
        self._async: AsyncEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Make the engine; nothing connects yet."""
        is_async = self._url.get_dialect().is_async
        if is_async:
            self._async = create_async_engine(self._url, pool_size=2)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="aftermind-sql", daemon=True)
            self._thread.start()
        else:
            self._sync = sa.create_engine(self._url, pool_size=2)
        engine = self._sync if self._async is None else self._async.sync_engine
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "handle_error", _note_broken)

    def run(self, work: Callable[[Connection], T], mode: Mode) -> T:
        """Run a function in a transaction."""
        try:
            return self._run(work, mode)
        except sa.exc.DBAPIError as exc:
            if not exc.connection_invalidated:
                raise
            return self._run(work, mode)

    def _run(self, work: Callable[[Connection], T], mode: Mode) -> T:
        options = {"isolation_level": "REPEATABLE READ"} if mode is Mode.READ else {}
        if self._sync is not None:
            with self._sync.execution_options(**options).begin() as on:
                return _begun(work, mode)(on)
        if self._async is None or self._loop is None:
            raise errors.StoreUnavailable(self._name, "it is closed", "Open the memory again.")
        engine = self._async.execution_options(**options)

        async def in_loop() -> T:
            async with engine.begin() as on:
                return await on.run_sync(_begun(work, mode))

        running = asyncio.run_coroutine_threadsafe(in_loop(), self._loop)
        try:
            return running.result(ANSWER_SECONDS)
        finally:
            running.cancel()  # of what has not ended in time, so that it cannot commit after it was reported as failed

    def stamp(self) -> object | None:
        """None: only a query could show it."""
        return None

    def check(self, on: Connection) -> None:
        """Refuse tables of another program that have the names of these."""
        assert isinstance(on, sa.Connection)
        there = sa.inspect(on)
        for table in self._tables:
            if there.has_table(table.name):
                missing = {each.name for each in table.columns} - {
                    each["name"] for each in there.get_columns(table.name)
                }
                if missing:
                    why = f"its table {table.name} belongs to another program: it has no column {min(missing)}. "
                    raise errors.InvalidSettings("url", self._name, f"{why}Name another database.")

    def compact(self) -> None:
        """The database reclaims deleted rows by itself."""

    def close(self) -> None:
        """Close the connections."""
        if self._async is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._async.dispose(), self._loop).result(TIMEOUT_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread is not None:
                self._thread.join(TIMEOUT_SECONDS)
            self._loop.close()
        if self._sync is not None:
            self._sync.dispose()
        self._sync = self._async = self._loop = None

    def abandon(self) -> None:
        """Forget them; only the parent's copies of the sockets count."""
        if self._sync is not None:
            self._sync.dispose(close=False)
        if self._async is not None:
            self._async.sync_engine.dispose(close=False)
        self._sync = self._async = self._loop = None


class _Sqlite:
    """`Connection` for a connection of SQLite."""

    def __init__(self, on: sqlite3.Connection) -> None:
        self._on = on

    def execute(self, statement: Any, parameters: Any = (), /) -> sqlite3.Cursor:
        if isinstance(parameters, list):
            return self._insert(statement, parameters)
        return self._on.execute(statement if isinstance(statement, str) else _compile(statement), parameters)

    def _insert(self, statement: Any, rows: Sequence[Mapping[str, Any]]) -> sqlite3.Cursor:
        """Many rows a statement: the module gives up the interpreter's lock at each one, and must get it back."""
        on, start = self._on.cursor(), 0
        for count in ROWS_OF_A_STATEMENT:
            while len(rows) - start >= count:
                names, text = _compile_insert(statement, count)
                on.execute(text, [row[name] for row in rows[start : start + count] for name in names])
                start += count
        return on


@cache
def _compile(statement: Any) -> str:
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


@cache
def _compile_insert(statement: Any, count: int) -> tuple[Sequence[str], str]:
    """The names of a row's parameters, and an INSERT of `count` rows with parameters by place."""
    head, (names, tail) = (
        (text := _compile(statement)).partition("VALUES (")[0],
        text.partition("VALUES (")[2].split(")", 1),
    )
    row = f"({', '.join('?' * len(names.split(',')))})"
    return [name.strip(" :") for name in names.split(",")], f"{head}VALUES {', '.join([row] * count)}{tail}"


@contextmanager
def _transaction(on: sqlite3.Connection, begin: str) -> Iterator[None]:
    on.execute(begin)
    try:
        yield
        on.execute("COMMIT")
    except BaseException:
        if on.in_transaction:
            on.execute("ROLLBACK")
        raise


def _begun(work: Callable[[Connection], T], mode: Mode) -> Callable[[sa.Connection], T]:
    def in_transaction(on: sa.Connection) -> T:
        if mode is Mode.UNSYNCED and on.dialect.name == "postgresql":
            on.execute(sa.text("SET LOCAL synchronous_commit = off"))
        return work(on)

    return in_transaction


def _prepare(raw: Any, _: object) -> None:
    cursor = raw.cursor()
    for name, seconds in (("idle_in_transaction_session_timeout", IDLE_SECONDS), ("lock_timeout", TIMEOUT_SECONDS)):
        cursor.execute(f"SET {name} = {seconds * 1000:.0f}")
    cursor.close()
    raw.commit()


def _note_broken(context: sa.engine.ExceptionContext) -> None:
    """Mark a connection as broken on which the server sent an error while no statement ran.

    It does so when it ends a session: it shuts down, or a transaction has waited for its process for too long. Until
    the socket is closed as well, asyncpg takes the connection for one in use: "cannot switch to state 15; another
    operation (2) is in progress".
    """
    if isinstance(context.original_exception, getattr(context.dialect.loaded_dbapi, "InternalClientError", ())):
        context.is_disconnect = True
