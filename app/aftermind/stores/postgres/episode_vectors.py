"""Statements over vectors and the embedders that made them: the active ones, and the standby ones of a re-embedding.

`episodes.embedding` holds vectors of the active embedder, `episodes.embedding_standby` those of the standby embedder
(`types.StoredEmbedders`). Both are columns of the episode's row, so erasure, retention, row-level security and grants
cover both alike.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.engine import encode_half
from aftermind.db.postgres_transaction import pg
from aftermind.ranking.vectors import whole
from aftermind.stores.postgres.episodes import passage_vectors
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, to_episode
from aftermind.stores.protocol import Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, Scope, StoredEmbedders

ACTIVE_KEY, STANDBY_KEY = "active_embedder", "standby_embedder"
_SHOWN = ", ".join(column.name for column in EPISODE_COLUMNS)

_STORED = text(
    f"""
    SELECT (SELECT value FROM aftermind.meta WHERE key = '{ACTIVE_KEY}') AS active,
           (SELECT value FROM aftermind.meta WHERE key = '{STANDBY_KEY}') AS standby
    """
)
# Stores may write at the same time; a cutover, which takes the table for itself, waits until they have committed.
_HOLD = text("LOCK TABLE aftermind.episodes IN ROW EXCLUSIVE MODE")
_SET = {
    column: text(
        f"""
        UPDATE aftermind.episodes AS episodes SET {column} = given.vector, passage_{column} = parts.vectors
        FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:ids AS uuid[]),
                    CAST(:vectors AS public.halfvec[])) AS given (namespace, user_id, id, vector)
        LEFT JOIN (SELECT id, array_agg(vector ORDER BY place) AS vectors
                   FROM unnest(CAST(:passage_of AS uuid[]), CAST(:passage_vectors AS public.halfvec[]))
                        WITH ORDINALITY AS made (id, vector, place) GROUP BY id) AS parts ON parts.id = given.id
        WHERE episodes.namespace = given.namespace AND episodes.user_id = given.user_id AND episodes.id = given.id
        """
    )
    for column in ("embedding", "embedding_standby")
}
# Cast, so that the result keeps its type when a cutover exchanges the columns under a prepared statement.
_VECTORS = text(
    """
    SELECT id, CAST(embedding AS public.halfvec) AS embedding FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND embedding IS NOT NULL ORDER BY position
    """
)
_VECTORS_OF = text(
    """
    SELECT id, CAST(embedding AS public.halfvec) AS embedding FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND embedding IS NOT NULL AND id = ANY(CAST(:ids AS uuid[]))
    """
)
# By `episodes_position`, so that a page begins where the last one ended.
_LACKING = {
    column: text(
        f"""
        SELECT {_SHOWN} FROM aftermind.episodes
        WHERE namespace = :namespace AND user_id = :user AND position >= :after AND {column} IS NULL
        ORDER BY position LIMIT :limit
        """
    )
    for column in ("embedding", "embedding_standby")
}
_HAVING = {
    column: text(
        f"""
        SELECT id FROM aftermind.episodes
        WHERE namespace = :namespace AND user_id = :user AND id = ANY(CAST(:ids AS uuid[])) AND {column} IS NOT NULL
        """
    )
    for column in ("embedding", "embedding_standby")
}
_ADOPT = text("SELECT aftermind.adopt_embedder(:wanted)")


async def stored(tx: Transaction, *, hold: bool = False) -> StoredEmbedders | None:
    """See `Store.stored_embedders`."""
    if hold:
        await pg(tx).execute(_HOLD)
    row = await pg(tx).row(_STORED)
    return None if row is None else StoredEmbedders.from_keys(row.active, row.standby)


async def adopt(tx: Transaction, identity: EmbedderIdentity) -> bool:
    """Make it the active embedder of a database that has no vectors; whether it is the active one now.

    Only for the dimension that the column has; `aftermind migrate` changes that. Takes SHARE ROW EXCLUSIVE on episodes.
    """
    row = await pg(tx).row(_ADOPT, wanted=identity.key)
    return row is not None and bool(row[0])


async def set_vectors(
    tx: Transaction, vectors: Mapping[tuple[Scope, EpisodeId], Vector], *, embedder: EmbedderIdentity | None = None
) -> int:
    """See `Store.set_vectors`."""
    column = await _column(tx, embedder, hold=True) if vectors else None
    if column is None:
        return 0
    return await pg(tx).count(
        _SET[column],
        namespaces=[owner.namespace for owner, _ in vectors],
        users=[owner.user_column for owner, _ in vectors],
        ids=[id_ for _, id_ in vectors],
        vectors=[encode_half(whole(vector)) for vector in vectors.values()],
        **passage_vectors({id_: vector for (_, id_), vector in vectors.items()}),
    )


async def vectors(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId] | None = None) -> dict[EpisodeId, Vector]:
    """See `Store.vectors`. By the primary key."""
    given = {"namespace": owner.namespace, "user": owner.user_column}
    if ids is None:
        rows = await pg(tx).rows(_VECTORS, **given)
    else:
        rows = await pg(tx).rows(_VECTORS_OF, **given, ids=list(ids))
    return {EpisodeId(row.id): row.embedding for row in rows}


async def embedded(
    tx: Transaction, owner: Scope, ids: Sequence[EpisodeId], *, embedder: EmbedderIdentity | None = None
) -> frozenset[EpisodeId]:
    """See `Store.embedded`. By the primary key."""
    column = await _column(tx, embedder) if ids else None
    if column is None:
        return frozenset()
    given = {"namespace": owner.namespace, "user": owner.user_column, "ids": list(ids)}
    return frozenset(EpisodeId(row.id) for row in await pg(tx).rows(_HAVING[column], **given))


async def lacking(
    tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
) -> list[Episode]:
    """See `Store.unembedded`. By `episodes_position`."""
    column = await _column(tx, embedder)
    if column is None:
        return []
    given = {"namespace": owner.namespace, "user": owner.user_column, "after": after_position, "limit": limit}
    return [to_episode(owner, row) for row in await pg(tx).rows(_LACKING[column], **given)]


async def _column(tx: Transaction, embedder: EmbedderIdentity | None, *, hold: bool = False) -> str | None:
    """The column of an embedder's vectors, None if there is none; `hold` as in `stored`."""
    if embedder is None:
        return "embedding"
    known = await stored(tx, hold=hold)
    if known is None or embedder not in known:
        return None
    return "embedding" if embedder == known.active else "embedding_standby"
