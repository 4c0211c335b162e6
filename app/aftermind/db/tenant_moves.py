"""Tenants that move between two databases of the map: the state of a move, and the tenant's rows.

A tenant without a row in `tenant_moves` is served here. `aftermind.enter`, with which every transaction of a tenant
begins, refuses what the state does not allow:

    source  copying   all
            paused    reads: the last rows are copied
            leaving   reads: Redis and the target are switched; the move cannot be aborted any more
            moved     nothing: the other database serves the tenant
    target  incoming  nothing: the rows are incomplete
            arrived   reads, until the source is `moved`

All statements but `list_moves` are those of the owner of the tables.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import Column, Table, text
from sqlalchemy.dialects.postgresql import ARRAY

from aftermind import errors
from aftermind.db import reembedding_column as vectors
from aftermind.db.database_protocol import Database
from aftermind.db.engine import WATERMARK, parse_watermark
from aftermind.db.error_mapping import translated
from aftermind.db.postgres_transaction import pg
from aftermind.db.primary_connection import PgConnection, PrimaryConnector
from aftermind.db.row_level_security import STANDING
from aftermind.db.tables import METADATA
from aftermind.types.watermark import Watermark

COPYING, PAUSED, LEAVING, MOVED, INCOMING, ARRIVED = "copying", "paused", "leaving", "moved", "incoming", "arrived"
UNFINISHED = (COPYING, PAUSED, LEAVING)  # states of a source
ACTOR = "aftermind tenants move"  # of the pauses of jobs
WRITE_LOCK, MOVE_LOCK = 1634100590, 1634100591  # advisory locks of a tenant: see `aftermind.enter`; one move at a time
LOCK_TIMEOUT = timedelta(seconds=2)  # new writes of the tenant wait behind the lock for as long
STATEMENT_SECONDS = 600.0  # the checksums of a table are one statement
DELETED_ROWS = 10_000  # of one statement

# Belong to the process or the database. Pauses are copied when the tenant has arrived: until then it has one there.
_LEFT = ("tenant_moves", "recall_counts", "undelivered_watermarks", "job_pauses")
# In the order of foreign keys. Those without a user are of the whole namespace.
_TABLES: Sequence[Table] = [
    table for table in METADATA.sorted_tables if "namespace" in table.c and table.name not in _LEFT
]
_OWNED = [table for table in _TABLES if "user_id" in table.c and not table.c.user_id.nullable]
_SHARED = [table for table in _TABLES if table not in _OWNED]  # the audit log, too: not each entry is about a user
# What the target decides itself, or must not do before it has the tenant: post to webhooks, for example.
_REPLACED = {
    ("jobs", "queue_position"): "CAST(NULL AS bigint)",
    ("webhooks", "due_at"): "CAST('infinity' AS timestamptz)",
}
_NOT_COMPARED = {*_REPLACED, ("events", "published_at"), ("tombstones", "delivered")}
# Texts of values are compared, so they must not depend on the server's configuration.
_SESSION = {
    "application_name": ACTOR,
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "search_path": "pg_catalog",
}

_STATE = "SELECT state, database FROM aftermind.tenant_moves WHERE namespace = $1"
_SET_STATE = """
    INSERT INTO aftermind.tenant_moves (namespace, state, database) VALUES ($1, $2, $3)
    ON CONFLICT (namespace) DO UPDATE SET state = excluded.state, database = excluded.database, updated_at = now()
"""
_MOVES = text("SELECT namespace, state, database FROM aftermind.tenant_moves ORDER BY namespace")
_PAUSE_JOBS = """
    INSERT INTO aftermind.job_pauses (namespace, kind, reason, actor)
    VALUES ($1, '', 'the tenant is being moved', $2) ON CONFLICT DO NOTHING
"""
_RESUME_JOBS = "DELETE FROM aftermind.job_pauses WHERE namespace = $1 AND actor = $2"
# The attempt is not counted: its effect is refused from now on.
_RELEASE_JOBS = """
    WITH held AS (
        SELECT id, attempts AS number FROM aftermind.jobs WHERE namespace = $1 AND state = 'running' FOR UPDATE
    ), released AS (
        UPDATE aftermind.jobs AS jobs
        SET state = 'queued', attempts = attempts - 1, run_at = clock_timestamp(), queue_position = NULL, token = NULL,
            lease_until = NULL, updated_at = clock_timestamp(), note = 'the tenant is being moved'
        FROM held WHERE jobs.id = held.id
    )
    UPDATE aftermind.job_attempts AS attempts SET ended_at = clock_timestamp(), outcome = 'snoozed'
    FROM held WHERE attempts.job_id = held.id AND attempts.number = held.number
"""
_UNFINISHED_PLANS = """
    SELECT count(DISTINCT plans.id) FROM aftermind.replay_plans AS plans
    JOIN aftermind.replay_items AS items ON items.plan_id = plans.id
    JOIN aftermind.jobs AS jobs ON jobs.id = items.job_id
    WHERE jobs.namespace = $1 AND plans.finished_at IS NULL
"""
# The other database does this work now.
_RETIRE = (
    "DELETE FROM aftermind.jobs WHERE namespace = $1 AND state IN ('queued', 'running', 'retrying', 'dead')",
    "DELETE FROM aftermind.webhook_deliveries WHERE namespace = $1",
    "UPDATE aftermind.webhooks SET due_at = 'infinity' WHERE namespace = $1",
    "UPDATE aftermind.tombstones SET delivered = true WHERE namespace = $1 AND NOT delivered",
    "UPDATE aftermind.events SET published_at = now() WHERE namespace = $1 AND published_at IS NULL",
    "DELETE FROM aftermind.retention_policies WHERE namespace = $1",
    "DELETE FROM aftermind.job_pauses WHERE namespace = $1",
)


@dataclass(frozen=True, slots=True)
class Checked:
    """How many rows of a user (None: those without one) a table has, and the sum of their hashes."""

    rows: int
    checksum: Decimal


Checksums = Mapping[tuple[str, str | None], Checked]  # by table and user


async def list_moves(database: Database) -> Mapping[str, tuple[str, str]]:
    """The state of each namespace that is being moved, or has left this database, and the other database.

    As a role that reads all tenants; others read none.
    """
    async with database.transaction(read_only=True) as tx:
        return {row.namespace: (row.state, row.database) for row in await pg(tx).rows(_MOVES)}


async def list_moved(database: Database) -> Mapping[str, str]:
    """Namespaces that have left this database, each with the database that serves it."""
    moves = await list_moves(database)
    return {namespace: other for namespace, (state, other) in moves.items() if state == MOVED}


class TenantRows:
    """The rows of one tenant in one database of the map, over a connection of the owner of the tables.

    Every method raises `StoreUnavailable`.
    """

    def __init__(self, connection: PgConnection, *, database: str, namespace: str) -> None:
        self._connection, self.database, self.namespace = connection, database, namespace

    async def state(self) -> tuple[str | None, str | None]:
        """The state of the move here, and the other database; None: the tenant is served here."""
        async with self._translated() as connection:
            row = await connection.fetchrow(_STATE, self.namespace)
        return (None, None) if row is None else (row["state"], row["database"])

    async def set_state(self, state: str, other: str) -> None:
        """Record a step of the move."""
        await self._execute(_SET_STATE, state, other)

    async def lock(self) -> bool:
        """Whether no other process moves the tenant; until the connection ends."""
        async with self._translated() as connection:
            wanted = "SELECT pg_try_advisory_lock($1, hashtext($2))"
            return bool(await connection.fetchval(wanted, MOVE_LOCK, self.namespace))

    async def check_role(self) -> None:
        """Raise `InvalidSettings` for a role that does not see all rows."""
        async with self._translated() as connection:
            role = await connection.fetchrow(STANDING)
        if role is None or not (role["bypasses"] or role["owns"]):
            why = f"database {self.database!r}: a move needs the owner of the tables. Set its migrator_url."
            raise errors.InvalidSettings("role", None if role is None else role["role"], why)

    async def count_unfinished_plans(self) -> int:
        """Unfinished replay plans that have jobs of the tenant."""
        async with self._translated() as connection:
            return int(await connection.fetchval(_UNFINISHED_PLANS, self.namespace) or 0)

    async def generation(self) -> int:
        """The number of the last erasure."""
        async with self._translated() as connection:
            return int(await connection.fetchval("SELECT last_value FROM aftermind.generation") or 0)

    async def raise_generation(self, number: int) -> int:
        """Give later erasures higher numbers; returns the last one."""
        async with self._translated() as connection:
            raised = "SELECT setval('aftermind.generation', greatest($1, last_value)) FROM aftermind.generation"
            return int(await connection.fetchval(raised, number) or 0)

    async def watermark(self) -> Watermark:
        """The WAL position, which a replica must have passed to have the copied rows."""
        async with self._translated() as connection:
            row = await connection.fetchrow(WATERMARK)
        assert row is not None
        return parse_watermark(row)

    async def pause_jobs(self) -> None:
        """Let workers claim no job of the tenant; they read pauses once a second."""
        await self._execute(_PAUSE_JOBS, ACTOR)

    async def resume_jobs(self) -> None:
        """End the pause of `pause_jobs`."""
        await self._execute(_RESUME_JOBS, ACTOR)

    async def count_running_jobs(self) -> int:
        """Jobs of the tenant that workers hold."""
        async with self._translated() as connection:
            wanted = "SELECT count(*) FROM aftermind.jobs WHERE namespace = $1 AND state = 'running'"
            return int(await connection.fetchval(wanted, self.namespace) or 0)

    async def stop_writes(self, other: str) -> None:
        """Wait for transactions that write the tenant's rows, and refuse later ones. Running jobs are released.

        Raises `StatementAborted` if a transaction does not end within `LOCK_TIMEOUT`: repeat it.
        """
        async with self._translated() as connection, connection.transaction():
            milliseconds = round(LOCK_TIMEOUT.total_seconds() * 1000)
            await connection.execute(f"SET LOCAL lock_timeout = {milliseconds}")
            await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", WRITE_LOCK, self.namespace)
            await connection.execute(_SET_STATE, self.namespace, PAUSED, other)
            await connection.execute(_RELEASE_JOBS, self.namespace)

    async def serve(self, *, copied: "TenantRows | None" = None) -> None:
        """The tenant is served here from now on; `copied` is the former database, whose pauses hold here."""
        pauses = METADATA.tables["aftermind.job_pauses"]
        async with self._translated() as connection:
            if copied is not None:
                await self._prepare(pauses)
                await copied._send(self, pauses, "actor <> $2", ACTOR)
            async with connection.transaction():
                await connection.execute("DELETE FROM aftermind.job_pauses WHERE namespace = $1", self.namespace)
                if copied is not None:
                    await self._insert(pauses)
                await connection.execute(
                    "UPDATE aftermind.webhooks SET due_at = now() WHERE namespace = $1 AND due_at = 'infinity'",
                    self.namespace,
                )
                await connection.execute("DELETE FROM aftermind.tenant_moves WHERE namespace = $1", self.namespace)

    async def cancel(self) -> None:
        """End a move in its source: the tenant is served here, as before."""
        async with self._translated() as connection, connection.transaction():
            await connection.execute(_RESUME_JOBS, self.namespace, ACTOR)
            await connection.execute("DELETE FROM aftermind.tenant_moves WHERE namespace = $1", self.namespace)

    async def leave(self, other: str) -> None:
        """The tenant is served by the other database, which has its jobs: end the work here, and keep the rows."""
        async with self._translated() as connection, connection.transaction():
            for statement in _RETIRE:
                await connection.execute(statement, self.namespace)
            await connection.execute(_SET_STATE, self.namespace, MOVED, other)

    async def checksums(self) -> Checksums:
        """Rows and hashes of each table, by user."""
        found: dict[tuple[str, str | None], Checked] = {}
        async with self._translated() as connection:
            for table in _TABLES:
                for row in await connection.fetch(_checksum(table), self.namespace):
                    found[table.name, row["user_id"]] = Checked(row["rows"], row["checksum"])
        return found

    async def list_users(self) -> list[str]:
        """Users with rows."""
        wanted = " UNION ".join(f"SELECT user_id FROM aftermind.{each.name} WHERE namespace = $1" for each in _OWNED)
        async with self._translated() as connection:
            return [row["user_id"] for row in await connection.fetch(wanted, self.namespace)]

    async def copy(self, target: "TenantRows", users: Sequence[str] | None) -> None:
        """Replace the rows of users in the target; None: what belongs to no user. One snapshot, and one commit."""
        tables = _SHARED if users is None else _OWNED
        where, more = ("true", ()) if users is None else ("user_id = ANY($2)", (list(users),))
        async with (
            self._translated() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            for table in tables:
                await target._prepare(table)
                await self._send(target, table, where, *more)
        async with target._translated() as connection, connection.transaction():
            for table in reversed(tables):
                deleted = f"DELETE FROM aftermind.{table.name} WHERE namespace = $1 AND {where}"
                await connection.execute(deleted, self.namespace, *more)
            for table in tables:
                await target._insert(table)

    async def delete(self) -> int:
        """Delete every row of the tenant, some at a time; returns how many."""
        deleted = 0
        for table in reversed([*_TABLES, METADATA.tables["aftermind.job_pauses"]]):
            name = f"aftermind.{table.name}"
            some = f"SELECT ctid FROM {name} WHERE namespace = $1 LIMIT {DELETED_ROWS}"
            while True:
                async with self._translated() as connection:
                    ended = await connection.execute(
                        f"DELETE FROM {name} WHERE ctid = ANY(ARRAY({some}))", self.namespace
                    )
                count = int(ended.rpartition(" ")[2])
                deleted += count
                if count < DELETED_ROWS:
                    break
        return deleted

    async def _prepare(self, table: Table) -> None:
        """An empty temporary table: with row-level security, COPY cannot write to the table itself."""
        name = _staged(table)
        async with self._translated() as connection:
            await connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name} (LIKE aftermind.{table.name})")
            await connection.execute(f"TRUNCATE {name}")

    async def _send(self, target: "TenantRows", table: Table, where: str, *more: object) -> None:
        """Copy rows into the prepared table of the target, as Postgres's own binary format."""
        values = ", ".join(_REPLACED.get((table.name, each.name), f'"{each.name}"') for each in table.columns)
        wanted = f"SELECT {values} FROM aftermind.{table.name} WHERE namespace = $1 AND {where}"
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=16)

        async def received() -> AsyncIterator[bytes]:
            while (chunk := await chunks.get()) is not None:
                yield chunk

        async def send() -> None:
            async with self._translated() as connection:
                await connection.copy_from_query(wanted, self.namespace, *more, output=chunks.put, format="binary")
            await chunks.put(None)

        async def receive() -> None:
            async with target._translated() as connection:
                await connection.copy_to_table(
                    _staged(table).rpartition(".")[2],
                    schema_name="pg_temp",
                    columns=[each.name for each in table.columns],
                    source=received(),
                    format="binary",
                )

        sending, receiving = asyncio.ensure_future(send()), asyncio.ensure_future(receive())
        try:
            await asyncio.gather(sending, receiving)
        finally:
            for each in (sending, receiving):
                each.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _insert(self, table: Table) -> None:
        columns = ", ".join(f'"{each.name}"' for each in table.columns)
        async with self._translated() as connection:
            await connection.execute(
                f"INSERT INTO aftermind.{table.name} ({columns}) OVERRIDING SYSTEM VALUE "
                f"SELECT {columns} FROM {_staged(table)}"
            )

    async def _execute(self, statement: str, *arguments: object) -> None:
        async with self._translated() as connection:
            await connection.execute(statement, self.namespace, *arguments)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[PgConnection]:
        with translated(f"database {self.database!r}"):
            yield self._connection


@asynccontextmanager
async def open_rows(url: str, *, database: str, namespace: str, connect_seconds: float) -> AsyncIterator[TenantRows]:
    """The rows of a tenant in a database. Raises `StoreUnavailable`."""
    with translated(f"database {database!r}"):
        connection = await PrimaryConnector(url).connect(
            timeout=connect_seconds,
            command_timeout=STATEMENT_SECONDS,
            server_settings=_SESSION,
        )
    try:
        yield TenantRows(connection, database=database, namespace=namespace)
    finally:
        connection.terminate()


async def match_embedders(source: str, target: str) -> None:
    """Let a target without vectors adopt the embedder of the source. `source` and `target` are URLs.

    Raises `EmbedderMismatch`, and `ReembeddingConflict` while one of them is re-embedded.
    """
    async with vectors.connected(source) as connection:
        wanted = (await vectors.read(connection)).stored
    async with vectors.connected(target, alone=True) as connection:
        stored = await vectors.adopt(connection, wanted.active)
        await connection.commit()
    if wanted.standby is not None or stored.standby is not None:
        remedy = "End it in both databases, then move the tenant."
        raise errors.ReembeddingConflict("a database of the move is being re-embedded", remedy)
    if stored.active != wanted.active:
        raise errors.EmbedderMismatch(stored.active, wanted.active)


def find_changed(source: Checksums, target: Checksums) -> set[tuple[str, str | None]]:
    """Tables and users whose rows differ. Pure."""
    return {place for place in chain(source, target) if source.get(place) != target.get(place)}


def _staged(table: Table) -> str:
    return f"pg_temp.moving_{table.name}"


def _checksum(table: Table) -> str:
    user = '"user_id"' if table in _OWNED else "CAST(NULL AS text)"
    compared = [_compared(each) for each in table.columns if (table.name, each.name) not in _NOT_COMPARED]
    return f"""
        SELECT {user} AS user_id, count(*) AS rows,
               sum(hashtextextended(CAST(ROW({", ".join(compared)}) AS text), 0)) AS checksum
        FROM aftermind.{table.name} WHERE namespace = $1 GROUP BY 1
    """


def _compared(column: Column[Any]) -> str:  # Any: whatever it holds
    """Vectors by their bytes: their text takes ten times as long."""
    name = f'"{column.name}"'
    if isinstance(column.type, HALFVEC):
        return f"md5(public.halfvec_send({name}))"
    if isinstance(column.type, ARRAY) and isinstance(column.type.item_type, HALFVEC):
        return f"md5(array_send({name}))"
    return name
