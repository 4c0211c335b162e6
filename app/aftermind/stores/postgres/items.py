"""Statements over items, each by the primary key, whose order holds together what is below one path.

Expiry is decided by the database's clock. An expired item is not read any more; the owner's next write deletes it.
"""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.stores.protocol import StoredItem
from aftermind.types import Scope
from aftermind.types.items import LABEL_END, PATH_END, below

_OWNED = "namespace = :namespace AND user_id = :user"
_NAMED = f"{_OWNED} AND name = ANY(CAST(:names AS text[]))"
_LIVES = "(expires_at IS NULL OR expires_at > clock_timestamp())"
_OF_USER = f"left(name, 1) <> '{LABEL_END}'"  # see types.items.internal_path
# Rows are locked in the order of their names: two batches cannot wait for each other.
_PUT = text(
    """
    INSERT INTO aftermind.items AS there (namespace, user_id, name, content, vectors, dimension, ttl, expires_at,
                                          created_at, updated_at)
    SELECT :namespace, :user, name, content, vectors, dimension, ttl, clock_timestamp() + ttl, updated_at, updated_at
    FROM unnest(CAST(:names AS text[]), CAST(:contents AS text[]), CAST(:vectors AS bytea[]),
                CAST(:dimensions AS int[]), CAST(:ttls AS interval[]), CAST(:times AS timestamptz[]))
         AS given (name, content, vectors, dimension, ttl, updated_at)
    ORDER BY name
    ON CONFLICT (namespace, user_id, name) DO UPDATE
    SET content = excluded.content, vectors = excluded.vectors, dimension = excluded.dimension, ttl = excluded.ttl,
        expires_at = excluded.expires_at, updated_at = excluded.updated_at
    """
)
_EXPIRE = text(f"DELETE FROM aftermind.items WHERE {_OWNED} AND NOT {_LIVES}")
_DELETE = text(f"DELETE FROM aftermind.items WHERE {_NAMED}")
_COLUMNS = "name, content, vectors, dimension, ttl, expires_at, created_at, updated_at"
_GET = text(f"SELECT {_COLUMNS} FROM aftermind.items WHERE {_NAMED} AND {_LIVES}")
_UNDER = text(
    f"""
    SELECT {_COLUMNS} FROM aftermind.items
    WHERE {_OWNED} AND {_LIVES}
      AND (CAST(:first AS text) IS NULL AND {_OF_USER} OR name >= :first AND name < :behind)
    ORDER BY updated_at DESC, name LIMIT :limit
    """
)
_PATHS = text(
    f"""
    SELECT DISTINCT split_part(name, '{PATH_END}', 1) AS path FROM aftermind.items WHERE {_OWNED} AND {_LIVES}
      AND {_OF_USER}
    ORDER BY 1
    """
)
_RENEW = text(
    f"""
    UPDATE aftermind.items SET expires_at = clock_timestamp() + ttl WHERE {_NAMED} AND {_LIVES} AND ttl IS NOT NULL
    """
)


async def put(tx: Transaction, owner: Scope, given: Sequence[StoredItem]) -> None:
    """See `Store.put_items`."""
    await pg(tx).execute(_EXPIRE, _owned(owner))
    if given:
        parameters = {
            "names": [each.name for each in given],
            "contents": [each.content for each in given],
            "vectors": [None if each.vectors is None else each.vectors.astype("<f4").tobytes() for each in given],
            "dimensions": [None if each.vectors is None else each.vectors.shape[1] for each in given],
            "ttls": [each.ttl for each in given],
            "times": [each.updated_at for each in given],
        }
        await pg(tx).execute(_PUT, {**_owned(owner), **parameters})


async def delete(tx: Transaction, owner: Scope, names: Sequence[str]) -> int:
    """See `Store.delete_items`."""
    return await pg(tx).count(_DELETE, **_owned(owner), names=sorted(names))


async def get(tx: Transaction, owner: Scope, names: Sequence[str]) -> list[StoredItem]:
    """See `Store.items`."""
    return [to_item(row) for row in await pg(tx).rows(_GET, **_owned(owner), names=list(names))]


async def under(tx: Transaction, owner: Scope, path: Sequence[str], *, limit: int | None = None) -> list[StoredItem]:
    """See `Store.items_under`. The range of names has those of the path itself and of the paths below it."""
    first, behind = below(path) if path else (None, None)
    found = await pg(tx).rows(_UNDER, **_owned(owner), first=first, behind=behind, limit=limit)
    return [to_item(row) for row in found]


async def paths(tx: Transaction, owner: Scope) -> list[tuple[str, ...]]:
    """See `Store.item_paths`."""
    return [tuple(row.path.split(LABEL_END)) for row in await pg(tx).rows(_PATHS, **_owned(owner))]


async def renew(tx: Transaction, owner: Scope, names: Sequence[str]) -> None:
    """See `Store.renew_items`."""
    await pg(tx).execute(_RENEW, {**_owned(owner), "names": sorted(names)})


def _owned(owner: Scope) -> dict[str, str]:
    return {"namespace": owner.namespace, "user": owner.user_column}


def to_item(row: Row) -> StoredItem:  # type: ignore[type-arg]  # of `_COLUMNS`
    """The item that a row is."""
    vectors = None if row.vectors is None else np.frombuffer(row.vectors, "<f4").reshape(-1, row.dimension)
    return StoredItem(
        name=row.name,
        content=row.content,
        vectors=vectors,
        ttl=row.ttl,
        expires_at=row.expires_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
