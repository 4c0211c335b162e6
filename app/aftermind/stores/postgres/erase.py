"""Forget: the tombstone and its deletes, in one transaction; and counts of an owner's rows."""

from dataclasses import replace
from typing import Any

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.stores.postgres.episodes import to_tombstone
from aftermind.types import Scope
from aftermind.types.items import CHECKPOINTS, FEEDBACK, SESSIONS, below, internal_path
from aftermind.types.job import TURN_FORGOTTEN
from aftermind.types.tombstone import Tombstone

TURN_POSITIONS = 10_000  # more than the messages of a turn, whose positions follow each other
_OWNED = "namespace = :namespace AND user_id = :user"

_NUMBER = text("SELECT aftermind.next_generation(:known) AS number")
# FOR UPDATE, by the update of the row itself: waits for every effect that holds the owner FOR SHARE, and holds off the
# next ones, which then read the tombstone.
_LOCK = text(
    """
    INSERT INTO aftermind.users AS there (namespace, user_id, tombstone_count) VALUES (:namespace, :user, 1)
    ON CONFLICT (namespace, user_id) DO UPDATE SET tombstone_count = there.tombstone_count + 1
    """
)
_BURY = text(
    """
    INSERT INTO aftermind.tombstones (namespace, user_id, generation, at, session_id, before, ids, member, by_policy,
                                      delivered)
    VALUES (:namespace, :user, :generation, clock_timestamp(), :session, :before, CAST(:ids AS uuid[]), :member,
            :by_policy, :by_policy)
    """
)
_COVERED = f"""
    {_OWNED}
    AND (cardinality(CAST(:ids AS uuid[])) = 0 OR id = ANY(CAST(:ids AS uuid[])))
    AND (cardinality(CAST(:ids AS uuid[])) > 0 OR CAST(:session AS text) IS NULL OR session_id = :session)
    AND (cardinality(CAST(:ids AS uuid[])) > 0 OR CAST(:before AS timestamptz) IS NULL OR occurred_at < :before)
    AND (CAST(:member AS text) IS NULL OR metadata ->> 'member' = :member)
"""
# Deleted with the episodes: stored model answers that used them, results of shadow runs, and counts of feedback about
# what does not exist: also of episodes that are forgotten before they are stored. The sources are deleted
# with their episodes; a fact without a source left is deleted too. An assertion that also has other sources has their
# times in place of those of the deleted messages. Times that no assertion gives any more are removed from the facts
# that stay, superseded ones included: the end of the former home must not reveal that the user moved. A turn without a
# message left is marked in its job.
_EPISODES = text(
    f"""
    WITH gone AS (
        DELETE FROM aftermind.episodes WHERE {_COVERED}
        RETURNING id, session_id, expires_at, job_id, position, occurred_at
    ), unsourced AS (
        DELETE FROM aftermind.fact_sources WHERE {_OWNED} AND episode_id IN (SELECT id FROM gone)
        RETURNING fact_id
    ), facts AS (
        DELETE FROM aftermind.facts WHERE {_OWNED} AND id IN (SELECT fact_id FROM unsourced)
          AND NOT EXISTS (
            SELECT 1 FROM aftermind.fact_sources AS left_over
            WHERE left_over.namespace = :namespace AND left_over.user_id = :user AND left_over.fact_id = facts.id
              AND left_over.episode_id NOT IN (SELECT id FROM gone))
        RETURNING id, valid_from, valid_to
    ), unsaid AS (
        DELETE FROM aftermind.assertions
        WHERE {_OWNED} AND sources <> '{{}}' AND sources <@ (SELECT coalesce(array_agg(id), '{{}}') FROM gone)
        RETURNING said_at, valid_from, valid_to, latest_at
    ), said_in_part AS (
        UPDATE aftermind.assertions AS claims
        SET sources = rest.sources,
            said_at = CASE WHEN said_at = ANY(rest.lost) THEN coalesce(rest.last, said_at) ELSE said_at END,
            valid_from = CASE WHEN valid_from = ANY(rest.lost) THEN rest.first ELSE valid_from END,
            valid_to = CASE WHEN valid_to = ANY(rest.lost) THEN NULL ELSE valid_to END,
            latest_at = CASE WHEN latest_at = ANY(rest.lost) THEN rest.last ELSE latest_at END
        FROM (
            SELECT shared.id, rest.* FROM aftermind.assertions AS shared, LATERAL (
                SELECT array_agg(source) FILTER (WHERE gone.id IS NULL) AS sources,
                       array_agg(gone.occurred_at) FILTER (WHERE gone.id IS NOT NULL) AS lost,
                       min(episodes.occurred_at) FILTER (WHERE gone.id IS NULL) AS first,
                       max(episodes.occurred_at) FILTER (WHERE gone.id IS NULL) AS last
                FROM unnest(shared.sources) AS source LEFT JOIN gone ON gone.id = source
                LEFT JOIN aftermind.episodes AS episodes
                  ON episodes.namespace = :namespace AND episodes.user_id = :user AND episodes.id = source) AS rest
            WHERE {_OWNED} AND shared.sources && (SELECT coalesce(array_agg(id), '{{}}') FROM gone)
              AND NOT shared.sources <@ (SELECT coalesce(array_agg(id), '{{}}') FROM gone)
        ) AS rest
        WHERE {_OWNED} AND claims.id = rest.id
        RETURNING claims.id, said_at, valid_from, valid_to, latest_at, rest.lost
    ), forgotten AS (
        SELECT unnest(ARRAY[said_at, valid_from, valid_to, latest_at]) AS at FROM unsaid
        UNION ALL SELECT unnest(ARRAY[valid_from, valid_to]) FROM facts
        UNION ALL SELECT unnest(lost) FROM said_in_part
        EXCEPT
        (SELECT unnest(ARRAY[said_at, valid_from, valid_to, latest_at]) FROM aftermind.assertions
         WHERE {_OWNED} AND NOT sources && (SELECT coalesce(array_agg(id), '{{}}') FROM gone)
         UNION ALL SELECT unnest(ARRAY[said_at, valid_from, valid_to, latest_at]) FROM said_in_part)
    ), undated AS (
        UPDATE aftermind.facts
        SET valid_from = CASE WHEN valid_from IN (SELECT at FROM forgotten) THEN NULL ELSE valid_from END,
            valid_to = CASE WHEN valid_to IN (SELECT at FROM forgotten) THEN NULL ELSE valid_to END
        WHERE {_OWNED} AND id NOT IN (SELECT id FROM facts)
          AND (valid_from IN (SELECT at FROM forgotten WHERE at IS NOT NULL)
               OR valid_to IN (SELECT at FROM forgotten WHERE at IS NOT NULL))
        RETURNING id
    ), mined AS (
        DELETE FROM aftermind.extractions WHERE namespace = :namespace AND user_id = :user
          AND episode_id IN (SELECT id FROM gone) RETURNING episode_id
    ), batches AS (
        UPDATE aftermind.model_batches SET episode_ids = ARRAY(
            SELECT each FROM unnest(episode_ids) AS each WHERE each NOT IN (SELECT id FROM gone))
        WHERE {_OWNED} AND episode_ids && (SELECT coalesce(array_agg(id), '{{}}') FROM gone) RETURNING job_id
    ), unprofiled AS (
        DELETE FROM aftermind.profile_backlog WHERE namespace = :namespace AND user_id = :user
          AND episode_id IN (SELECT id FROM gone) RETURNING episode_id
    ), traits AS (
        DELETE FROM aftermind.profile_traits
        WHERE {_OWNED} AND evidence && (SELECT coalesce(array_agg(id), '{{}}') FROM gone) RETURNING name
    ), summaries AS (
        DELETE FROM aftermind.summaries
        WHERE {_OWNED} AND session_id IN (SELECT coalesce(session_id, '') FROM gone WHERE expires_at IS NULL)
        RETURNING session_id
    ), answers AS (
        UPDATE aftermind.jobs SET answer = NULL
        WHERE {_OWNED} AND answer IS NOT NULL
          AND answer -> 'episodes' ?| (SELECT coalesce(array_agg(CAST(id AS text)), '{{}}') FROM gone)
        RETURNING id
    ), feedback AS (
        DELETE FROM aftermind.items AS counted WHERE {_OWNED} AND name >= :first_feedback AND name < :behind_feedback
          AND NOT EXISTS (
            SELECT FROM aftermind.episodes AS left_over
            WHERE left_over.namespace = :namespace AND left_over.user_id = :user
              AND left_over.id = CAST(right(counted.name, 36) AS uuid) AND left_over.id NOT IN (SELECT id FROM gone))
          AND NOT EXISTS (
            SELECT FROM aftermind.facts AS left_over
            WHERE left_over.namespace = :namespace AND left_over.user_id = :user
              AND left_over.id = CAST(right(counted.name, 36) AS uuid) AND left_over.id NOT IN (SELECT id FROM facts))
        RETURNING name
    ), turns AS (
        SELECT job_id, min(position) AS first, max(position) AS last FROM gone WHERE job_id IS NOT NULL GROUP BY job_id
    ), emptied AS (
        UPDATE aftermind.jobs SET reason_code = '{TURN_FORGOTTEN}' FROM turns
        WHERE jobs.id = turns.job_id AND jobs.state = 'done' AND jobs.namespace = :namespace AND jobs.user_id = :user
          AND CAST(:marks_turns AS boolean) AND NOT EXISTS (
            SELECT FROM aftermind.episodes AS left_over
            WHERE left_over.namespace = :namespace AND left_over.user_id = :user AND left_over.job_id = turns.job_id
              AND left_over.position BETWEEN turns.first - {TURN_POSITIONS} AND turns.last + {TURN_POSITIONS}
              AND left_over.id NOT IN (SELECT id FROM gone))
        RETURNING jobs.id
    ), foreseen AS (
        UPDATE aftermind.jobs SET note = NULL
        WHERE {_OWNED} AND kind = 'shadow' AND note IS NOT NULL AND EXISTS (SELECT FROM gone) RETURNING id
    )
    SELECT (SELECT count(*) FROM gone) AS episodes, (SELECT count(*) FROM facts) AS facts,
           (SELECT count(*) FROM traits) AS traits, (SELECT count(*) FROM summaries) AS summaries
    """
)
# Rows of the whole owner are deleted only if the whole owner is forgotten.
_ERASE_OWNER = text(
    f"""
    WITH facts AS (DELETE FROM aftermind.facts WHERE {_OWNED} RETURNING id),
         claims AS (DELETE FROM aftermind.assertions WHERE {_OWNED} RETURNING id),
         blocks AS (DELETE FROM aftermind.blocks WHERE {_OWNED} RETURNING name),
         items AS (DELETE FROM aftermind.items WHERE {_OWNED} RETURNING name),
         summaries AS (DELETE FROM aftermind.summaries WHERE {_OWNED} RETURNING session_id),
         profiles AS (DELETE FROM aftermind.profiles WHERE {_OWNED} RETURNING version)
    SELECT (SELECT count(*) FROM facts) AS facts, (SELECT count(*) FROM blocks) AS blocks,
           (SELECT count(*) FROM items) AS items,
           (SELECT count(*) FROM summaries) AS summaries, (SELECT count(*) FROM profiles) AS profiles
    """
)
_SESSION_ROWS = text(f"DELETE FROM aftermind.items WHERE {_OWNED} AND name >= :first AND name < :behind")
# Jobs of deleted content: their payload, answer, errors, labels and effect key may contain it. The row remains, so that
# receipts can report the state.
_SHELL = """state = 'forgotten', session_id = NULL, agent_id = NULL, effect_key = CAST(id AS text), raw = NULL,
            edited = NULL,
            payload = '{}', answer = NULL, error = NULL, note = NULL, token = NULL, lease_until = NULL,
            queue_position = NULL,
            updated_at = clock_timestamp()"""
_JOBS = text(
    f"""
    UPDATE aftermind.jobs SET {_SHELL}
    WHERE {_OWNED} AND state <> 'forgotten' AND (CAST(:session AS text) IS NULL OR session_id = :session)
    """
)
# A statement after `_JOBS`: that one may have waited for a restore or a dead letter, whose rows it cannot see yet.
# By `jobs_owner` and the index of the job of each table.
_JOB_NOTES = text(
    f"""
    WITH gone AS (
        SELECT id FROM aftermind.jobs WHERE {_OWNED} AND state = 'forgotten'
    ), attempts AS (
        UPDATE aftermind.job_attempts SET error = NULL FROM gone WHERE job_id = gone.id AND error IS NOT NULL
    )
    DELETE FROM aftermind.hold_history USING gone WHERE job_id = gone.id
    """
)
_BATCHES = text(
    f"DELETE FROM aftermind.model_batches WHERE {_OWNED} AND (episode_ids = '{{}}' OR CAST(:is_whole AS boolean))"
)
_EVENTS = text(f"DELETE FROM aftermind.events WHERE {_OWNED}")

_UNDELIVERED = text(
    """
    SELECT namespace, user_id, generation, at, session_id, before, ids, member, by_policy FROM aftermind.tombstones
    WHERE namespace = :namespace AND NOT delivered ORDER BY generation LIMIT 1000
    """
)
_DELIVERED = text(f"UPDATE aftermind.tombstones SET delivered = true WHERE {_OWNED} AND generation = :generation")

_COUNTS = text(
    f"""
    SELECT (SELECT count(*) FROM aftermind.episodes WHERE {_OWNED}) AS episodes,
           (SELECT count(embedding) FROM aftermind.episodes WHERE {_OWNED}) AS embedded,
           (SELECT count(*) FROM aftermind.facts WHERE {_OWNED} AND superseded_at IS NULL) AS facts,
           (SELECT count(*) FROM aftermind.blocks WHERE {_OWNED}) AS blocks,
           (SELECT count(*) FROM aftermind.items WHERE {_OWNED}) AS items,
           (SELECT count(*) FROM aftermind.summaries WHERE {_OWNED}) AS summaries,
           (SELECT count(*) FROM aftermind.profiles WHERE {_OWNED}) AS profiles
    """
)


async def begin(tx: Transaction, owner: Scope, *, known: int = 0) -> int:
    """See `Store.begin_erasure`. The number comes after the lock: what is stored by now has a lower one."""
    run = pg(tx)
    await run.execute(_LOCK, {"namespace": owner.namespace, "user": owner.user_column})
    row = await run.row(_NUMBER, known=known)
    assert row is not None
    return int(row.number)


async def forget(tx: Transaction, tombstone: Tombstone) -> dict[str, int]:
    """See `Store.forget`."""
    owned = {"namespace": tombstone.owner.namespace, "user": tombstone.owner.user_column}
    first, behind = below(internal_path(FEEDBACK))
    given: dict[str, Any] = {  # Any: text, times and ids
        **owned,
        "session": tombstone.session_id,
        "before": tombstone.before,
        "ids": sorted(tombstone.ids),
        "member": tombstone.member,
        "marks_turns": tombstone.marks_turns,
        "first_feedback": first,
        "behind_feedback": behind,
    }
    run = pg(tx)
    await run.execute(_BURY, {**given, "generation": tombstone.generation, "by_policy": tombstone.by_policy})
    counts = _numbers(await run.row(_EPISODES, **given))
    await run.execute(_BATCHES, {**owned, "is_whole": tombstone.is_whole})
    if tombstone.is_whole:
        for name, count in _numbers(await run.row(_ERASE_OWNER, **owned)).items():
            counts[name] = counts.get(name, 0) + count
    elif tombstone.is_session:
        session = replace(tombstone.owner, session_id=tombstone.session_id)
        for first, behind in [below(internal_path(kind, session)) for kind in (SESSIONS, CHECKPOINTS)]:
            await run.execute(_SESSION_ROWS, {**owned, "first": first, "behind": behind})
    if tombstone.is_whole or tombstone.is_session:
        counts["jobs"] = await run.count(_JOBS, **owned, session=tombstone.session_id)
        await run.execute(_JOB_NOTES, owned)
    if tombstone.is_whole:  # behind those of jobs that were just ending: their rows were waited for
        await run.execute(_EVENTS, owned)
    return counts


async def undelivered(tx: Transaction, namespace: str) -> list[Tombstone]:
    """See `Store.undelivered`. By `tombstones_undelivered`."""
    return [to_tombstone(row) for row in await pg(tx).rows(_UNDELIVERED, namespace=namespace)]


async def delivered(tx: Transaction, tombstone: Tombstone) -> None:
    """See `Store.delivered`."""
    given = {"namespace": tombstone.owner.namespace, "user": tombstone.owner.user_column}
    await pg(tx).execute(_DELIVERED, {**given, "generation": tombstone.generation})


async def counts(tx: Transaction, owner: Scope) -> dict[str, int]:
    """See `Store.counts`."""
    return _numbers(await pg(tx).row(_COUNTS, namespace=owner.namespace, user=owner.user_column))


def _numbers(row: Any) -> dict[str, int]:  # Any: a row of counts
    return {name: int(count) for name, count in row._mapping.items()}
