"""Migrations: apply them, check that they were applied, refuse vectors of another dimension."""

import asyncio
import time
from pathlib import Path

import asyncpg
from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from aftermind import errors
from aftermind.db import tenancy
from aftermind.db.failures import HEAD, driver_error, translated
from aftermind.db.postgres import password_of
from aftermind.db.tables import SCHEMA, VERSION_TABLE

DEFAULT_DIMENSION = 384  # of the offline embedder and of the small sentence-transformers
LOCK = 4_702_111_234_905_311  # any fixed number: two migrators of one database must not run at once
PAUSE = 0.5  # until the next try: those who waited go first
SCRIPTS = Path(__file__).parent / "migrations"

_IN_USE = (
    "`SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start` shows it first; end it, or run "
    "`aftermind migrate` later."
)
# Whoever wants a table after us waits behind us, and a recall has a second. But only after `deadlock_timeout` (1 s)
# does Postgres send an autovacuum away that is in our way.
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
_META = text("SELECT value FROM aftermind.meta WHERE key = :key")
_NOTE = text("INSERT INTO aftermind.meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING")


async def apply(
    url: str,
    *,
    dimension: int | None = None,
    embedder: str | None = None,
    language: str = "english",
    patience: float = 60.0,
) -> str:
    """Bring a database to this release's schema; the revision that it has then.

    Safe to repeat and to run at several places at once: the second waits for the first. A new database gets vectors of
    `dimension` (default 384); one that exists raises `DimensionMismatch` where it has another one.

    A table that somebody else's transaction keeps is waited for little more than a second at a time, since others wait
    behind us, and for `patience` seconds in all. Then, and where the database does not answer, raises
    `StoreUnavailable`; what was migrated stays so.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url, timeout=10), poolclass=NullPool
    )
    try:
        with translated("migrate"):
            async with engine.connect() as connection:
                await connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})  # until it is closed
                return await _tried(connection, dimension, embedder, language, patience)
    finally:
        await engine.dispose()


async def check(
    url: str,
    *,
    dimension: int | None = None,
    allow_owner: bool = True,
    password_file: Path | None = None,
    timeout_seconds: float = 5.0,
) -> None:
    """Raise `SchemaOutdated` where migrations are missing, `DimensionMismatch` where vectors do not fit.

    Without `allow_owner` also `UnboundRole`, where row-level security does not bind the role.

    A schema that a later release has expanded is fine: what this one reads is still there.
    """
    with translated("schema"):
        connection = await asyncpg.connect(
            url,
            password=password_of(password_file),
            timeout=timeout_seconds,
            command_timeout=timeout_seconds,
            statement_cache_size=0,  # a pooler may stand between
        )
        try:
            found = await connection.fetchval(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}")
            stored = await connection.fetchval("SELECT value FROM aftermind.meta WHERE key = 'dimension'")
            if not allow_owner:
                await tenancy.refuse_unbound(connection, "schema")
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as exc:
            raise errors.SchemaOutdated(None, HEAD) from exc
        finally:
            await connection.close()
    if found is None or _number(found) < _number(HEAD):
        raise errors.SchemaOutdated(found, HEAD)
    if dimension is not None and int(stored) != dimension:
        raise errors.DimensionMismatch(int(stored), dimension)


async def _tried(
    connection: AsyncConnection, dimension: int | None, embedder: str | None, language: str, patience: float
) -> str:
    await connection.execute(_LOCK_WAIT)
    await connection.commit()
    refused_at: float | None = None
    while True:
        try:
            return await _migrated(connection, dimension, embedder, language)
        except DBAPIError as exc:
            if not isinstance(driver_error(exc), LockNotAvailableError):
                raise
            refused_at = refused_at or time.monotonic()
            if time.monotonic() - refused_at >= patience:
                why = "a table is in use by a transaction that does not end"
                raise errors.StoreUnavailable("migrate", why, _IN_USE) from exc
        await connection.rollback()
        await asyncio.sleep(PAUSE)


async def _migrated(connection: AsyncConnection, dimension: int | None, embedder: str | None, language: str) -> str:
    for statement in _PREPARE:
        await connection.execute(text(statement))
    await connection.commit()
    await _refuse_other_dimension(connection, dimension)
    await connection.run_sync(_upgrade, dimension or DEFAULT_DIMENSION)
    await tenancy.secure(connection)
    given = {"dimension": str(dimension or DEFAULT_DIMENSION), "embedder": embedder, "language": language}
    for key, value in given.items():
        if value is not None:
            await connection.execute(_NOTE, {"key": key, "value": value})
    await connection.commit()
    return HEAD


async def _refuse_other_dimension(connection: AsyncConnection, dimension: int | None) -> None:
    there = await connection.scalar(text("SELECT to_regclass('aftermind.meta') IS NOT NULL"))
    stored = await connection.scalar(_META, {"key": "dimension"}) if there else None
    await connection.commit()
    if dimension is not None and stored is not None and int(stored) != dimension:
        raise errors.DimensionMismatch(int(stored), dimension)


def _upgrade(connection: Connection, dimension: int) -> None:
    from alembic import command  # 0.5 s to import, and every worker looks at the schema without it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    config.attributes["dimension"] = dimension
    command.upgrade(config, "head")
    connection.commit()


def _number(revision: str) -> int:
    return int(revision.split("_")[0])
