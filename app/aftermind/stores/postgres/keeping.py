"""Retention in Postgres: policies by namespace, and which episodes they keep no longer."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, text

from aftermind.db.base import Transaction
from aftermind.db.transaction import pg
from aftermind.db.vault import Vault
from aftermind.stores.keeping import Due
from aftermind.stores.postgres.facts import selected
from aftermind.stores.postgres.rows import fact_of
from aftermind.stores.postgres.sealed import open_facts
from aftermind.types import EpisodeId, Fact, Scope
from aftermind.types.retention import RetentionPolicy

_POLICIES = text(
    """
    SELECT namespace, max_age, max_episodes, keep_important, archive, ran_at FROM aftermind.retention
    WHERE CAST(:namespace AS text) IS NULL OR namespace = :namespace ORDER BY namespace
    """
)
_PUT = text(
    """
    INSERT INTO aftermind.retention (namespace, max_age, max_episodes, keep_important, archive)
    VALUES (:namespace, :max_age, :max_episodes, :keep_important, :archive)
    ON CONFLICT (namespace) DO UPDATE SET max_age = :max_age, max_episodes = :max_episodes,
        keep_important = :keep_important, archive = :archive, updated_at = now(), ran_at = NULL
    """
)
_DROP = text("DELETE FROM aftermind.retention WHERE namespace = :namespace")
_RAN = text("UPDATE aftermind.retention SET ran_at = now() WHERE namespace = :namespace")

# An episode is important that says so, or that a fact believed now was learned from.
_IMPORTANT = """
    (episodes.metadata @> '{"important": true}' OR EXISTS (
        SELECT FROM aftermind.fact_sources AS sources JOIN aftermind.facts AS facts
          ON facts.namespace = sources.namespace AND facts.user_id = sources.user_id AND facts.id = sources.fact_id
        WHERE sources.namespace = episodes.namespace AND sources.user_id = episodes.user_id
          AND sources.episode_id = episodes.id AND facts.superseded_at IS NULL))
"""
# A position is the microsecond at which the agent handed the turn over, so `episodes_position` serves both bounds from
# its old end. `occurred_at` would not do: a conversation of years ago that was brought in yesterday is a day old here.
_DUE = text(
    f"""
    SELECT page.user_id, found.ids, found.oldest, found.newest
    FROM (
        SELECT user_id FROM aftermind.users
        WHERE namespace = :namespace AND (CAST(:after AS text) IS NULL OR user_id > :after)
        ORDER BY user_id LIMIT :users
    ) AS page
    CROSS JOIN LATERAL (
        SELECT greatest(
            extract(epoch FROM now() - CAST(:max_age AS interval)) * 1000000,
            (SELECT position FROM aftermind.episodes AS newest
             WHERE newest.namespace = :namespace AND newest.user_id = page.user_id
               AND CAST(:most AS bigint) IS NOT NULL
             ORDER BY position DESC OFFSET coalesce(CAST(:most AS bigint), 1) - 1 LIMIT 1)) AS position
    ) AS bound
    CROSS JOIN LATERAL (
        SELECT array_agg(id ORDER BY position) AS ids, min(remembered_at) AS oldest, max(remembered_at) AS newest
        FROM (
            SELECT id, position, remembered_at FROM aftermind.episodes AS episodes
            WHERE namespace = :namespace AND user_id = page.user_id AND position < CAST(bound.position AS bigint)
              AND NOT (:keep_important AND {_IMPORTANT})
            ORDER BY position LIMIT :limit
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
_FACTS = selected(
    """
    id IN (SELECT fact_id FROM aftermind.fact_sources
           WHERE namespace = :namespace AND user_id = :user AND episode_id = ANY(CAST(:ids AS uuid[])))
    AND NOT EXISTS (SELECT FROM aftermind.fact_sources AS left_over
                    WHERE left_over.namespace = :namespace AND left_over.user_id = :user
                      AND left_over.fact_id = facts.id AND left_over.episode_id <> ALL(CAST(:ids AS uuid[])))
    """
)


class PostgresKeeping:
    """Retention policies as rows. See `Keeping` for what each method promises."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def policies(self, tx: Transaction, namespace: str | None = None) -> list[RetentionPolicy]:
        """That of a namespace, or those of all."""
        return [_policy(row) for row in await pg(tx).rows(_POLICIES, namespace=namespace)]

    async def put(self, tx: Transaction, policy: RetentionPolicy) -> None:
        """Set a namespace's policy; it has not run yet."""
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

    async def due(
        self, tx: Transaction, policy: RetentionPolicy, *, after: str | None, users: int, limit: int
    ) -> tuple[list[Due], str | None]:
        """Of the next users, up to `limit` episodes each that must go; and the last user looked at."""
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
        """Lock the owner against effects; those of the ids that must go even so."""
        owned = {"namespace": owner.namespace, "user": owner.user_column}
        await pg(tx).execute(_HOLD, owned)
        rows = await pg(tx).rows(_STILL, **owned, ids=list(ids), keep_important=policy.keep_important)
        return [EpisodeId(row.id) for row in rows]

    async def facts_that_go(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        """Facts that lose their last source with these episodes."""
        rows = await pg(tx).rows(_FACTS, namespace=owner.namespace, user=owner.user_column, ids=list(ids))
        return await open_facts(self._vault, tx, owner, [fact_of(owner, row) for row in rows])


def _policy(row: Row[Any]) -> RetentionPolicy:  # Any: a row of `retention`
    ran_at: datetime | None = row.ran_at
    return RetentionPolicy(
        namespace=row.namespace,
        max_age=row.max_age,
        max_episodes=row.max_episodes,
        keep_important=row.keep_important,
        archive=row.archive,
        ran_at=ran_at,
    )
