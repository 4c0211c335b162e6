"""Migrations: apply them, check that they were applied, and record which embedder the vectors belong to."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import asyncpg
from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from aftermind import errors, extras
from aftermind.db import reembedding_column, row_level_security
from aftermind.db.error_mapping import HEAD, driver_error, short, translated
from aftermind.db.primary_connection import connect
from aftermind.db.tables import SCHEMA, VERSION_TABLE
from aftermind.types import EmbedderIdentity

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

T = TypeVar("T")

DEFAULT_DIMENSION = 384  # of the offline embedder and of the small sentence-transformers
LOCK = 4_702_111_234_905_311  # any fixed number: two migrators of one database must not run concurrently
PAUSE = 0.5  # until the next attempt: waiting statements run first
SCRIPTS = Path(__file__).parent / "migrations"

_IN_USE = (
    "`SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start` shows it first; end it, or run "
    "`aftermind migrate` later."
)
# Statements that need the table queue after this lock request, and a recall has one second. Postgres cancels a blocking
# autovacuum only after `deadlock_timeout` (1 s).
_LOCK_WAIT = text(
    """
    SELECT set_config('lock_timeout', CAST(CAST(setting AS int) + 200 AS text), false)
    FROM pg_settings WHERE name = 'deadlock_timeout'
    """
)
_PREPARE = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
)
_IS_MIGRATED = text(f"SELECT to_regclass('{SCHEMA}.{VERSION_TABLE}') IS NOT NULL")
_RIGHTS_MISSING = (
    "Run `aftermind migrate`, which grants the rights to aftermind_app (agents) and aftermind_relay (workers), and "
    "connect as a member of one of them."
)
_NOTE = text("INSERT INTO aftermind.meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING")


async def apply(
    url: str,
    *,
    dimension: int | None = None,
    embedder: EmbedderIdentity | None = None,
    language: str = "english",
    patience: float = 60.0,
) -> str:
    """Migrate a database to this release's schema; returns its revision.

    Safe to repeat and to run concurrently: the second waits for the first. A database without vectors adopts
    `embedder`, whatever its dimension; vectors of another embedder are kept until they are re-embedded: see
    `db.reembedding_column`. Without `embedder` a new database uses the hash embedder, of `dimension` (default 384).

    For a table that another transaction locks, it waits little more than a second at a time, because other statements
    queue behind it, and `patience` seconds in total. After that, and if the database does not answer, raises
    `StoreUnavailable`; completed migrations are kept. A new database gets all of them, the roles and the rights in one
    transaction.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: connect(url, timeout=10), poolclass=NullPool
    )
    try:
        with translated("migrate"):
            async with engine.connect() as connection:
                await connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})  # until it is closed
                await connection.commit()
                new = embedder or EmbedderIdentity(
                    name=f"hash:{dimension or DEFAULT_DIMENSION}",
                    dimension=dimension or DEFAULT_DIMENSION,
                    revision=language,
                )
                work = partial(_migrated, connection, new, embedder, language)
                return await patiently(connection, work, patience=patience)
    finally:
        await engine.dispose()


async def check(
    url: str,
    *,
    allow_owner: bool = True,
    timeout_seconds: float = 5.0,
) -> None:
    """Raise `SchemaOutdated` where migrations are missing, `NotAllowed` where the role may not read the schema.

    Without `allow_owner` also `UnboundRole`, where row-level security does not bind the role.

    A schema that a later release has expanded is fine: what this one reads is still there.
    """
    with translated("schema"):
        connection = await connect(
            url,
            timeout=timeout_seconds,
            command_timeout=timeout_seconds,
            statement_cache_size=0,  # a pooler may be in between
        )
        try:
            found = await connection.fetchval(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}")
            if not allow_owner:
                await row_level_security.refuse_unbound(connection, "schema")
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as exc:
            raise errors.SchemaOutdated(None, HEAD) from exc
        except asyncpg.InsufficientPrivilegeError as exc:
            raise errors.NotAllowed("schema", short(exc), _RIGHTS_MISSING) from exc
        finally:
            await connection.close()
    if found is None or _number(found) < _number(HEAD):
        raise errors.SchemaOutdated(found, HEAD)


async def pending(url: str) -> dict[str, str]:
    """Migrations that `apply` would run: name → what it does, in their order. Changes nothing."""
    try:
        await check(url)
    except errors.SchemaOutdated as exc:
        done = 0 if exc.found is None else _number(exc.found)
        found = {each.revision: each.doc for each in _scripts().walk_revisions() if _number(each.revision) > done}
        return dict(sorted(found.items()))
    return {}


async def patiently(connection: AsyncConnection, work: Callable[[], Awaitable[T]], *, patience: float = 60.0) -> T:
    """Run a function that locks tables, and retry it until no other transaction blocks it.

    Each attempt waits for a lock for little more than a second, because other statements queue behind it; `patience` is
    in seconds and limits all attempts together. Then raises `StoreUnavailable`.
    """
    await connection.execute(_LOCK_WAIT)
    await connection.commit()
    refused_at: float | None = None
    while True:
        try:
            return await work()
        except DBAPIError as exc:
            if not isinstance(driver_error(exc), LockNotAvailableError):
                raise
            refused_at = refused_at or time.monotonic()
            if time.monotonic() - refused_at >= patience:
                why = "a table is in use by a transaction that does not end"
                raise errors.StoreUnavailable("migrate", why, _IN_USE) from exc
        await connection.rollback()
        await asyncio.sleep(PAUSE)


async def _migrated(
    connection: AsyncConnection, new: EmbedderIdentity, wanted: EmbedderIdentity | None, language: str
) -> str:
    for statement in _PREPARE:
        await connection.execute(text(statement))
    # Outside a transaction Alembic commits each migration: one that locks two tables deadlocks with running workers. A
    # new database has none yet, and those that wait for it must not find tables without rights.
    if await connection.scalar(_IS_MIGRATED):
        await connection.commit()
    await connection.run_sync(_upgrade, new.dimension)
    await connection.execute(_NOTE, {"key": reembedding_column.ACTIVE_KEY, "value": new.key})
    await reembedding_column.adopt(connection, wanted)
    await row_level_security.secure(connection)
    await connection.commit()
    return HEAD


def _scripts() -> "ScriptDirectory":
    extras.require("alembic", "a migration")
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(SCRIPTS))


def _upgrade(connection: Connection, dimension: int) -> None:
    extras.require("alembic", "a migration")
    from alembic import command  # 0.5 s to import, and workers check the schema without it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    config.attributes["dimension"] = dimension
    command.upgrade(config, "head")


def _number(revision: str) -> int:
    return int(revision.split("_")[0])
