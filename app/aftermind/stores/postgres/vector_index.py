"""Selects the owners whose vectors are in the vector index: those with more episodes than the exact-scan limit.

An owner passes through `users.index_state`: 0, exact scan; 1, new episodes are indexed immediately while the old ones
follow in small steps; 2, all are indexed, and search uses the index.
"""

from datetime import timedelta

from sqlalchemy import text

from aftermind.db.database_protocol import Database
from aftermind.db.postgres_transaction import pg
from aftermind.types import Scope

STEP = 200  # episodes per transaction: an entry takes about a millisecond, and no store waits longer for a lock
_TIMEOUT = timedelta(seconds=30)

# Every turn creates two events, so the counters show which owners may be large, without reading episodes.
_CANDIDATES = text(
    """
    SELECT users.namespace, users.user_id FROM aftermind.event_counters AS counters
    JOIN aftermind.users AS users ON users.namespace = counters.namespace AND users.user_id = counters.user_id
    WHERE users.index_state < 2 AND counters.last > CAST(:rows AS bigint) / 2
    ORDER BY counters.last DESC LIMIT :limit
    """
)
_MANY = text(
    """
    SELECT count(*) > :rows AS are_many FROM (
        SELECT 1 FROM aftermind.episodes WHERE namespace = :namespace AND user_id = :user
        LIMIT CAST(:rows AS bigint) + 1) AS counted
    """
)
# Waits for the stores that hold the owner FOR SHARE: what they have written is not indexed, what comes later is.
_BEGIN = text(
    """
    UPDATE aftermind.users SET index_state = greatest(index_state, CAST(1 AS smallint))
    WHERE namespace = :namespace AND user_id = :user
    """
)
_STEP = text(
    """
    UPDATE aftermind.episodes SET indexed = true
    WHERE namespace = :namespace AND user_id = :user AND id IN (
        SELECT id FROM aftermind.episodes WHERE namespace = :namespace AND user_id = :user AND NOT indexed LIMIT :limit)
    """
)
_READY = text("UPDATE aftermind.users SET index_state = 2 WHERE namespace = :namespace AND user_id = :user")


async def grown(database: Database, *, more_than: int, limit: int = 100) -> list[Scope]:
    """Owners with more episodes than the limit that are not completely indexed yet, among the `limit` busiest."""
    async with database.transaction(read_only=True) as tx:
        rows = await pg(tx).rows(_CANDIDATES, rows=more_than, limit=limit)
    found = []
    for row in rows:
        async with database.transaction(namespace=row.namespace, read_only=True) as tx:
            counted = await pg(tx).row(_MANY, namespace=row.namespace, user=row.user_id, rows=more_than)
        if counted is not None and counted.are_many:
            found.append(Scope(namespace=row.namespace, user_id=row.user_id or None))
    return found


async def index(database: Database, owner: Scope, *, steps: int) -> bool:
    """Take at most `steps` steps towards an owner whose vectors are all indexed; whether they are."""
    given = {"namespace": owner.namespace, "user": owner.user_column}
    async with database.transaction(namespace=owner.namespace) as tx:
        await pg(tx).execute(_BEGIN, given)
    for _ in range(steps):
        async with database.transaction(namespace=owner.namespace, timeout=_TIMEOUT.total_seconds()) as tx:
            if await pg(tx).count(_STEP, **given, limit=STEP) < STEP:
                await pg(tx).execute(_READY, given)
                return True
    return False
