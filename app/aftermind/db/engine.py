"""`PostgresDatabase`: connections to one node, kept per event loop, opened when first needed."""

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aftermind import errors
from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.db.error_mapping import translated
from aftermind.db.postgres_transaction import PgTransaction, pg
from aftermind.db.primary_connection import RECYCLE_SECONDS, PgConnection, PrimaryConnector
from aftermind.db.row_level_security import refuse_unbound

# The timeline out of the file name, not the control file: that one changes only with the checkpoint after a promotion.
WATERMARK = (
    "SELECT (SELECT system_identifier FROM pg_control_system()) AS system, "
    "('x' || left(pg_walfile_name(lsn), 8))::bit(32)::int AS timeline, (lsn - '0/0'::pg_lsn)::bigint AS lsn "
    "FROM pg_current_wal_insert_lsn() AS lsn"
)
# The locks that a write of a turn needs on its tables, for a moment.
_LOCK_AS_WRITES_DO = (
    "LOCK TABLE aftermind.users, aftermind.jobs, aftermind.episodes, aftermind.event_counters, aftermind.events "
    "IN ROW EXCLUSIVE MODE"
)
_PROBE_SECONDS = 1.0  # a database that needs longer for it is too slow to serve
_GENERATION = "SELECT last_value FROM aftermind.generation"
_GENERATION_FLOOR = "SELECT aftermind.generation_floor() AS floor"
WAL_PAGE, PAGE_HEADER = 8192, 24  # bytes; at the start of a page the insert position already counts the page's header


# A pooler hands a statement's name to one connection and its use to another: then none is kept, and none has a name.
_UNNAMED: Mapping[bool, Mapping[str, Any]] = {  # Any: options of SQLAlchemy's adapter
    False: {},
    True: {"prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: ""},
}


class PostgresDatabase:
    """One Postgres node. The first statement connects.

    Usable from several event loops and threads: each running loop has its own engine and pool. `timeout_seconds` limits
    a statement and a wait for a pooled connection, `connect_timeout_seconds` a new connection. Without `allow_owner`, a
    role that bypasses row-level security is refused at the first connection (`UnboundRole`). `pooled`: a pooler
    (pgbouncer, transaction mode) is in between, which keeps no session state. Among several hosts in `url` the
    primary is chosen (`PrimaryConnector`).
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 5.0,
        connect_timeout_seconds: float = 2.0,
        pool_size: int = 10,
        application_name: str = "aftermind",
        session_settings: Mapping[str, str] | None = None,
        allow_owner: bool = True,
        pooled: bool = False,
        check_namespace: Callable[[str], None] | None = None,
    ) -> None:
        self._primary = PrimaryConnector(url)
        self._timeout = timeout_seconds
        self._connect_timeout = connect_timeout_seconds
        self._pool_size = pool_size
        self._application_name = application_name
        self._session_settings = dict(session_settings or {})
        self._check_namespace = check_namespace
        self._allow_owner, self._pooled, self._is_bound = allow_owner, pooled, False
        self._engines: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self.name = self._primary.name

    def __repr__(self) -> str:
        return f"PostgresDatabase({self.name!r})"

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is in between, so that `statements` must be one transaction."""
        return self._pooled

    @property
    def url(self) -> str:
        """Where it is, password included: for migrations and child processes, never for logs."""
        return self._primary.url

    @asynccontextmanager
    async def transaction(
        self, *, namespace: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> AsyncIterator[PgTransaction]:
        """A transaction that commits at the end of the block and rolls back if it raises.

        `namespace` is set for this transaction only (`aftermind.namespace`): row-level security shows its rows and
        accepts no others. A `read_only` transaction omits BEGIN and COMMIT for statements that are complete in
        themselves (`PgTransaction.alone`; without a namespace all are), so that a single read is a single round trip:
        each statement has its own snapshot, as under READ COMMITTED. `timeout` limits each statement, in seconds; for
        statements without BEGIN the server uses the limit of its session. Raises `StoreUnavailable`, and what
        `check_namespace` raises for a namespace that may not be written here.
        """
        if namespace is not None and not read_only and self._check_namespace is not None:
            self._check_namespace(namespace)
        if read_only and namespace is None and not self._pooled:
            async with self.statements(timeout=timeout) as run:
                yield run
            run.committed()
            return
        async with self._connection() as connection:
            tx = PgTransaction(connection, what=self.name, timeout=timeout or self._timeout, pooled=self._pooled)
            try:
                settings, put_off = self._local(timeout), read_only and not self._pooled
                await tx.begin(namespace=namespace, read_only=read_only, settings=settings, put_off=put_off)
                yield tx
                await tx.commit()
            except BaseException:
                await tx.rollback()
                raise
        tx.committed()

    def _local(self, timeout: float | None) -> Mapping[str, str]:
        """What is set for a transaction alone; behind a pooler also what a connection cannot keep there."""
        given = self._make_session_settings() if self._pooled else {}
        return given if timeout is None else {**given, "statement_timeout": str(max(1, round(timeout * 1000)))}

    @asynccontextmanager
    async def statements(self, *, timeout: float | None = None) -> AsyncIterator[PgTransaction]:
        """Statements that commit one by one, for work that is a single one: no BEGIN, no COMMIT, one round trip.

        Behind a pooler they are one transaction: it could give each half of a statement to another connection.
        """
        if self._pooled:
            async with self.transaction(timeout=timeout) as pooled:
                yield pooled
            return
        async with self._connection() as connection:
            tx = PgTransaction(connection, what=self.name, timeout=timeout or self._timeout, pooled=self._pooled)
            try:
                yield tx
            except BaseException:
                await tx.rollback()
                raise

    async def generation(self, tx: Transaction | None = None) -> int:
        """The number of the last erasure that began. Of the primary alone: a replica's is ahead of what was given."""
        if tx is None:
            async with self.statements() as run:
                return await self.generation(run)
        row = await pg(tx).record(_GENERATION)
        return 0 if row is None else int(row["last_value"])

    async def generation_floor(self) -> int:
        async with self.statements() as run:
            row = await pg(run).record(_GENERATION_FLOOR)
        return 0 if row is None else int(row["floor"])

    async def watermark(self) -> Watermark:
        """The current WAL position; take it after a COMMIT, never before (320 of 400 recalls were stale otherwise).

        Raises `StoreUnavailable` on a node in recovery: a replica has no watermark.
        """
        async with self.statements() as run:
            return await self.connection_watermark(run)

    async def connection_watermark(self, run: PgTransaction) -> Watermark:
        """The current WAL position, read over an idle connection that the caller holds."""
        row = await run.record(WATERMARK)
        if row is None:
            raise errors.Bug("Postgres did not return its WAL position.")
        return parse_watermark(row)

    async def takes_writes(self) -> bool:
        """Whether turns could be written now, apart from rows that other transactions hold."""
        try:
            async with self.transaction(timeout=min(self._timeout, _PROBE_SECONDS)) as tx:
                await tx.record(_LOCK_AS_WRITES_DO)
        except errors.StoreUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Give back the connections of the running loop, and drop those of loops that have ended.

        Other running loops keep theirs, for they may be in the middle of something: each closes its own. The object
        reopens when it is used again.
        """
        with self._lock:
            here = self._engines.pop(asyncio.get_running_loop(), None)
            ended = [self._engines.pop(loop) for loop in list(self._engines) if loop.is_closed()]
        for engine in ended:
            engine.sync_engine.dispose(close=False)  # the server cannot be notified any more
        if here is not None:
            await here.dispose()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        with translated(self.name):
            connection = await self._engine().connect()
        try:
            yield connection
        finally:
            with translated(self.name):
                await connection.close()

    def _engine(self) -> AsyncEngine:
        loop = asyncio.get_running_loop()
        with self._lock:
            engine = self._engines.get(loop)
            if engine is None:
                engine = self._engines[loop] = self._new_engine()
            return engine

    def _new_engine(self) -> AsyncEngine:
        def connect() -> Any:  # Any: SQLAlchemy's adapter of asyncpg
            driver: Any = engine.dialect.dbapi
            return driver.connect(async_creator_fn=self._connect, **_UNNAMED[self._pooled])

        engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            creator=connect,
            pool_size=self._pool_size,
            max_overflow=0,
            pool_timeout=self._timeout,
            pool_use_lifo=True,
            pool_recycle=RECYCLE_SECONDS if self._primary.has_several_hosts else -1,
            hide_parameters=True,  # the text of an error must not contain user content
            isolation_level="AUTOCOMMIT",  # BEGIN and COMMIT are ours: see PgTransaction.begin
        )
        event.listen(engine.sync_engine, "checkout", self._refuse_closed)
        return engine

    async def _connect(self) -> PgConnection:
        connection = await self._primary.connect(
            timeout=self._connect_timeout,
            command_timeout=self._timeout + 1,
            statement_cache_size=0 if self._pooled else 100,
            server_settings={} if self._pooled else self._make_session_settings(),
        )
        connection.add_log_listener(_note_warning)
        try:
            await self._refuse_unbound(connection)
            await connection.set_type_codec(
                "halfvec", schema="public", encoder=encode_half, decoder=decode_half, format="binary"
            )
        except ValueError:  # no pgvector yet: the migration creates it
            pass
        except errors.AftermindError:
            await connection.close()
            raise
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _refuse_closed(self, connection: Any, _record: object, _proxy: object) -> None:  # Any: SQLAlchemy's adapter
        # A pooled connection whose server has closed is detected as closed without a round trip; the pool then opens
        # another one, so that a restart of Postgres fails no statement that starts after it. The same for a connection
        # to a primary that has been replaced.
        driver: PgConnection = connection.driver_connection
        if driver.is_closed() or self._primary.is_outdated(driver):
            raise exc.DisconnectionError

    def _make_session_settings(self) -> dict[str, str]:
        return {
            "application_name": self._application_name,
            "statement_timeout": str(round(self._timeout * 1000)),
            # A process that is frozen in the middle of a transaction must not hold its locks for ever.
            "idle_in_transaction_session_timeout": str(round(self._timeout * 2000)),
            "jit": "off",  # short statements: compiling costs more than it saves
            **self._session_settings,
        }

    async def _refuse_unbound(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        if not self._is_bound and not self._allow_owner:
            await refuse_unbound(connection, self.name)
            self._is_bound = True  # of this URL: asked once, not at each connection


def parse_watermark(row: "asyncpg.Record") -> Watermark:
    """The watermark that a row of the query `WATERMARK` gives."""
    # No record ends inside a page header: an idle replica has replayed everything when it is at the start of a page.
    lsn = row["lsn"]
    lsn -= PAGE_HEADER if lsn % WAL_PAGE == PAGE_HEADER else 0
    return Watermark(system=row["system"], timeline=row["timeline"], lsn=lsn)


def encode_half(vector: NDArray[np.floating[Any]] | bytes) -> bytes:  # Any: any float width
    """pgvector's wire format of a halfvec: dimension, two unused bytes, big-endian half floats.

    Bytes are already encoded: within an array of vectors, asyncpg would treat a numpy array as further rows.
    """
    if isinstance(vector, bytes):
        return vector
    return struct.pack(">HH", len(vector), 0) + np.asarray(vector).astype(">f2").tobytes()


def decode_half(data: bytes) -> NDArray[np.float32]:
    """The reverse of `encode_half`, widened for computing."""
    return np.frombuffer(data, dtype=">f2", offset=4).astype(np.float32)


def _note_warning(connection: Any, message: Any) -> None:  # Any: asyncpg's connection and message
    # Postgres reports such a commit as successful: it is on the primary's disk alone, and a promotion would lose it.
    if message.as_dict().get("server_source_function") == "SyncRepWaitForLSN":
        connection.is_unreplicated = True
