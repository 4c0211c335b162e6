"""Statements over outcomes of extraction: which episodes wait for it, and the results of the others."""

from collections.abc import Sequence

from sqlalchemy import select, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import EPISODES, EXTRACTIONS
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, UNEXPIRED, to_episode
from aftermind.stores.protocol import BatchNeighbours, ExtractionBatch, ExtractionOutcome, MiningOutcome
from aftermind.types import Episode, EpisodeId, JobId, Scope
from aftermind.types.message import UNDONE

_NOTE = text(
    """
    INSERT INTO aftermind.extractions (namespace, user_id, episode_id, outcome, reason, facts, extractor, job_id)
    SELECT :namespace, :user, * FROM unnest(
        CAST(:ids AS uuid[]), CAST(:outcomes AS text[]), CAST(:reasons AS text[]), CAST(:facts AS int[]),
        CAST(:extractors AS text[]), CAST(:jobs AS uuid[]))
    ON CONFLICT (namespace, user_id, episode_id) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, facts = excluded.facts, extractor = excluded.extractor,
        job_id = excluded.job_id, at = now()
    """
)


_NOTE_BATCH = text(
    """
    INSERT INTO aftermind.model_batches (namespace, user_id, job_id, kind, session_id, episode_ids)
    VALUES (:namespace, :user, :job, :kind, :session, CAST(:shown AS uuid[]))
    ON CONFLICT (namespace, user_id, job_id) DO UPDATE SET episode_ids = excluded.episode_ids, at = now()
    """
)
# By the primary key of `batches`: all of the owner, for an undo. What was undone before is mined no more.
_SHOWN_TOGETHER = text(
    """
    WITH mine AS MATERIALIZED (
        SELECT kind, episode_ids, at, episode_ids && CAST(:ids AS uuid[]) AS showed FROM aftermind.model_batches
        WHERE namespace = :namespace AND user_id = :user
    ), beside AS (
        SELECT id, bool_or(kind = 'extract') AS mined, bool_or(kind = 'profile') AS profiled
        FROM mine, unnest(episode_ids) AS id
        WHERE kind = 'extract' AND showed
           OR kind = 'profile' AND at >= (SELECT min(at) FROM mine WHERE kind = 'profile' AND showed)
        GROUP BY id
    )
    SELECT episodes.id, episodes.session_id, mined, profiled
    FROM beside JOIN aftermind.episodes AS episodes
      ON episodes.namespace = :namespace AND episodes.user_id = :user AND episodes.id = beside.id
    WHERE episodes.id <> ALL (CAST(:ids AS uuid[])) AND episodes.mark IS DISTINCT FROM :undone
    """
)


async def unmined(tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
    """See `Store.unmined`. By `episodes_session`, against the primary key of what was mined."""
    episodes, mined = EPISODES.c, EXTRACTIONS.c
    known = select(mined.episode_id).where(
        mined.namespace == episodes.namespace, mined.user_id == episodes.user_id, mined.episode_id == episodes.id
    )
    wanted = (
        select(*EPISODE_COLUMNS)
        .where(
            episodes.namespace == owner.namespace,
            episodes.user_id == owner.user_column,
            episodes.session_id.is_(None) if session_id is None else episodes.session_id == session_id,
            ~known.exists(),
            text(UNEXPIRED.format(of="episodes.")),
        )
        .order_by(episodes.position, episodes.id)
        .limit(limit)
    )
    return [to_episode(owner, row) for row in (await pg(tx).execute(wanted)).all()]


async def note(tx: Transaction, owner: Scope, outcomes: Sequence[MiningOutcome]) -> None:
    """See `Store.note_outcomes`."""
    if not outcomes:
        return
    given = {
        "namespace": owner.namespace,
        "user": owner.user_column,
        "ids": [each.episode_id for each in outcomes],
        "outcomes": [each.outcome.value for each in outcomes],
        "reasons": [each.reason for each in outcomes],
        "facts": [each.facts for each in outcomes],
        "extractors": [each.extractor for each in outcomes],
        "jobs": [each.job_id for each in outcomes],
    }
    await pg(tx).execute(_NOTE, given)


async def note_batch(tx: Transaction, owner: Scope, batch: ExtractionBatch) -> None:
    """See `Store.note_batch`."""
    given = {
        "namespace": owner.namespace,
        "user": owner.user_column,
        "job": batch.job_id,
        "kind": batch.kind.value,
        "session": batch.session_id,
        "shown": list(batch.shown),
    }
    await pg(tx).execute(_NOTE_BATCH, given)


async def list_batch_neighbours(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> BatchNeighbours:
    """See `Store.list_batch_neighbours`."""
    rows = await pg(tx).rows(
        _SHOWN_TOGETHER, namespace=owner.namespace, user=owner.user_column, ids=list(ids), undone=UNDONE
    )
    return BatchNeighbours(
        mined=frozenset(EpisodeId(row.id) for row in rows if row.mined),
        sessions=tuple(sorted({row.session_id for row in rows if row.mined}, key=str)),
        profiled=frozenset(EpisodeId(row.id) for row in rows if row.profiled),
    )


async def outcomes(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[MiningOutcome]:
    """See `Store.outcomes`."""
    mined = EXTRACTIONS.c
    wanted = select(EXTRACTIONS).where(
        mined.namespace == owner.namespace, mined.user_id == owner.user_column, mined.episode_id.in_(list(ids))
    )
    return [
        MiningOutcome(
            episode_id=EpisodeId(row.episode_id),
            outcome=ExtractionOutcome(row.outcome),
            extractor=row.extractor,
            reason=row.reason,
            facts=row.facts,
            job_id=None if row.job_id is None else JobId(row.job_id),
        )
        for row in (await pg(tx).execute(wanted)).all()
    ]


async def mined_in(tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
    """See `Store.mined_in`. By the primary key of what was mined: the owner's part of it, which is asked by replays."""
    episodes, mined = EPISODES.c, EXTRACTIONS.c
    joined = EPISODES.join(
        EXTRACTIONS,
        (mined.namespace == episodes.namespace)
        & (mined.user_id == episodes.user_id)
        & (mined.episode_id == episodes.id),
    )
    wanted = (
        select(*EPISODE_COLUMNS)
        .select_from(joined)
        .where(mined.namespace == owner.namespace, mined.user_id == owner.user_column, mined.job_id == job_id)
        .order_by(episodes.position, episodes.id)
    )
    return [to_episode(owner, row) for row in (await pg(tx).execute(wanted)).all()]
