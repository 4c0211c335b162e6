"""Statements over the backlog of summaries and profiles, and over the extraction result of each episode."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import EPISODES, PROFILE_BACKLOG
from aftermind.stores.postgres.encrypted_columns import open_episodes
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, to_episode
from aftermind.stores.protocol import DrewOn, ExtractionOutcome, UserInfo
from aftermind.types import Episode, EpisodeId, ExtractionResult, ExtractionState, JobId, Scope
from aftermind.types.scope import GROUP_PREFIX
from aftermind.types.tombstone import Tombstone

_OWNED = "namespace = :namespace AND user_id = :user"

# `episodes_session`, from its beginning.
_SIZE = text(
    f"""
    SELECT count(*) AS size FROM aftermind.episodes
    WHERE {_OWNED} AND session_id IS NOT DISTINCT FROM CAST(:session AS text) AND position <= :up_to
      AND expires_at IS NULL
    """
)
_WANT = text(
    """
    INSERT INTO aftermind.profile_backlog (namespace, user_id, episode_id)
    SELECT :namespace, :user, id FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND id = ANY(CAST(:ids AS uuid[]))
    ON CONFLICT DO NOTHING
    """
)
_PROFILED = text(f"DELETE FROM aftermind.profile_backlog WHERE {_OWNED} AND episode_id = ANY(CAST(:ids AS uuid[]))")

_COVERED = f"""
    SELECT id, session_id, expires_at FROM aftermind.episodes
    WHERE {_OWNED}
      AND (cardinality(CAST(:ids AS uuid[])) = 0 OR id = ANY(CAST(:ids AS uuid[])))
      AND (cardinality(CAST(:ids AS uuid[])) > 0 OR CAST(:session AS text) IS NULL OR session_id = :session)
      AND (cardinality(CAST(:ids AS uuid[])) > 0 OR CAST(:before AS timestamptz) IS NULL OR occurred_at < :before)
      AND (CAST(:member AS text) IS NULL OR metadata ->> 'member' = :member)
"""
# The summaries and traits that `forget` deletes because they used deleted episodes, and their other sources; and what
# the assertions from these episodes are about.
_DREW_ON = text(
    f"""
    WITH gone AS ({_COVERED})
    SELECT ARRAY(
        SELECT session_id FROM aftermind.summaries
        WHERE {_OWNED}
          AND session_id IN (SELECT coalesce(session_id, '') FROM gone WHERE expires_at IS NULL)) AS sessions,
    ARRAY(
        SELECT DISTINCT each FROM aftermind.profile_traits, unnest(evidence) AS each
        WHERE {_OWNED} AND evidence && (SELECT coalesce(array_agg(id), '{{}}') FROM gone)
          AND each NOT IN (SELECT id FROM gone)) AS evidence,
    ARRAY(
        SELECT DISTINCT ARRAY[subject, predicate] FROM aftermind.assertions
        WHERE {_OWNED} AND sources && (SELECT coalesce(array_agg(id), '{{}}') FROM gone)) AS claims
    """
)

# Episodes by `episodes_position`, from the end; jobs of a session by `jobs_owner`. A dead job gives the reason only
# while no newer job of the same session is waiting.
_LEARNED = text(
    f"""
    SELECT episodes.id, episodes.session_id, episodes.occurred_at, mined.outcome, mined.reason, mined.facts,
           mined.extractor, mined.job_id, doing.state, doing.why, doing.id AS doing
    FROM (
        SELECT id, session_id, occurred_at, position FROM aftermind.episodes
        WHERE {_OWNED} AND (CAST(:session AS text) IS NULL OR session_id = :session)
        ORDER BY position DESC, id DESC LIMIT :limit
    ) AS episodes
    LEFT JOIN aftermind.extractions AS mined
        ON mined.namespace = :namespace AND mined.user_id = :user AND mined.episode_id = episodes.id
    LEFT JOIN LATERAL (
        SELECT jobs.id, jobs.state,
               CASE jobs.state WHEN 'discarded' THEN 'its job was discarded'
                               ELSE coalesce(jobs.error, jobs.note, jobs.reason_code) END AS why
        FROM aftermind.jobs AS jobs
        WHERE mined.episode_id IS NULL AND jobs.namespace = :namespace AND jobs.user_id = :user
          AND jobs.kind = 'extract' AND jobs.session_id IS NOT DISTINCT FROM episodes.session_id
          AND jobs.state IN ('queued', 'running', 'retrying', 'dead', 'discarded')
        ORDER BY jobs.state = 'discarded', jobs.state = 'dead', jobs.created_at DESC LIMIT 1
    ) AS doing ON true
    ORDER BY episodes.position, episodes.id
    """
)
_OWNERS = text(
    """
    SELECT DISTINCT user_id FROM aftermind.episodes
    WHERE namespace = :namespace AND (CAST(:since AS timestamptz) IS NULL OR occurred_at >= :since)
    ORDER BY user_id LIMIT :limit
    """
)
# Walks the key of `users` and reads one entry of each index that shows whether rows of a user remain; locks nothing.
_USERS = text(
    """
    SELECT users.user_id, newest.stored_at AS last_at FROM aftermind.users AS users
    LEFT JOIN LATERAL (
        SELECT stored_at FROM aftermind.episodes AS e WHERE e.namespace = users.namespace AND e.user_id = users.user_id
        ORDER BY stored_at DESC LIMIT 1
    ) AS newest ON true
    WHERE users.namespace = :namespace
      AND users.user_id >= :prefix AND users.user_id < CAST(:prefix AS text) || chr(1114111)
      AND (CAST(:after AS text) IS NULL OR users.user_id > :after)
      AND (CAST(:groups AS boolean) OR NOT starts_with(users.user_id, :group_prefix))
      AND (newest.stored_at IS NOT NULL
           OR EXISTS (SELECT FROM aftermind.blocks AS b
                      WHERE b.namespace = users.namespace AND b.user_id = users.user_id)
           OR EXISTS (SELECT FROM aftermind.items AS i
                      WHERE i.namespace = users.namespace AND i.user_id = users.user_id)
           OR EXISTS (SELECT FROM aftermind.facts AS f
                      WHERE f.namespace = users.namespace AND f.user_id = users.user_id))
    ORDER BY users.user_id LIMIT :limit
    """
)


class PostgresLearning:
    """The part of the store about extraction. See `Store` for the promise of each method."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def session_size(self, tx: Transaction, owner: Scope, session_id: str | None, *, up_to: int) -> int:
        row = await pg(tx).row(_SIZE, **_owner_parameters(owner), session=session_id, up_to=up_to)
        return 0 if row is None else int(row.size)

    async def want_profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        await pg(tx).execute(_WANT, {**_owner_parameters(owner), "ids": list(ids)})

    async def unprofiled(self, tx: Transaction, owner: Scope, *, limit: int) -> list[Episode]:
        episodes, waiting = EPISODES.c, PROFILE_BACKLOG.c
        joined = EPISODES.join(
            PROFILE_BACKLOG,
            (waiting.namespace == episodes.namespace)
            & (waiting.user_id == episodes.user_id)
            & (waiting.episode_id == episodes.id),
        )
        wanted = (
            select(*EPISODE_COLUMNS)
            .select_from(joined)
            .where(waiting.namespace == owner.namespace, waiting.user_id == owner.user_column)
            .order_by(episodes.position, episodes.id)
            .limit(limit)
        )
        found = [to_episode(owner, row) for row in (await pg(tx).execute(wanted)).all()]
        return await open_episodes(self._vault, tx, owner, found)

    async def profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        await pg(tx).execute(_PROFILED, {**_owner_parameters(owner), "ids": list(ids)})

    async def drew_on(self, tx: Transaction, stone: Tombstone) -> DrewOn:
        given = {"session": stone.session_id, "before": stone.before, "ids": sorted(stone.ids), "member": stone.member}
        row = await pg(tx).row(_DREW_ON, **_owner_parameters(stone.owner), **given)
        if row is None:
            return DrewOn()
        return DrewOn(
            sessions=tuple(session or None for session in row.sessions),
            evidence=tuple(EpisodeId(each) for each in row.evidence),
            claims=frozenset((subject, predicate) for subject, predicate in row.claims),
        )

    async def extraction_results(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int
    ) -> list[ExtractionResult]:
        rows = await pg(tx).rows(_LEARNED, **_owner_parameters(owner), session=session_id, limit=limit)
        return [
            ExtractionResult(
                episode_id=EpisodeId(row.id),
                session_id=row.session_id,
                occurred_at=row.occurred_at,
                state=ExtractionState.of(ExtractionOutcome(row.outcome) if row.outcome else None, row.state),
                reason=row.reason if row.outcome else (row.why or (str(row.state) if row.state else "no job waits")),
                facts=row.facts or 0,
                extractor=row.extractor,
                job_id=JobId(row.job_id or row.doing) if row.job_id or row.doing else None,
            )
            for row in rows
        ]

    async def owners(
        self, tx: Transaction, namespace: str, *, since: datetime | None = None, limit: int = 10_000
    ) -> list[Scope]:
        rows = await pg(tx).rows(_OWNERS, namespace=namespace, since=since, limit=limit)
        return [Scope(namespace=namespace, user_id=row.user_id or None) for row in rows]

    async def users(
        self,
        tx: Transaction,
        namespace: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        groups: bool = False,
    ) -> list[UserInfo]:
        wanted = {"prefix": prefix, "after": after, "groups": groups, "group_prefix": GROUP_PREFIX}
        rows = await pg(tx).rows(_USERS, namespace=namespace, limit=limit, **wanted)
        return [
            UserInfo(user_id=row.user_id or None, last_at=None if row.last_at is None else row.last_at.astimezone(UTC))
            for row in rows
        ]


def _owner_parameters(owner: Scope) -> dict[str, str]:
    return {"namespace": owner.namespace, "user": owner.user_column}
