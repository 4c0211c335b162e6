"""Undo what drew on episodes: one statement, after the facts were decided."""

from collections.abc import Sequence

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.stores.protocol import BatchNeighbours, ExtractionOutcome
from aftermind.types import EpisodeId, Scope
from aftermind.types.assertion import BY_USER
from aftermind.types.message import UNDONE

_OWNED = "namespace = :namespace AND user_id = :user"

# A job whose model call has finished must not write the answer: it loses the answer and, if it runs, its lease, and is
# claimed again once this is detected. Current facts with other sources keep only those; superseded facts keep their
# sources as evidence.
_UNDO = text(
    f"""
    WITH undone AS (
        UPDATE aftermind.episodes SET mark = :mark WHERE {_OWNED} AND id = ANY(CAST(:ids AS uuid[]))
        RETURNING id, session_id
    ), unsourced AS (
        DELETE FROM aftermind.fact_sources AS sources USING aftermind.facts AS facts
        WHERE sources.namespace = :namespace AND sources.user_id = :user
          AND (sources.episode_id = ANY(CAST(:ids AS uuid[]))
               OR sources.episode_id = ANY(CAST(:mined AS uuid[])) AND facts.extractor <> :stated)
          AND facts.namespace = :namespace AND facts.user_id = :user AND facts.id = sources.fact_id
          AND facts.superseded_at IS NULL
        RETURNING fact_id
    ), weaker AS (
        UPDATE aftermind.facts SET strength = greatest(1, strength - 1)
        WHERE {_OWNED} AND id IN (SELECT fact_id FROM unsourced) RETURNING id
    ), mined AS (
        UPDATE aftermind.extractions SET outcome = :empty, reason = :mark, facts = 0, at = now()
        WHERE {_OWNED} AND episode_id = ANY(CAST(:ids AS uuid[])) RETURNING episode_id
    ), to_be_mined AS (
        DELETE FROM aftermind.extractions
        WHERE {_OWNED} AND episode_id = ANY(CAST(:mined AS uuid[])) RETURNING episode_id
    ), unprofiled AS (
        DELETE FROM aftermind.profile_backlog
        WHERE {_OWNED} AND episode_id = ANY(CAST(:ids AS uuid[])) RETURNING episode_id
    ), traits AS (
        DELETE FROM aftermind.profile_traits WHERE {_OWNED} AND evidence && CAST(:drawn AS uuid[]) RETURNING name
    ), summaries AS (
        DELETE FROM aftermind.summaries
        WHERE {_OWNED} AND session_id IN (SELECT coalesce(session_id, '') FROM undone) RETURNING session_id
    ), asked AS (
        UPDATE aftermind.jobs
        SET answer = NULL, token = CASE WHEN state = 'running' THEN gen_random_uuid() ELSE token END,
            lease_until = CASE WHEN state = 'running' THEN clock_timestamp() ELSE lease_until END
        WHERE {_OWNED} AND kind IN ('extract', 'summarise', 'profile', 'shadow')
          AND (state IN ('queued', 'running', 'retrying', 'dead') OR (kind = 'shadow' AND state = 'discarded'))
        RETURNING id
    )
    SELECT (SELECT count(*) FROM traits) AS traits, (SELECT count(*) FROM summaries) AS summaries
    """
)


async def undo(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId], *, beside: BatchNeighbours) -> dict[str, int]:
    """See `Store.undo`."""
    row = await pg(tx).row(
        _UNDO,
        namespace=owner.namespace,
        user=owner.user_column,
        ids=list(ids),
        mined=list(beside.mined),
        drawn=[*ids, *beside.profiled],
        mark=UNDONE,
        empty=ExtractionOutcome.EMPTY.value,
        stated=BY_USER,
    )
    return {"traits": 0, "summaries": 0} if row is None else {"traits": row.traits, "summaries": row.summaries}
