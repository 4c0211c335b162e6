"""`JournalWriter`: encodes changes, and writes them in groups from one thread."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Journal
from aftermind.db.record_store_journals.rows import OWNER, Changes, Owner, RowCodec, dump_owner

T = TypeVar("T")


class _Group:
    """Changes of several transactions that are written together."""

    def __init__(self) -> None:
        self.changes: Changes = {}
        self.erased: set[Owner] = set()
        self.written: Future[None] = Future()


class JournalWriter:
    """A journal behind one thread. `failures` counts failed writes.

    After one, memory holds changes that the journal lacks: read the partitions again. Changes that were made on top of
    them are refused.
    """

    def __init__(self, journal: Journal, codec: RowCodec) -> None:
        self._journal, self._codec = journal, codec
        self.reset()

    def reset(self) -> None:
        """Begin again in a forked process, without touching what belongs to the parent."""
        self.failures = 0
        self._lock = threading.Lock()
        self._next: _Group | None = None
        self._latest: Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> list[Owner]:
        """Open the journal; the owners of its partitions."""

        def work() -> list[Owner]:
            self._journal.open()
            return [OWNER.validate_json(name) for name in self._journal.partitions()]

        return await self._run(work)

    async def load(self, owner: Owner) -> dict[str, dict[Any, Any]]:  # Any: see `rows`
        """The rows of an owner, by table."""

        def work() -> dict[str, dict[Any, Any]]:
            tables: dict[str, dict[Any, Any]] = {}
            for table, key, row in self._journal.load(dump_owner(owner)):
                loaded_key, loaded_row = self._codec.load(self._journal.name, table, key, row)
                tables.setdefault(table, {})[loaded_key] = loaded_row
            return tables

        return await self._run(work)

    def submit(self, changes: Changes, *, failures: int, is_erasure: bool) -> "Future[None]":
        """Add changes to the next write; the result is there when they are durable.

        `failures` is the count when the transaction began. Raises `StoreUnavailable` if a write has failed since.
        """
        with self._lock:
            if failures != self.failures:
                raise errors.StoreUnavailable(self._journal.name, "an earlier write failed", "Repeat the call.")
            if self._next is None:
                self._next = _Group()
                self._executor().submit(self._write)
            group = self._next
            self._latest = group.written
            for owner, rows in changes.items():
                group.changes.setdefault(owner, {}).update(rows)
            if is_erasure:
                group.erased.update(changes)
            return group.written

    async def flush(self) -> None:
        """Wait until the changes that were added have been written, or a write has failed (`failures`)."""
        latest = self._latest
        if latest is not None and not latest.done():
            with suppress(Exception):  # its transactions raise it
                await asyncio.shield(asyncio.wrap_future(latest))

    async def close(self) -> None:
        """Close the journal after the last write."""
        if self._thread is not None:
            await self._run(self._journal.close)
            self._thread.shutdown(wait=False)
            self._thread = None

    def _write(self) -> None:
        with self._lock:
            group, self._next = self._next, None
        if group is None:  # it failed with the one before
            return
        try:
            self._journal.commit({dump_owner(owner): self._dump(rows) for owner, rows in group.changes.items()})
            if group.erased:
                self._journal.compact([dump_owner(owner) for owner in group.erased])
        except BaseException as exc:  # each transaction of the group raises it
            self._fail(group, exc)
        else:
            group.written.set_result(None)

    def _dump(self, rows: Mapping[tuple[str, Any], Any]) -> dict[tuple[str, str], bytes | None]:
        made = {}
        for (table, key), row in rows.items():
            dumped_key, dumped = self._codec.dump(table, key, row)
            made[table, dumped_key] = dumped
        return made

    def _fail(self, group: _Group, exc: BaseException) -> None:
        with self._lock:
            self.failures += 1
            waiting, self._next = self._next, None
        for each in (group, waiting):
            if each is not None:
                each.written.set_exception(exc)

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="aftermind-journal")
        return self._thread

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor(), work)
