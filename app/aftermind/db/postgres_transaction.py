"""`PgTransaction`: the handle that the Postgres store and ledger share, so that their effects commit as one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import CursorResult, Executable, Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.error_mapping import short, translated

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # Any: whatever the driver has a codec for

# Server first: its own timeout leaves the connection usable. Ours is for a server that is frozen or cut off.
CLIENT_GRACE_SECONDS = 0.25

# Driver errors: the connection itself is lost, or in the middle of an operation that will not finish.
_BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.ReadOnlySQLTransactionError,  # as in `_deadline`
    OSError,
)

_UNREPLICATED = "a commit is on the primary only: no synchronous replica confirmed it in time"
_REPLICATE = "Is the replica running that synchronous_standby_names requires? The call can be repeated."

_ENTER = text("SELECT aftermind.enter(:namespace, true)")


class PgTransaction:
    """Statements on one connection, each under a deadline.

    A statement that is cut off (deadline, cancelled task) ends the connection too: what it did is unknown, and a
    rollback by a frozen server has no time limit.
    """

    def __init__(self, connection: AsyncConnection, *, what: str, timeout: float, pooled: bool = False) -> None:
        self._connection = connection
        self._what = what
        self._timeout = timeout
        self._pooled = pooled
        self._namespace: str | None = None
        self._put_off: str | None = None  # the script that begins, while nothing has needed it
        self.after_commit: list[Callable[[], None]] = []

    @property
    def namespace(self) -> str | None:
        """The tenant whose rows it may touch; None where it names none."""
        return self._namespace

    @property
    def noted(self) -> dict[Any, Any]:  # Any: as SQLAlchemy has it
        """What is noted about the connection itself, for as long as it lives; behind a pooler nothing is."""
        held = self._connection.sync_connection
        return {} if held is None or self._pooled else held.info

    async def execute(self, statement: Executable, parameters: Parameters | None = None) -> CursorResult[Any]:
        """Run one statement. Raises `StoreUnavailable`, `SchemaOutdated` or `DimensionMismatch`."""
        if self._put_off is not None:
            await self._begun()
        async with self._deadline():
            return await self._connection.execute(statement, parameters)

    async def rows(self, statement: Executable, **parameters: Any) -> Sequence[Row[Any]]:  # Any: see Parameters
        """All rows of one statement."""
        return (await self.execute(statement, parameters)).all()

    async def row(self, statement: Executable, **parameters: Any) -> Row[Any] | None:  # Any: see Parameters
        """The first row of one statement, or None."""
        return (await self.execute(statement, parameters)).first()

    async def record(self, statement: str, *arguments: Any) -> "asyncpg.Record | None":  # Any: see Parameters
        """The first row as the driver itself gives it, for reads where the 0.12 ms of SQLAlchemy count.

        `statement` has $1, $2 …
        """
        async with self._driver() as connection:
            found: asyncpg.Record | None = await connection.fetchrow(statement, *arguments)
            return found

    async def alone(self, statement: str, *arguments: Any) -> "asyncpg.Record | None":  # Any: see Parameters
        """Like `record`, for a read that is complete in itself: it sets its tenant (`tenancy.entering`), or reads no
        tenant's rows. It does not need a deferred BEGIN.
        """
        async with self._driver(begun=False) as connection:
            found: asyncpg.Record | None = await connection.fetchrow(statement, *arguments)
            return found

    async def count(self, statement: Executable, **parameters: Any) -> int:  # Any: see Parameters
        """How many rows one statement changed."""
        return int((await self.execute(statement, parameters)).rowcount)

    async def begin(
        self, *, namespace: str | None, read_only: bool, settings: Mapping[str, str], put_off: bool = False
    ) -> None:
        """BEGIN, with the tenant and other settings of this transaction only, so that a pool cannot leak them.

        One round trip: a script of the simple protocol, which has no parameters. Values are passed as hexadecimal
        digits, so that quoting cannot be broken. `put_off`: only before the first statement that needs a transaction.
        """
        self._namespace = namespace
        script = "BEGIN READ ONLY" if read_only else "BEGIN"
        calls = [f"set_config('{name}', {_literal(value)}, true)" for name, value in settings.items()]
        if namespace is not None:
            calls.append(f"aftermind.enter({_literal(namespace)}, {str(not read_only).lower()})")
        if calls:
            script += "; SELECT " + ", ".join(calls)
        self._put_off = script
        if not put_off:
            await self._begun()

    async def enter(self, namespace: str) -> None:
        """From here on the transaction touches this tenant's rows alone."""
        if namespace != self._namespace:
            await self.execute(_ENTER, {"namespace": namespace})
            self._namespace = namespace

    async def commit(self) -> None:
        """Make it lasting. Where this raises `StoreUnavailable`, whether it was committed is unknown."""
        if self._put_off is not None:
            return  # it never began
        async with self._driver() as connection:
            ended = await connection.execute("COMMIT")
        if ended != "COMMIT":  # a statement had failed, and the caller continued
            raise errors.Bug(f"a transaction that had failed was to be committed: {ended}.")

    async def rollback(self) -> None:
        """Undo; a connection that cannot even do this is dropped."""
        if self._put_off is not None:
            return  # it never began
        held = self._connection.sync_connection
        if held is None or held.closed or held.invalidated:
            return
        try:
            async with self._driver() as connection:
                if connection.is_in_transaction():
                    await connection.execute("ROLLBACK")
        except errors.StoreUnavailable:
            self.abandon()

    def committed(self) -> None:
        """Run what waited for the commit."""
        for call in self.after_commit:
            call()

    def abandon(self) -> None:
        """Close the connection immediately, without notifying the server."""
        held = self._connection.sync_connection
        if held is None or held.closed or held.invalidated:
            return
        driver = held.connection.driver_connection
        held.invalidate()
        if driver is not None:
            driver.terminate()

    async def _begun(self) -> None:
        async with self._driver():
            pass

    @asynccontextmanager
    async def _driver(self, *, begun: bool = True) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        async with self._deadline():
            # Without SQLAlchemy's own `get_raw_connection`, which changes greenlets to wait for nothing.
            held = self._connection.sync_connection
            if held is None or held.closed or held.invalidated:
                raise errors.StoreUnavailable(self._what, "the connection was lost")
            connection: Any = held.connection.driver_connection  # Any: asyncpg's, SQLAlchemy does not type it
            try:
                if begun and self._put_off is not None:
                    script, self._put_off = self._put_off, None
                    await connection.execute(script)
                yield connection
            except asyncpg.exceptions.QueryCanceledError:
                raise  # the connection serves on
            except _BROKEN as exc:  # SQLAlchemy does not see it: the pool would hand the connection out again
                self.abandon()
                raise errors.StoreUnavailable(self._what, short(exc)) from exc

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        with translated(self._what):
            try:
                async with asyncio.timeout(self._timeout + CLIENT_GRACE_SECONDS):
                    yield
                self._refuse_unreplicated()
            except (TimeoutError, asyncio.CancelledError):
                self.abandon()
                raise

    def _refuse_unreplicated(self) -> None:
        held = self._connection.sync_connection
        driver: Any = None if held is None or held.closed else held.connection.driver_connection  # Any: asyncpg's
        if driver is not None and getattr(driver, "is_unreplicated", False):
            driver.is_unreplicated = False
            raise errors.StoreUnavailable(self._what, _UNREPLICATED, _REPLICATE)


def _literal(value: str) -> str:
    return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"


def pg(tx: Transaction) -> PgTransaction:
    """The transaction as Postgres's own; one of another database is a mistake of the calling code."""
    if not isinstance(tx, PgTransaction):
        raise errors.Bug(f"a Postgres store was given a {type(tx).__name__} of another database.")
    return tx
