"""What goes by age alone, a batch at a time: attempts of finished jobs, and tombstones that nothing is too late for."""

from datetime import timedelta

from sqlalchemy import text

from aftermind.db.base import Database, Transaction
from aftermind.db.transaction import pg

# What a policy let go was stored long ago: its tombstone is for jobs that run at that moment, and a lease is seconds.
POLICY_TOMBSTONES = timedelta(days=1)

# `job_attempts_started` finds the old end. Attempts of what is not finished, and of dead letters, stay with their job.
_ATTEMPTS = text(
    """
    WITH old AS (
        SELECT job_id, number FROM aftermind.job_attempts AS attempts
        WHERE started_at < now() - CAST(:age AS interval) AND NOT EXISTS (
            SELECT FROM aftermind.jobs WHERE id = attempts.job_id
              AND state NOT IN ('done', 'discarded', 'forgotten', 'replayed'))
        LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM aftermind.job_attempts AS attempts USING old
    WHERE attempts.job_id = old.job_id AND attempts.number = old.number
    """
)
_NAMESPACES = text("SELECT DISTINCT namespace FROM aftermind.users WHERE forgets > 0 ORDER BY 1")
# As the relay, who sees those of all. By `tombstones_undelivered`; some are of a moment ago, and on their way.
_UNDELIVERED = text(
    """
    SELECT DISTINCT namespace FROM aftermind.tombstones
    WHERE NOT delivered AND at < clock_timestamp() - interval '1 second' ORDER BY 1
    """
)
# FOR UPDATE first, and looked at by the statements after it: a forget that waits for the row, or one that has just
# committed, counts itself in `forgets`, and must not be overwritten by what was seen before it.
_OWNERS = text(
    """
    SELECT user_id FROM aftermind.users AS users
    WHERE namespace = :namespace AND forgets > 0 AND EXISTS (
        SELECT FROM aftermind.tombstones AS stones
        WHERE stones.namespace = :namespace AND stones.user_id = users.user_id
          AND delivered
          AND at < now() - least(CAST(:age AS interval), CASE WHEN by_policy THEN CAST(:soon AS interval) END))
    ORDER BY user_id LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)
_TOMBSTONES = text(
    """
    DELETE FROM aftermind.tombstones WHERE namespace = :namespace AND user_id = ANY(CAST(:users AS text[]))
      AND delivered
      AND at < now() - least(CAST(:age AS interval), CASE WHEN by_policy THEN CAST(:soon AS interval) END)
    """
)
_FORGETS = text(
    """
    UPDATE aftermind.users AS users SET forgets = 0
    WHERE namespace = :namespace AND user_id = ANY(CAST(:users AS text[])) AND NOT EXISTS (
        SELECT FROM aftermind.tombstones AS stones
        WHERE stones.namespace = :namespace AND stones.user_id = users.user_id)
    """
)


async def attempts(tx: Transaction, *, older_than: timedelta, limit: int) -> int:
    """Delete attempts that began so long ago, of jobs that are finished or gone; how many."""
    return await pg(tx).count(_ATTEMPTS, age=older_than, limit=limit)


async def namespaces(db: Database) -> list[str]:
    """Where anything was ever forgotten. Asked as the relay, who sees the users of all."""
    async with db.transaction(read_only=True) as tx:
        return [row.namespace for row in await pg(tx).rows(_NAMESPACES)]


async def undelivered(db: Database) -> list[str]:
    """Namespaces with erasures that Redis may not have. Asked as the relay, who sees the tombstones of all."""
    async with db.transaction(read_only=True) as tx:
        return [row.namespace for row in await pg(tx).rows(_UNDELIVERED)]


async def tombstones(tx: Transaction, namespace: str, *, older_than: timedelta, limit: int) -> int:
    """Delete tombstones that are so old, of up to `limit` owners of a namespace; how many owners had some."""
    given = {"namespace": namespace, "age": older_than, "soon": POLICY_TOMBSTONES}
    users = [row.user_id for row in await pg(tx).rows(_OWNERS, **given, limit=limit)]
    if users:
        await pg(tx).execute(_TOMBSTONES, {**given, "users": users})
        await pg(tx).execute(_FORGETS, {"namespace": namespace, "users": users})
    return len(users)
