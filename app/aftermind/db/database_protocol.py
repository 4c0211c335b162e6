"""The database interface of stores and the ledger: transactions, and the WAL position after a commit."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aftermind import errors
from aftermind.types.watermark import Watermark

__all__ = ["Database", "NoDatabase", "Transaction", "Watermark"]


class Transaction(Protocol):
    """The handle that stores and ledger both take, so that their effects commit as one.

    It belongs to the database that opened it, and to one task at a time.
    """

    after_commit: list[Callable[[], None]]
    """Called in this order once the commit has succeeded; never after a rollback."""

    async def enter(self, namespace: str) -> None:
        """From here on the transaction touches this tenant's rows alone: for work on several, one after the other."""


class Database(Protocol):
    """One primary. Constructing it connects nothing; the first transaction does."""

    def transaction(
        self, *, namespace: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that commits at the end of the block and rolls back where it raises.

        `namespace` names the tenant whose rows it may touch (None: the library's own work across tenants). `timeout`
        (seconds; default `settings.db_timeout_seconds`) bounds each statement. Raises `StoreUnavailable`.
        """

    async def watermark(self) -> Watermark | None:
        """The current WAL position; take it after a COMMIT, never before. None if no replica can lag."""

    async def generation(self, tx: Transaction | None = None) -> int:
        """The number of the last erasure that began, 0 if there was none; see `types.tombstone`."""

    async def takes_writes(self) -> bool:
        """Whether turns could be written now, apart from rows that other transactions hold."""

    async def generation_floor(self) -> int:
        """The highest number below every erasure, of any tenant, that Redis may not have; the last one if it has all.

        Turns that Redis accepted before it had any number count as accepted under it: each of these covers them.
        """

    async def close(self) -> None:
        """Give back the connections of the running loop. The object can be used again afterwards: it reopens."""


class NoDatabase:
    """Replaces Postgres where a store has none: every use raises `InvalidSettings`. `store` is its scheme."""

    def __init__(self, store: str) -> None:
        self._store = store

    def transaction(
        self, *, namespace: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Transaction]:
        raise self._missing()

    async def watermark(self) -> Watermark | None:
        raise self._missing()

    async def generation(self, tx: Transaction | None = None) -> int:
        raise self._missing()

    async def takes_writes(self) -> bool:
        raise self._missing()

    async def generation_floor(self) -> int:
        raise self._missing()

    async def close(self) -> None:
        """Nothing to close."""

    def _missing(self) -> errors.InvalidSettings:
        why = "only Postgres has encryption and an audit log."
        return errors.InvalidSettings("store", self._store, why)
