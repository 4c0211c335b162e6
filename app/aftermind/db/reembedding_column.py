"""The second vector column of a re-embedding: filled while the first one serves, then exchanged with it.

Everything here is run as the owner of the tables (`aftermind migrate`, `aftermind reembed`). No statement rewrites a
table: columns are added, renamed and dropped in the catalogue alone, under a lock that is waited for little more than
a second at a time (`migrate.patiently`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from aftermind import errors
from aftermind.db.error_mapping import HEAD, translated
from aftermind.db.primary_connection import connect
from aftermind.db.row_level_security import APP, RELAY
from aftermind.db.tables import SCHEMA
from aftermind.types import EmbedderIdentity, EpisodeId, Scope, StoredEmbedders
from aftermind.types.reembedding import Reembedding, ReembeddingCounts, ReembeddingSteps

Connection = AsyncConnection
ACTIVE_KEY, STANDBY_KEY, IS_CUT_OVER_KEY = "active_embedder", "standby_embedder", "is_cut_over"

_META = text("SELECT key, value FROM aftermind.meta")
_PUT = text(
    "INSERT INTO aftermind.meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = :value"
)
_REMOVE = text("DELETE FROM aftermind.meta WHERE key = ANY(:keys)")
_HAS_VECTORS = text("SELECT EXISTS (SELECT FROM aftermind.episodes WHERE embedding IS NOT NULL)")
_LOCK = text("LOCK TABLE aftermind.episodes IN ACCESS EXCLUSIVE MODE")
# Copied from the initial migration.
_VIEW = f"""
    CREATE VIEW {SCHEMA}.searchable_episodes AS
    SELECT id, namespace, user_id, session_id, agent_id, role, metadata, occurred_at, remembered_at, position,
           terms, embedding, indexed
    FROM {SCHEMA}.episodes
    WHERE texteq(namespace, (SELECT NULLIF(current_setting('aftermind.namespace', true), '')))
"""
_INDEX = """
    CREATE INDEX {how} {name} ON aftermind.episodes USING hnsw ({column} halfvec_cosine_ops)
    WITH (ef_construction = 128) WHERE indexed
"""
_DROP_VIEW = f"DROP VIEW {SCHEMA}.searchable_episodes"
_MAKE_VIEW = (_VIEW, f"GRANT SELECT ON {SCHEMA}.searchable_episodes TO {APP}, {RELAY}")
_EXCHANGE = (
    _DROP_VIEW,
    "ALTER TABLE aftermind.episodes RENAME COLUMN embedding TO embedding_exchanged",
    "ALTER TABLE aftermind.episodes RENAME COLUMN embedding_standby TO embedding",
    "ALTER TABLE aftermind.episodes RENAME COLUMN embedding_exchanged TO embedding_standby",
    "ALTER TABLE aftermind.episodes RENAME COLUMN passage_embedding TO passage_embedding_exchanged",
    "ALTER TABLE aftermind.episodes RENAME COLUMN passage_embedding_standby TO passage_embedding",
    "ALTER TABLE aftermind.episodes RENAME COLUMN passage_embedding_exchanged TO passage_embedding_standby",
    "ALTER INDEX aftermind.episodes_embedding RENAME TO episodes_embedding_exchanged",
    "ALTER INDEX aftermind.episodes_embedding_standby RENAME TO episodes_embedding",
    "ALTER INDEX aftermind.episodes_embedding_exchanged RENAME TO episodes_embedding_standby",
    *_MAKE_VIEW,
)
_IS_INDEXED = text(
    """
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = 'aftermind.episodes'::regclass AND c.relname = 'episodes_embedding_standby'
    """
)


async def read(connection: AsyncConnection) -> Reembedding:
    """What `meta` records. Raises `SchemaOutdated` if a migrator stopped before it recorded the embedder."""
    meta = {row.key: row.value for row in (await connection.execute(_META)).all()}
    stored = StoredEmbedders.from_keys(meta.get(ACTIVE_KEY), meta.get(STANDBY_KEY))
    if stored is None:
        raise errors.SchemaOutdated(None, HEAD)
    return Reembedding(stored=stored, is_cut_over=meta.get(IS_CUT_OVER_KEY) == "true")


async def adopt(connection: AsyncConnection, wanted: EmbedderIdentity | None) -> StoredEmbedders:
    """Record the active embedder; a database without vectors adopts the wanted one, whatever its dimension.

    In the caller's transaction. Takes ACCESS EXCLUSIVE on episodes only if the embedder changes.
    """
    stored = (await read(connection)).stored
    if wanted is None or wanted in stored or stored.standby is not None or await connection.scalar(_HAS_VECTORS):
        return stored
    await connection.execute(_LOCK)
    if await connection.scalar(_HAS_VECTORS):
        return stored
    await _adjust_column(connection, stored.active.dimension, wanted.dimension)
    await _note(connection, wanted)
    return StoredEmbedders(active=wanted)


async def begin(connection: AsyncConnection, target: EmbedderIdentity) -> None:
    """Add an empty column for the target's vectors."""
    await _renew_standby(connection, f"halfvec({target.dimension})")
    await connection.execute(_PUT, {"key": STANDBY_KEY, "value": target.key})
    await connection.execute(_PUT, {"key": IS_CUT_OVER_KEY, "value": "false"})


async def index_standby(connection: AsyncConnection) -> None:
    """Build the vector index of the standby column without blocking writes. Outside a transaction."""
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    is_valid = await connection.scalar(_IS_INDEXED)
    if is_valid is False:  # a build that was interrupted
        await connection.execute(text("DROP INDEX CONCURRENTLY aftermind.episodes_embedding_standby"))
    if not is_valid:
        statement = _INDEX.format(how="CONCURRENTLY", name="episodes_embedding_standby", column="embedding_standby")
        await connection.execute(text(statement))
    await connection.commit()
    await connection.execution_options(isolation_level="READ COMMITTED")


async def exchange(connection: AsyncConnection) -> None:
    """Swap the active and the standby column: only the catalogue changes."""
    await connection.execute(_LOCK)
    now = await read(connection)
    standby = now.stored.standby
    if standby is None:
        raise errors.NoReembedding()
    for statement in _EXCHANGE:
        await connection.execute(text(statement))
    await _note(connection, standby)
    await connection.execute(_PUT, {"key": STANDBY_KEY, "value": now.stored.active.key})
    await connection.execute(_PUT, {"key": IS_CUT_OVER_KEY, "value": "false" if now.is_cut_over else "true"})


async def drop_standby(connection: AsyncConnection) -> None:
    """Drop the standby embedder's vectors and index."""
    await _renew_standby(connection, "halfvec")
    await connection.execute(_REMOVE, {"keys": [STANDBY_KEY, IS_CUT_OVER_KEY]})


async def _renew_standby(connection: AsyncConnection, type_: str) -> None:
    column = f"DROP COLUMN embedding_standby, ADD COLUMN embedding_standby {type_}"
    column += ", DROP COLUMN passage_embedding_standby, ADD COLUMN passage_embedding_standby halfvec[]"
    await connection.execute(text(f"ALTER TABLE aftermind.episodes {column}"))


async def _adjust_column(connection: AsyncConnection, before: int, after: int) -> None:
    if before == after:
        return
    index = _INDEX.format(how="", name="episodes_embedding", column="embedding")
    column = f"DROP COLUMN embedding, ADD COLUMN embedding halfvec({after})"
    for statement in (_DROP_VIEW, f"ALTER TABLE aftermind.episodes {column}", index, *_MAKE_VIEW):
        await connection.execute(text(statement))


async def _note(connection: AsyncConnection, active: EmbedderIdentity) -> None:
    await connection.execute(_PUT, {"key": ACTIVE_KEY, "value": active.key})


# Queries of commands, as the owner of the tables: across all tenants.

_COMMAND_LOCK = 4_702_111_234_905_312  # any fixed number: two commands must not change the columns concurrently
_COUNTS = text(
    """
    SELECT count(*) AS episodes, count(embedding) AS active, count(embedding_standby) AS standby,
           coalesce(sum(length(content)), 0) AS characters FROM aftermind.episodes
    """
)
# By `episodes_position`: the first episode without a vector ends the search of its owner.
_LACKING = {
    column: text(
        f"""
        SELECT namespace, user_id FROM aftermind.users
        WHERE EXISTS (SELECT FROM aftermind.episodes AS e WHERE e.namespace = users.namespace
                      AND e.user_id = users.user_id AND e.{column} IS NULL)
        ORDER BY namespace, user_id
        """
    )
    for column in ("embedding", "embedding_standby")
}
_STEPS = text(
    """
    SELECT count(*) FILTER (WHERE state = 'running') AS running, count(*) FILTER (WHERE state = 'dead') AS dead,
           count(*) FILTER (WHERE state IN ('queued', 'retrying')) AS waiting,
           max(coalesce(note, error)) FILTER (WHERE state <> 'running') AS why
    FROM aftermind.jobs
    WHERE kind = 'embed' AND state IN ('queued', 'retrying', 'running', 'dead') AND payload ->> 'reembed' = :target
    """
)
# The newest questions of as many users as there are wanted, one of each.
_SAMPLE = text(
    """
    SELECT users.namespace, users.user_id, asked.id FROM aftermind.users CROSS JOIN LATERAL (
        SELECT e.id FROM aftermind.episodes AS e
        WHERE e.namespace = users.namespace AND e.user_id = users.user_id AND e.role = 'user'
          AND (CAST(:namespace AS text) IS NULL OR e.namespace = :namespace)
          AND (CAST(:user AS text) IS NULL OR e.user_id = :user)
        ORDER BY e.position DESC LIMIT :each) AS asked
    LIMIT :limit
    """
)


@asynccontextmanager
async def connected(url: str, *, alone: bool = False) -> AsyncIterator[AsyncConnection]:
    """A connection as the owner; with `alone` no other such command runs at the same time, else
    `ReembeddingConflict`. The lock ends with the connection, so what needs it must use this connection.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: connect(url, timeout=10), poolclass=NullPool
    )
    try:
        with translated("reembed"):
            async with engine.connect() as connection:
                got = text("SELECT pg_try_advisory_lock(:key)")
                if alone and not await connection.scalar(got, {"key": _COMMAND_LOCK}):
                    raise errors.ReembeddingConflict(
                        "another `aftermind reembed` command changes this database", "Run it again when it has ended."
                    )
                await connection.commit()
                yield connection
    finally:
        await engine.dispose()


async def count(connection: AsyncConnection) -> ReembeddingCounts:
    """Read every episode's row once: seconds for millions."""
    row = (await connection.execute(_COUNTS)).one()
    return ReembeddingCounts(episodes=row.episodes, active=row.active, standby=row.standby, characters=row.characters)


async def steps(connection: AsyncConnection, target: EmbedderIdentity) -> ReembeddingSteps:
    """The unfinished jobs that make vectors of an embedder."""
    row = (await connection.execute(_STEPS, {"target": target.key})).one()
    return ReembeddingSteps(waiting=row.waiting, running=row.running, dead=row.dead, why=row.why)


async def lacking(connection: AsyncConnection, embedder: EmbedderIdentity, stored: StoredEmbedders) -> list[Scope]:
    """Owners with episodes that lack a vector of an embedder, which the database has a column for."""
    column = "embedding" if embedder == stored.active else "embedding_standby"
    rows = (await connection.execute(_LACKING[column])).all()
    return [Scope(namespace=row.namespace, user_id=row.user_id or None) for row in rows]


async def sample(
    connection: AsyncConnection, *, limit: int, namespace: str | None = None, user: str | None = None
) -> list[tuple[Scope, EpisodeId]]:
    """The newest messages of users, one of each; of a single user the newest ones."""
    each = 1 if user is None else limit
    given = {"limit": limit, "each": each, "namespace": namespace, "user": user}
    rows = (await connection.execute(_SAMPLE, given)).all()
    return [(Scope(namespace=row.namespace, user_id=row.user_id or None), EpisodeId(row.id)) for row in rows]
