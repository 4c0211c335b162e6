"""Deletion by age, in batches: attempts of finished jobs, and tombstones that are no longer needed."""

from datetime import timedelta

from sqlalchemy import text

from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.postgres_transaction import pg

# Episodes that a policy deletes were stored long ago: the tombstone is for jobs that run at that moment, and a lease
# lasts seconds.
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
_NAMESPACES = text("SELECT DISTINCT namespace FROM aftermind.users WHERE tombstone_count > 0 ORDER BY 1")
# As the relay, which reads those of all tenants. By `tombstones_undelivered`; some are new and about to be delivered.
_EXPIRED = text("SELECT aftermind.expired_namespaces() AS namespace")
_UNDELIVERED = text(
    """
    SELECT DISTINCT namespace FROM aftermind.tombstones
    WHERE NOT delivered AND at < clock_timestamp() - interval '1 second' ORDER BY 1
    """
)
# FOR UPDATE first, then read in the following statements: a forget that waits for the row, or has just committed,
# increments `tombstone_count`, and must not be overwritten by an older value.
_OWNERS = text(
    """
    SELECT user_id FROM aftermind.users AS users
    WHERE namespace = :namespace AND tombstone_count > 0 AND EXISTS (
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
    UPDATE aftermind.users AS users SET tombstone_count = 0
    WHERE namespace = :namespace AND user_id = ANY(CAST(:users AS text[])) AND NOT EXISTS (
        SELECT FROM aftermind.tombstones AS stones
        WHERE stones.namespace = :namespace AND stones.user_id = users.user_id)
    """
)


async def attempts(tx: Transaction, *, older_than: timedelta, limit: int) -> int:
    """Delete attempts older than the age, of jobs that are finished or deleted; returns their number."""
    return await pg(tx).count(_ATTEMPTS, age=older_than, limit=limit)


async def namespaces(db: Database) -> list[str]:
    """Namespaces with any erasure. Requires the relay, which reads the users of all tenants."""
    async with db.transaction(read_only=True) as tx:
        return [row.namespace for row in await pg(tx).rows(_NAMESPACES)]


async def expired_namespaces(db: Database) -> list[str]:
    """Namespaces with messages that have expired. Requires the relay."""
    async with db.transaction(read_only=True) as tx:
        return [row.namespace for row in await pg(tx).rows(_EXPIRED)]


async def undelivered(db: Database) -> list[str]:
    """Namespaces with erasures that Redis may lack. Requires the relay, which reads the tombstones of all tenants."""
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
