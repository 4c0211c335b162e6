"""Retention in Postgres: policies by namespace, and which episodes they keep no longer."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.db.postgres_transaction import pg
from aftermind.stores.postgres.encrypted_columns import open_facts
from aftermind.stores.postgres.facts import selected
from aftermind.stores.postgres.rows import to_fact
from aftermind.stores.retention_protocol import Due
from aftermind.types import EpisodeId, Fact, Scope
from aftermind.types.retention import RetentionPolicy
from aftermind.types.scope import owner_from_columns

_POLICIES = text(
    """
    SELECT namespace, max_age, max_episodes, keep_important, archive, updated_at, ran_at
    FROM aftermind.retention_policies
    WHERE (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
      AND (CAST(:every AS interval) IS NULL OR coalesce(ran_at, updated_at) <= now() - CAST(:every AS interval))
    ORDER BY namespace
    """
)
_PUT = text(
    """
    INSERT INTO aftermind.retention_policies (namespace, max_age, max_episodes, keep_important, archive)
    VALUES (:namespace, :max_age, :max_episodes, :keep_important, :archive)
    ON CONFLICT (namespace) DO UPDATE SET max_age = :max_age, max_episodes = :max_episodes,
        keep_important = :keep_important, archive = :archive, updated_at = now(), ran_at = NULL
    WHERE (retention_policies.max_age, retention_policies.max_episodes, retention_policies.keep_important,
        retention_policies.archive) IS DISTINCT FROM (excluded.max_age, excluded.max_episodes,
        excluded.keep_important, excluded.archive)
    """
)
_DROP = text("DELETE FROM aftermind.retention_policies WHERE namespace = :namespace")
_RAN = text("UPDATE aftermind.retention_policies SET ran_at = now() WHERE namespace = :namespace")

# An episode is important if its metadata mark it, or if it is a source of a current fact.
_IMPORTANT = """
    (episodes.metadata @> '{"important": true}' OR EXISTS (
        SELECT FROM aftermind.fact_sources AS sources JOIN aftermind.facts AS facts
          ON facts.namespace = sources.namespace AND facts.user_id = sources.user_id AND facts.id = sources.fact_id
        WHERE sources.namespace = episodes.namespace AND sources.user_id = episodes.user_id
          AND sources.episode_id = episodes.id AND facts.superseded_at IS NULL))
"""
# By `episodes_stored`, from its old end. `stored_at` is the database's clock; `remembered_at` and positions follow the
# clocks of agents, and one that is behind would lose what it has just remembered. `occurred_at` would not do either: a
# conversation of years ago that was brought in yesterday is a day old here.
_DUE = text(
    f"""
    SELECT page.user_id, found.ids, found.oldest, found.newest
    FROM (
        SELECT user_id FROM aftermind.users
        WHERE namespace = :namespace AND (CAST(:after AS text) IS NULL OR user_id > :after)
        ORDER BY user_id LIMIT :users
    ) AS page
    LEFT JOIN LATERAL (
        SELECT stored_at, position FROM (
            SELECT now() - CAST(:max_age AS interval) AS stored_at, CAST(-1 AS bigint) AS position
            UNION ALL
            (SELECT stored_at, position FROM aftermind.episodes AS newest
             WHERE newest.namespace = :namespace AND newest.user_id = page.user_id
               AND CAST(:most AS bigint) IS NOT NULL
             ORDER BY stored_at DESC, position DESC OFFSET coalesce(CAST(:most AS bigint), 1) - 1 LIMIT 1)
        ) AS bounds
        WHERE stored_at IS NOT NULL ORDER BY stored_at DESC, position DESC LIMIT 1
    ) AS bound ON true
    CROSS JOIN LATERAL (
        SELECT array_agg(id ORDER BY stored_at, position) AS ids,
               min(remembered_at) AS oldest, max(remembered_at) AS newest
        FROM (
            SELECT id, stored_at, position, remembered_at FROM aftermind.episodes AS episodes
            WHERE namespace = :namespace AND user_id = page.user_id
              AND (stored_at, position) < (bound.stored_at, bound.position)
              AND NOT (:keep_important AND {_IMPORTANT})
            ORDER BY stored_at, position LIMIT :limit
        ) AS old
    ) AS found
    ORDER BY page.user_id
    """
)
# FOR UPDATE waits for every effect that holds the owner FOR SHARE; what it wrote is seen by the statements after it.
_HOLD = text("SELECT FROM aftermind.users WHERE namespace = :namespace AND user_id = :user FOR UPDATE")
_STILL = text(
    f"""
    SELECT id FROM aftermind.episodes AS episodes
    WHERE namespace = :namespace AND user_id = :user AND id = ANY(CAST(:ids AS uuid[]))
      AND NOT (:keep_important AND {_IMPORTANT})
    """
)
# By `episodes_expiring`.
_EXPIRED = text(
    """
    SELECT user_id, array_agg(id) AS ids FROM (
        SELECT user_id, id FROM aftermind.episodes
        WHERE namespace = :namespace AND expires_at <= statement_timestamp() ORDER BY expires_at LIMIT :limit
    ) AS expired GROUP BY user_id ORDER BY user_id
    """
)
_FACTS = selected(
    """
    id IN (SELECT fact_id FROM aftermind.fact_sources
           WHERE namespace = :namespace AND user_id = :user AND episode_id = ANY(CAST(:ids AS uuid[])))
    AND NOT EXISTS (SELECT FROM aftermind.fact_sources AS left_over
                    WHERE left_over.namespace = :namespace AND left_over.user_id = :user
                      AND left_over.fact_id = facts.id AND left_over.episode_id <> ALL(CAST(:ids AS uuid[])))
    """
)


class PostgresRetention:
    """Retention policies as rows. See `RetentionStore` for what each method promises."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def policies(self, tx: Transaction, namespace: str | None = None) -> list[RetentionPolicy]:
        """That of a namespace, or those of all."""
        return [_policy(row) for row in await pg(tx).rows(_POLICIES, namespace=namespace, every=None)]

    async def list_due(self, tx: Transaction, *, every: timedelta) -> list[RetentionPolicy]:
        """See `RetentionStore.list_due`."""
        return [_policy(row) for row in await pg(tx).rows(_POLICIES, namespace=None, every=every)]

    async def put(self, tx: Transaction, policy: RetentionPolicy) -> None:
        """Set a namespace's policy; a changed one has not run yet."""
        await pg(tx).execute(
            _PUT,
            {
                "namespace": policy.namespace,
                "max_age": policy.max_age,
                "max_episodes": policy.max_episodes,
                "keep_important": policy.keep_important,
                "archive": policy.archive,
            },
        )

    async def drop(self, tx: Transaction, namespace: str) -> bool:
        """Whether there was a policy."""
        return bool(await pg(tx).count(_DROP, namespace=namespace))

    async def ran(self, tx: Transaction, namespace: str) -> None:
        """Note that the policy was carried out to its end."""
        await pg(tx).execute(_RAN, {"namespace": namespace})

    async def due_episodes(
        self, tx: Transaction, policy: RetentionPolicy, *, after: str | None, users: int, limit: int
    ) -> tuple[list[Due], str | None]:
        """Of the next users, up to `limit` episodes each that must be deleted; and the last user that was checked."""
        rows = await pg(tx).rows(
            _DUE,
            namespace=policy.namespace,
            after=after,
            users=users,
            limit=limit,
            max_age=policy.max_age,
            most=policy.max_episodes,
            keep_important=policy.keep_important,
        )
        found = [
            Due(
                owner=Scope(namespace=policy.namespace, user_id=row.user_id or None),
                ids=tuple(EpisodeId(each) for each in row.ids),
                oldest=row.oldest.astimezone(UTC),
                newest=row.newest.astimezone(UTC),
            )
            for row in rows
            if row.ids
        ]
        return found, rows[-1].user_id if rows else None

    async def still_due(
        self, tx: Transaction, policy: RetentionPolicy, owner: Scope, ids: Sequence[EpisodeId]
    ) -> list[EpisodeId]:
        """Lock the owner against effects; returns those of the ids that must still be deleted."""
        owned = {"namespace": owner.namespace, "user": owner.user_column}
        await pg(tx).execute(_HOLD, owned)
        rows = await pg(tx).rows(_STILL, **owned, ids=list(ids), keep_important=policy.keep_important)
        return [EpisodeId(row.id) for row in rows]

    async def list_expired(self, tx: Transaction, namespace: str, *, limit: int) -> dict[Scope, list[EpisodeId]]:
        """See `RetentionStore.list_expired`."""
        rows = await pg(tx).rows(_EXPIRED, namespace=namespace, limit=limit)
        return {owner_from_columns(namespace, row.user_id): [EpisodeId(each) for each in row.ids] for row in rows}

    async def list_orphaned_facts(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        """Facts that lose their last source with these episodes."""
        rows = await pg(tx).rows(_FACTS, namespace=owner.namespace, user=owner.user_column, ids=list(ids))
        return await open_facts(self._vault, tx, owner, [to_fact(owner, row) for row in rows])


def _policy(row: Row[Any]) -> RetentionPolicy:  # Any: a row of `retention`
    return RetentionPolicy(
        namespace=row.namespace,
        max_age=row.max_age,
        max_episodes=row.max_episodes,
        keep_important=row.keep_important,
        archive=row.archive,
        set_at=row.updated_at,
        ran_at=row.ran_at,
    )
