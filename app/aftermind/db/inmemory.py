"""`MemoryDatabase`: tables in this process, one transaction at a time, rolled back by an undo log.

The rows of an owner are one partition; what belongs to no owner (jobs, counters) is another. Without a journal nothing
outlives the process. With one, a commit returns when the journal has written its rows, and a partition is read from the
journal when it is first used.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID, uuid4

from aftermind import errors
from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.db.record_store_journals.rows import DELETED, Changes, Owner
from aftermind.db.record_store_journals.writer import JournalWriter
from aftermind.types import Scope

SHARED: Owner = ("", "")  # the partition of what belongs to no owner; a namespace is never empty
LOCK_SECONDS = 5.0  # a transaction waits for others, without the time in which they read the journal
WAIT_SECONDS = 0.001  # between checks of a lock that another task or thread holds: loops share it, so none may block
MAX_PARTITIONS = 100_000  # in memory, where a journal has them all
IDLE_SECONDS = 24 * 3600.0  # after which a partition leaves memory

T = TypeVar("T")
# Any in this module: the module that owns a table defines the types of its keys and rows
Index = dict[Any, Any]


class Rows(dict[Any, Any]):
    """The part of a table that is in one partition. `version` grows with each change, and with its undoing."""

    __slots__ = ("name", "owner", "version")

    def __init__(self, owner: Owner, name: str) -> None:
        super().__init__()
        self.owner, self.name, self.version = owner, name, 0


class Partition:
    """The tables of an owner, and indexes over them, which are built at their first use and are not written."""

    def __init__(self, owner: Owner, stored: MutableMapping[str, dict[Any, Any]] | None = None) -> None:
        self.owner, self.used_at = owner, monotonic()
        self.tables: dict[str, Rows] = {}
        self.indexes: dict[str, Index] = {}
        for name, rows in (stored or {}).items():
            self.rows(name).update(rows)

    def rows(self, name: str) -> Rows:
        """A table by name, empty at first."""
        if name not in self.tables:
            self.tables[name] = Rows(self.owner, name)
        return self.tables[name]


class MemoryTransaction:
    """Changes to tables, each with its undo operation."""

    def __init__(self, database: "MemoryDatabase") -> None:
        self.database = database
        self.changes: Changes = {}
        self.is_erasure = False  # whether the journal must also remove what the rows held before
        self._undo: list[tuple[dict[Any, Any], Callable[[], object]]] = []
        self.after_commit: list[Callable[[], None]] = []

    async def enter(self, namespace: str) -> None:
        """Nothing to set: there is no database between the tenants of one process."""

    def table(self, name: str) -> Rows:
        """A table of the shared partition."""
        return self.rows(name, SHARED)

    def rows(self, name: str, owner: Owner) -> Rows:
        """The part of a table that is an owner's; `database.load` comes first."""
        return self.database.partition(owner).rows(name)

    async def owned(self, name: str, scope: Scope) -> Rows:
        """`database.load` and `rows`."""
        owner = scope.namespace, scope.user_column
        await self.database.load(owner)
        return self.rows(name, owner)

    def index(self, name: str, build: Callable[[], Index]) -> Index:
        """An index over the shared partition. It changes with `put` and `drop`, and is not written."""
        indexes = self.database.partition(SHARED).indexes
        if name not in indexes:
            indexes[name] = build()
            self._undo.append((indexes, lambda: indexes.pop(name, None)))  # it may hold changes of this transaction
        return indexes[name]

    def clear_indexes(self) -> None:
        """Drop the indexes of the shared partition after changes that they did not follow. The next use builds them."""
        self.clear(self.database.partition(SHARED).indexes)

    def owned_index(self, name: str, scope: Scope) -> Index:
        """An index over an owner's partition, empty at first, as long as that is in memory; `database.load` first."""
        return self.database.partition((scope.namespace, scope.user_column)).indexes.setdefault(name, {})

    def owners(self, namespace: str) -> list[Owner]:
        """The owners of a namespace that may have rows."""
        return [owner for owner in self.database.owners if owner[0] == namespace]

    def put(self, rows: dict[Any, Any], key: Any, value: Any) -> None:
        """Set a row."""
        if key in rows:
            before = rows[key]
            self._undo.append((rows, lambda: rows.__setitem__(key, before)))
        else:
            self._undo.append((rows, lambda: rows.pop(key, None)))
        rows[key] = value
        self._note(rows, key, value)

    def drop(self, rows: dict[Any, Any], key: Any) -> bool:
        """Delete a row; whether there was one."""
        if key not in rows:
            return False
        before = rows.pop(key)
        self._undo.append((rows, lambda: rows.__setitem__(key, before)))
        self._note(rows, key, DELETED)
        return True

    def clear(self, rows: dict[Any, Any]) -> None:
        """Delete all rows."""
        for key in list(rows):
            self.drop(rows, key)

    def rollback(self) -> None:
        """Undo everything, the last change first."""
        while self._undo:
            rows, undo = self._undo.pop()
            undo()
            if isinstance(rows, Rows):
                rows.version += 1

    def committed(self) -> None:
        """Run what waited for the commit."""
        for call in self.after_commit:
            call()

    def _note(self, rows: dict[Any, Any], key: Any, value: Any) -> None:
        if isinstance(rows, Rows):
            rows.version += 1
            self.changes.setdefault(rows.owner, {})[rows.name, key] = value


class MemoryDatabase:
    """The tables of one process. Usable from several event loops and threads; transactions follow each other.

    With a journal, transactions of all tasks that commit during a write share the next write. A write that fails fails
    each of its transactions, and what memory held is read again from the journal. `on_open` is called when the journal
    has been opened. `opening` is the same until it is closed; at most `max_partitions` stay in memory.
    """

    def __init__(self, journal: JournalWriter | None = None, *, max_partitions: int = MAX_PARTITIONS) -> None:
        self.owners: set[Owner] = set()
        self.opening: UUID = uuid4()
        self.on_open: Callable[[], None] = lambda: None
        self._journal, self._max_partitions = journal, max_partitions
        self._partitions: OrderedDict[Owner, Partition] = OrderedDict()  # the one used last is at the end
        self._lock = threading.Lock()
        self._pid, self._is_open, self._failures = os.getpid(), journal is None, 0
        self._is_reading = False

    @asynccontextmanager
    async def transaction(
        self, *, namespace: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> AsyncIterator[MemoryTransaction]:
        """A transaction that commits at the end of the block and rolls back where it raises."""
        await self._acquire(timeout)
        tx = MemoryTransaction(self)
        try:
            await self._open()
            yield tx
            written = self._submit(tx)
        except BaseException:
            tx.rollback()
            raise
        finally:
            self._evict()
            self._lock.release()
        if written is not None:
            await asyncio.shield(asyncio.wrap_future(written))
        tx.committed()

    async def open(self) -> None:
        """Open the journal now instead of at the first transaction. Raises its errors."""
        async with self.transaction(read_only=True):
            pass

    async def watermark(self) -> Watermark | None:
        """None: there is no replica that could lag."""
        return None

    async def generation(self, tx: Transaction | None = None) -> int:
        """The number of the last erasure."""
        if tx is None:
            async with self.transaction(read_only=True) as own:
                return await self.generation(own)
        found: int = mem(tx).table("generation").get("last", 0)
        return found

    async def takes_writes(self) -> bool:
        return True

    async def generation_floor(self) -> int:
        """The number of the last erasure: there is no Redis that could lack one."""
        return await self.generation()

    async def confirm(self, owner: Scope) -> None:
        """Wait until the journal has what transactions have shown. Raises `StoreUnavailable` if a write failed.

        A transaction shows what earlier ones are writing; only its own changes are written when it ends.
        """
        if self._journal is None:
            return
        await self._journal.flush()
        if self._failures != self._journal.failures:
            raise errors.StoreUnavailable("store", "a write failed", "Repeat the call.")

    async def close(self) -> None:
        """Close the journal; the next transaction opens it again. Without one the tables stay in memory."""
        if self._journal is None or not self._is_open:
            return
        await self._acquire()
        try:
            self._is_open = False
            self._partitions.clear()
            await self._journal.close()
        finally:
            self._lock.release()

    def now(self) -> datetime:
        """The clock of this database."""
        return datetime.now(UTC)

    def partition(self, owner: Owner) -> Partition:
        """A partition in memory."""
        found = self._partitions.get(owner)
        if found is None:
            raise errors.Bug("a transaction uses rows of an owner that it has not loaded.")
        return found

    async def load(self, owner: Owner) -> None:
        """Read a partition from the journal, unless it is in memory."""
        found = self._partitions.get(owner)
        if found is None:
            is_stored = self._journal is not None and (owner == SHARED or owner in self.owners)
            stored = await self._read(self._journal.load(owner)) if self._journal is not None and is_stored else None
            found = self._partitions[owner] = Partition(owner, stored)
        found.used_at = monotonic()
        self._partitions.move_to_end(owner)

    async def _open(self) -> None:
        journal = self._journal
        if journal is not None:
            if self._pid != os.getpid():  # after a fork the journal belongs to the parent
                journal.reset()
                self._pid, self._is_open = os.getpid(), False
            if self._failures != journal.failures:
                self._failures = journal.failures
                self._partitions.clear()
            if not self._is_open:
                self._partitions.clear()
                self.owners = set(await self._read(journal.open())) - {SHARED}
                self.opening, self._is_open = uuid4(), True
                self.on_open()
        await self.load(SHARED)

    def _submit(self, tx: MemoryTransaction) -> "Future[None] | None":
        self.owners.update(owner for owner in tx.changes if owner != SHARED)
        if self._journal is None or not tx.changes:
            return None
        return self._journal.submit(tx.changes, failures=self._failures, is_erasure=tx.is_erasure)

    def _evict(self) -> None:
        if self._journal is None:
            return
        oldest = next(iter(self._partitions.values()), None)
        while oldest is not None and (
            len(self._partitions) > self._max_partitions or monotonic() - oldest.used_at > IDLE_SECONDS
        ):
            del self._partitions[oldest.owner]
            oldest = next(iter(self._partitions.values()), None)

    async def _read(self, work: Awaitable[T]) -> T:
        """Wait for the journal with the lock held."""
        self._is_reading = True
        try:
            return await work
        finally:
            self._is_reading = False

    async def _acquire(self, timeout: float | None = None) -> None:
        clock = asyncio.get_running_loop().time
        limit = timeout or LOCK_SECONDS
        deadline = clock() + limit
        while not self._lock.acquire(blocking=False):
            if self._is_reading and timeout is None:  # a slow server; the journal has deadlines for it
                deadline = clock() + limit
            elif clock() > deadline:
                why = f"another transaction held it for {limit:g} s"
                raise errors.StoreUnavailable("store", why, "Repeat the call.")
            await asyncio.sleep(WAIT_SECONDS)


def mem(tx: Transaction) -> MemoryTransaction:
    """The transaction as one of this process; one of another database is a mistake of the calling code."""
    if not isinstance(tx, MemoryTransaction):
        raise errors.Bug(f"a store in memory was given a {type(tx).__name__} of another database.")
    return tx
