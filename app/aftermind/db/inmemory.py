"""`MemoryDatabase`: tables in this process, one transaction at a time, rolled back by an undo log.

For tests, notebooks and agents of a single process. Nothing outlives the process.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Hashable, MutableMapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from aftermind import errors
from aftermind.db.protocol import Transaction, Watermark

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

WAIT_SECONDS = 0.001  # between checks of a lock that another task or thread holds: loops share it, so none may block


class MemoryTransaction:
    """Changes to tables, each with its undo operation."""

    def __init__(self, database: "MemoryDatabase") -> None:
        self.database = database
        self._undo: list[Callable[[], None]] = []
        self._hooks: list[Callable[[], None]] = []

    async def enter(self, namespace: str) -> None:
        """Nothing to set: there is no database between the tenants of one process."""

    def after_commit(self, call: Callable[[], None]) -> None:
        self._hooks.append(call)

    def table(self, name: str) -> dict[Any, Any]:  # Any: the module that owns the table defines its types
        """A table by name, empty at first."""
        return self.database.tables.setdefault(name, {})

    def rows(self, name: str, owner: Hashable) -> dict[Any, Any]:  # Any: as `table`
        """The part of a table that is an owner's."""
        table = self.table(name)
        if owner not in table:
            self.put(table, owner, {})
        part: dict[Any, Any] = table[owner]
        return part

    def put(self, rows: MutableMapping[K, V], key: K, value: V) -> None:
        """Set a row."""
        if key in rows:
            before = rows[key]
            self._undo.append(lambda: rows.__setitem__(key, before))
        else:
            self._undo.append(lambda: rows.pop(key, None))  # type: ignore[arg-type]
        rows[key] = value

    def drop(self, rows: MutableMapping[K, V], key: K) -> bool:
        """Delete a row; whether there was one."""
        if key not in rows:
            return False
        before = rows.pop(key)
        self._undo.append(lambda: rows.__setitem__(key, before))
        return True

    def rollback(self) -> None:
        """Undo everything, the last change first."""
        while self._undo:
            self._undo.pop()()

    def committed(self) -> None:
        """Run what waited for the commit."""
        for call in self._hooks:
            call()


class MemoryDatabase:
    """The tables of one process. Usable from several event loops and threads; transactions follow each other."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Any]] = {}  # Any: as `MemoryTransaction.table`
        self._lock = threading.Lock()

    @asynccontextmanager
    async def transaction(
        self, *, namespace: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> AsyncIterator[MemoryTransaction]:
        """A transaction that commits at the end of the block and rolls back where it raises."""
        await self._acquire(timeout or 5.0)
        tx = MemoryTransaction(self)
        try:
            yield tx
        except BaseException:
            tx.rollback()
            raise
        finally:
            self._lock.release()
        tx.committed()

    async def watermark(self) -> Watermark | None:
        """None: there is no replica that could lag."""
        return None

    async def generation(self, tx: Transaction | None = None) -> int:
        """The number of the last erasure."""
        found: int = self.tables.get("generation", {}).get("last", 0)
        return found

    async def generation_floor(self) -> int:
        """The number of the last erasure: there is no Redis that could lack one."""
        return await self.generation()

    async def close(self) -> None:
        """Nothing to give back; the tables stay for as long as the object does."""

    def now(self) -> datetime:
        """The clock of this database."""
        return datetime.now(UTC)

    async def _acquire(self, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        while not self._lock.acquire(blocking=False):
            if asyncio.get_running_loop().time() > deadline:
                raise errors.StoreUnavailable("inmemory", f"another transaction held it for {timeout:g} s")
            await asyncio.sleep(WAIT_SECONDS)


def mem(tx: Transaction) -> MemoryTransaction:
    """The transaction as one of this process; one of another database is a mistake of the calling code."""
    if not isinstance(tx, MemoryTransaction):
        raise errors.Bug(f"a store in memory was given a {type(tx).__name__} of another database.")
    return tx
