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
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeVar

from aftermind import errors
from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.db.record_store_journals import process_liveness
from aftermind.db.record_store_journals.group_commit_writer import Group, JournalWriter, Refresh
from aftermind.db.record_store_journals.row_codec import DELETED, SHARED, Changes, Owner
from aftermind.types import Scope

LOCK_SECONDS = 5.0  # a transaction waits for others, without the time in which they read the journal
WAIT_SECONDS = 0.001  # between checks of a lock that another task or thread holds: loops share it, so none may block
MAX_PARTITIONS = 100_000  # in memory, where a journal has them all
IDLE_SECONDS = 24 * 3600.0  # after which a partition leaves memory
RENEW_SECONDS = 1.0  # after which a transaction keeps other processes from taking its place

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

    If other processes have the journal open as well, a transaction begins with what they have committed. One of them
    writes at a time, and read-only transactions wait for none. `followers` apply changed rows of the shared partition
    to what is derived from them, by table; other rows are replaced.
    """

    def __init__(self, journal: JournalWriter | None = None, *, max_partitions: int = MAX_PARTITIONS) -> None:
        self.owners: set[Owner] = set()
        self.on_open: Callable[[], None] = lambda: None
        self.followers: dict[str, Callable[[MemoryTransaction, Any, Any], None]] = {}
        self._journal, self._max_partitions = journal, max_partitions
        self._partitions: OrderedDict[Owner, Partition] = OrderedDict()  # the one used last is at the end
        self._lock, self._writing = threading.Lock(), threading.Lock()  # writing: before it, by one that waits its turn
        self._pid, self._is_open, self._failures = os.getpid(), journal is None, 0
        self._reading = 0  # transactions that wait for the journal

    @property
    def opening(self) -> str:
        """What leases of jobs name as their holder."""
        return "" if self._journal is None else self._journal.opening

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write."""
        return self._journal is not None and self._journal.is_shared

    def has_ended(self, opening: str | None) -> bool:
        """Whether the holder of a lease has certainly ended."""
        if opening is None or not self.is_shared:
            return opening != self.opening
        return process_liveness.has_ended(opening)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        namespace: str | None = None,
        read_only: bool = False,
        timeout: float | None = None,
        is_awaited: bool = True,
    ) -> AsyncIterator[MemoryTransaction]:
        """A transaction that commits at the end of the block and rolls back where it raises.

        With `is_awaited` False it does not wait for the write, which is that of the next transaction, or follows soon.
        A crash may undo it; if the write fails, so do the transactions that followed.
        """
        tx = MemoryTransaction(self)
        async with self._turn(timeout) if self.is_shared and not read_only else nullcontext() as turn:
            await self._acquire(self._lock, timeout)
            try:
                await self._open()
                await self._catch_up()
                yield tx
                written = self._submit(tx, read_only=read_only, is_awaited=is_awaited)
                if turn is not None:
                    turn.is_submitted = written is not None
            except BaseException:
                tx.rollback()
                raise
            finally:
                self._evict()
                self._lock.release()
        if written is not None and is_awaited:
            await written.wait()
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

    generation_floor = generation  # there is no Redis that could lack one

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
        await self._acquire(self._writing)
        try:
            await self._acquire(self._lock)
            try:
                self._is_open = False
                self._partitions.clear()
                await self._journal.close()
            finally:
                self._lock.release()
        finally:
            self._writing.release()

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
            stored = None
            if self._journal is not None and (owner == SHARED or owner in self.owners):
                stored, refresh = await self._read(self._journal.load(owner, self._partitions))
                self._apply(refresh)
            found = self._partitions[owner] = Partition(owner, stored)
        found.used_at = monotonic()
        self._partitions.move_to_end(owner)

    @asynccontextmanager
    async def _turn(self, timeout: float | None) -> AsyncIterator["_Turn"]:
        """Keep other processes from writing. Not under the lock, so that read-only transactions need not wait."""
        journal, turn = self._required, _Turn()
        journal.want()
        try:
            await self._acquire(self._writing, timeout)
            try:
                async with self._locked(timeout):
                    await self._open()
                await self._read(journal.take_turn(timeout or LOCK_SECONDS))
                renewal = _Renewal(journal)
                try:
                    yield turn
                finally:
                    renewal.timer.cancel()
            finally:
                self._writing.release()
        finally:
            if not turn.is_submitted:
                journal.end_turn()

    @property
    def _required(self) -> JournalWriter:
        if self._journal is None:
            raise errors.Bug("tables in memory have no journal.")
        return self._journal

    @asynccontextmanager
    async def _locked(self, timeout: float | None) -> AsyncIterator[None]:
        await self._acquire(self._lock, timeout)
        try:
            yield
        finally:
            self._lock.release()

    async def _open(self) -> None:
        journal = self._journal
        if journal is None:
            return
        if self._pid != os.getpid():  # after a fork the journal belongs to the parent
            journal.reset()
            self._pid, self._is_open = os.getpid(), False
        if self._failures != journal.failures:
            self._failures = journal.failures
            self._partitions.clear()
        if not self._is_open:
            self._partitions.clear()
            self.owners = set(await self._read(journal.open())) - {SHARED}
            self._is_open = True
            self.on_open()

    async def _catch_up(self) -> None:
        if self._journal is not None:
            refresh = await self._read(self._journal.refresh(self._partitions))
            if refresh is not None:
                self._apply(refresh)
        await self.load(SHARED)

    def _apply(self, refresh: Refresh) -> None:
        """Show what other processes have committed."""
        self.owners.update(owner for owner in refresh.owners if owner != SHARED)
        tx = MemoryTransaction(self)  # its changes are in the journal already
        for owner, is_whole, rows in refresh.changes:
            partition = self._partitions.get(owner)
            if partition is None:
                continue
            if is_whole:
                partition.indexes.clear()
                for table in partition.tables.values():
                    tx.clear(table)
            for name, key, value in rows:
                self._apply_row(tx, partition, name, key, None if value is DELETED else value)

    def _apply_row(self, tx: MemoryTransaction, partition: Partition, name: str, key: Any, value: Any) -> None:
        follow = self.followers.get(name)
        if follow is not None and partition.owner == SHARED:
            follow(tx, key, value)
        elif value is None:
            tx.drop(partition.rows(name), key)
        else:
            tx.put(partition.rows(name), key, value)

    def _submit(self, tx: MemoryTransaction, *, read_only: bool, is_awaited: bool) -> Group | None:
        if read_only and tx.changes:
            raise errors.Bug("a read-only transaction changes rows.")
        self.owners.update(owner for owner in tx.changes if owner != SHARED)
        if self._journal is None or not tx.changes:
            return None
        return self._journal.submit(
            tx.changes, failures=self._failures, is_erasure=tx.is_erasure, is_awaited=is_awaited
        )

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
        """Wait for the journal with a lock held."""
        self._reading += 1
        try:
            return await work
        finally:
            self._reading -= 1

    async def _acquire(self, lock: threading.Lock, timeout: float | None = None) -> None:
        clock = asyncio.get_running_loop().time
        limit = timeout or LOCK_SECONDS
        deadline = clock() + limit
        while not lock.acquire(blocking=False):
            if self._reading and timeout is None:  # a slow server; the journal has deadlines for it
                deadline = clock() + limit
            elif clock() > deadline:
                why = f"another transaction held it for {limit:g} s"
                raise errors.StoreUnavailable("store", why, "Repeat the call.")
            await asyncio.sleep(WAIT_SECONDS)


class _Renewal:
    """Keeps a turn during a long transaction."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal, self._loop = journal, asyncio.get_running_loop()
        self.timer = self._loop.call_later(RENEW_SECONDS, self._renew)

    def _renew(self) -> None:
        self._journal.renew()
        self.timer = self._loop.call_later(RENEW_SECONDS, self._renew)


@dataclass(slots=True)
class _Turn:
    """Whether the changes were submitted, which ends the turn."""

    is_submitted: bool = False


def mem(tx: Transaction) -> MemoryTransaction:
    """The transaction as one of this process; one of another database is a mistake of the calling code."""
    if not isinstance(tx, MemoryTransaction):
        raise errors.Bug(f"a store in memory was given a {type(tx).__name__} of another database.")
    return tx
