"""Store a batch of turns in one statement: ledger rows, episodes, follow-up jobs and events.

Separate statements need eight or more round trips, and each costs more than the database's own work for a turn. One
statement is a complete transaction, so its commit needs no round trip either. It sees the rows of one snapshot; where
that could be wrong, it reads the rows that it has locked, which are current: users (a forget since, vector indexing),
event counters, rows of the ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import orjson

from aftermind.db.database_protocol import Watermark
from aftermind.db.encryption.keyring import Ring, Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.db.positional_parameters import Positional
from aftermind.events.types import MemoryEvent
from aftermind.ledger.postgres import enqueue as entering
from aftermind.ranking.tokenizer import LanguageFor, english
from aftermind.stores.postgres import episodes
from aftermind.stores.protocol import Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, NewJob, Turn, session_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A turn to store, the episodes that are kept of it, and its events."""

    turn: Turn
    episodes: Sequence[Episode]
    events: Sequence[MemoryEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The jobs that follow turns (`NewJob.follows`): enqueued as by `Ledger.enqueue`, or debounced as by
    `Ledger.debounce` with `quiet` and `at_most`. A job that follows only turns that are not new is left out.
    """

    enqueued: Sequence[NewJob] = ()
    debounced: Sequence[NewJob] = ()
    quiet: timedelta = timedelta(0)
    at_most: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBatch:
    """Turns of one tenant and the jobs that follow them."""

    turns: Sequence[Arrived]
    following: Following | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was committed: turns that are new, jobs that were enqueued, and event cursors by event id.

    `took_ms` is how long it took, and is added to the `duration_ms` of events. `watermark` was taken after the commit.
    """

    new: frozenset[JobId]
    enqueued: frozenset[JobId]
    cursors: Mapping[str, int]
    took_ms: float
    watermark: Watermark | None


# What follows the turns that are new: jobs put in, and jobs pushed. One that a claim takes at this very moment has no
# `run_at` to be pushed to, which the table refuses, and with it the statement.
_FOLLOWING = f"""
    ), follows AS MATERIALIZED (
        SELECT job_id, turn_id
        FROM unnest(CAST(:follow_jobs AS uuid[]), CAST(:follow_turns AS uuid[])) AS given (job_id, turn_id)
        JOIN recorded ON recorded.id = given.turn_id
    ), following AS MATERIALIZED (
        SELECT given.*, given.id = ANY(CAST(:debounced AS uuid[])) AS waits FROM {entering.ROWS}
        WHERE given.id IN (SELECT job_id FROM follows)
    ), enqueued AS (
        {entering.ENQUEUE.format(rows="following WHERE NOT waits")}
    ), pushed AS (
        {entering.DEBOUNCE.format(rows="(SELECT * FROM following WHERE waits) AS given", running="NULL")}
    ), doing AS MATERIALIZED (
        SELECT id, kind, effect_key FROM enqueued UNION ALL SELECT id, kind, effect_key FROM pushed
    ), followed AS (
        INSERT INTO aftermind.job_followups (namespace, followed_job_id, kind, job_id)
        SELECT :namespace, follows.turn_id, following.kind, doing.id
        FROM follows JOIN following ON following.id = follows.job_id JOIN doing USING (kind, effect_key)
        ON CONFLICT DO NOTHING
"""
# Where the session's order has them: as others that were counted from the same base (types.counting).
_PLACED = episodes.GIVEN.replace("given.position", "given.position + sessions.shift").replace(
    "given.shift", "nullif(sessions.shift, 0)"
)
_NOTHING = """
    ), enqueued AS MATERIALIZED (
        SELECT CAST(NULL AS uuid) AS id WHERE false
    ), doing AS MATERIALIZED (
        SELECT id FROM enqueued
"""


def _store(following: str) -> Positional:
    """The statement, with what follows the turns.

    The order of what is locked is that of every effect: users, rows of the ledger, counters of events, and by owner or
    key within each. What depends on another part takes its rows from there, so it comes after.
    """
    return Positional.of(
        f"""
        WITH tenant AS MATERIALIZED (
            SELECT aftermind.enter(:namespace, true) AS entered
        ), known AS MATERIALIZED (
            SELECT there.* FROM tenant CROSS JOIN LATERAL (
                SELECT user_id, tombstone_count, index_state FROM aftermind.users
                WHERE tenant.entered IS NOT NULL AND namespace = :namespace AND user_id = ANY(CAST(:owners AS text[]))
                ORDER BY user_id FOR SHARE
            ) AS there
        ), added_owners AS (
            INSERT INTO aftermind.users (namespace, user_id)
            SELECT :namespace, given.user_id FROM tenant CROSS JOIN unnest(CAST(:owners AS text[])) AS given (user_id)
            WHERE tenant.entered IS NOT NULL AND given.user_id NOT IN (SELECT user_id FROM known)
            ORDER BY given.user_id ON CONFLICT DO NOTHING
            RETURNING user_id, tombstone_count, index_state
        ), owners AS MATERIALIZED (
            SELECT user_id, tombstone_count, index_state FROM known
            UNION ALL SELECT user_id, tombstone_count, index_state FROM added_owners
        ), sessions AS MATERIALIZED (
            SELECT asked.user_id, asked.session_id, asked.counted_from,
                   newest.position IS NULL OR newest.counted_from = asked.counted_from
                     OR newest.position < asked.counted_from AS is_next,
                   CASE WHEN newest.counted_from = asked.counted_from THEN coalesce(newest.shift, 0) ELSE 0 END AS shift
            FROM tenant CROSS JOIN unnest(CAST(:counted_users AS text[]), CAST(:counted_sessions AS text[]),
                                          CAST(:counted_bases AS bigint[])) AS asked (user_id, session_id, counted_from)
            LEFT JOIN LATERAL (
                (SELECT position, counted_from, shift FROM aftermind.episodes
                 WHERE namespace = :namespace AND user_id = asked.user_id AND session_id = asked.session_id
                 ORDER BY position DESC LIMIT 1)
                UNION ALL
                (SELECT position, counted_from, shift FROM aftermind.episodes
                 WHERE asked.session_id IS NULL AND namespace = :namespace AND user_id = asked.user_id
                   AND session_id IS NULL ORDER BY position DESC LIMIT 1)
            ) AS newest ON tenant.entered IS NOT NULL
        ), may AS MATERIALIZED (
            SELECT count(*) = cardinality(CAST(:owners AS text[])) AND coalesce(bool_and(tombstone_count = 0), false)
                   AND (SELECT coalesce(bool_and(is_next), true) FROM sessions)
                   AND (CAST(:embedder AS text) IS NULL OR EXISTS (
                       SELECT FROM aftermind.meta WHERE key = 'active_embedder' AND value = :embedder)) AS go
            FROM owners
        ), recorded AS (
            {entering.RECORD.format(where="(SELECT go FROM may)")}
        {following}
        ), added AS (
            INSERT INTO aftermind.episodes (namespace, {episodes.NAMES}, passage_embedding, indexed)
            SELECT :namespace, {_PLACED}, {episodes.PASSAGE_VECTORS}, owners.index_state > 0
            FROM unnest({episodes.ARRAYS}) AS given ({episodes.NAMES})
            JOIN recorded ON recorded.id = given.job_id JOIN owners ON owners.user_id = given.user_id
            JOIN sessions ON sessions.user_id = given.user_id AND sessions.counted_from = given.counted_from
              AND sessions.session_id IS NOT DISTINCT FROM given.session_id
            ON CONFLICT DO NOTHING
        ), took AS MATERIALIZED (
            SELECT CAST(extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000 AS float8) AS ms
            FROM (SELECT count(*) FROM recorded) AS stored, (SELECT count(*) FROM doing) AS followed
        ), told AS MATERIALIZED (
            SELECT user_id, given.id, row_number() OVER whose AS number,
                   CASE WHEN event ? 'duration_ms'
                   THEN event || jsonb_build_object('duration_ms', CAST(event ->> 'duration_ms' AS float8) + took.ms)
                   ELSE event END AS event
            FROM took, unnest(CAST(:told_of AS uuid[]), CAST(:told_users AS text[]), CAST(:told_ids AS text[]),
                              CAST(:told AS jsonb[])) WITH ORDINALITY AS given (job_id, user_id, id, event, place)
            JOIN recorded ON recorded.id = given.job_id
            WINDOW whose AS (PARTITION BY user_id ORDER BY place)
        ), counted AS (
            INSERT INTO aftermind.event_counters AS there (namespace, user_id, last)
            SELECT :namespace, user_id, max(number) FROM told GROUP BY user_id ORDER BY user_id
            ON CONFLICT (namespace, user_id) DO UPDATE SET last = there.last + excluded.last
            RETURNING user_id, last
        ), placed AS MATERIALIZED (
            SELECT user_id, id, event, last - max(number) OVER (PARTITION BY user_id) + number AS seq
            FROM told JOIN counted USING (user_id)
        ), kept AS (
            INSERT INTO aftermind.events (namespace, user_id, seq, id, event)
            SELECT :namespace, user_id, seq, id, event FROM placed
            ON CONFLICT DO NOTHING RETURNING namespace, user_id, seq, event
        ), delivered AS (
            INSERT INTO aftermind.webhook_deliveries (namespace, user_id, seq, webhook_id)
            SELECT kept.namespace, kept.user_id, kept.seq, hooks.id
            FROM kept JOIN aftermind.webhooks AS hooks ON hooks.namespace = kept.namespace
              AND (hooks.events = '{{}}' OR kept.event ->> 'event' = ANY(hooks.events))
        )
        SELECT (SELECT go FROM may) AS go, ARRAY(SELECT id FROM recorded) AS new,
               ARRAY(SELECT id FROM enqueued) AS enqueued, (SELECT ms FROM took) AS took_ms,
               (SELECT array_agg(id ORDER BY id) FROM placed) AS events,
               (SELECT array_agg(seq ORDER BY id) FROM placed) AS cursors
        """
    )


_ALONE, _FOLLOWED = _store(_NOTHING), _store(_FOLLOWING)


class BatchWriter:
    """Stores batches in the database of a `PostgresStore` of the same languages and vault."""

    def __init__(self, database: PostgresDatabase, vault: Vault, *, language_for: LanguageFor = english) -> None:
        self._database, self._vault, self._language_for = database, vault, language_for

    async def store(
        self,
        batch: StoreBatch,
        vectors: Mapping[EpisodeId, Vector],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> Written | None:
        """Commit ledger rows, episodes, follow-up jobs and events of turns of one tenant, or nothing of them.

        None: nothing was written, because a row has to be read and judged first. A user has forgotten something; a
        session was counted from elsewhere before (types.counting); another process adds the same new user or claims
        the job to be debounced at this moment; or `embedder`, which made the vectors, is not the active one. Raises
        `StoreUnavailable`; whether it was committed is unknown then.
        """
        given, following = batch.turns, batch.following
        namespace = given[0].turn.scope.namespace
        columns = self._columns(namespace, given, vectors, await self._ring(namespace))
        columns["embedder"] = embedder.key if embedder is not None and vectors else None
        statement = _ALONE if following is None else _FOLLOWED
        values = statement.values(columns if following is None else {**columns, **_following(following)})
        try:
            async with self._database.statements() as run:
                written = _written(await run.record(statement.sql, *values))
                if not self._database.is_pooled:  # it is committed
                    return written and replace(written, watermark=await self._database.connection_watermark(run))
        except asyncpg.NotNullViolationError:
            return None
        return written and replace(written, watermark=await self._database.watermark())

    async def _ring(self, namespace: str) -> Ring:
        known = self._vault.known(namespace)
        if known is not None:
            return known
        async with self._database.transaction(namespace=namespace, read_only=True) as tx:
            return await self._vault.ring(tx, namespace)

    def _columns(
        self, namespace: str, given: Sequence[Arrived], vectors: Mapping[EpisodeId, Vector], ring: Ring
    ) -> dict[str, Any]:  # Any: a column each
        turns = [each.turn for each in given]
        told = [(each.turn.job_id, event) for each in given for event in each.events]
        kept = [episode for each in given for episode in each.episodes]
        counted = {episode.id: session_order.counted(each.turn) for each in given for episode in each.episodes}
        sessions = {(turn.scope.user_column, turn.scope.session_id, turn.counted_from): None for turn in turns}
        return {
            "namespace": namespace,
            "owners": sorted({turn.scope.user_column for turn in turns}),
            **entering.turn_columns(turns),
            **episodes.columns(kept, vectors, {namespace: ring}, language_for=self._language_for, counted=counted),
            "counted_users": [user for user, _, _ in sessions],
            "counted_sessions": [session for _, session, _ in sessions],
            "counted_bases": [base for _, _, base in sessions],
            "told_of": [job_id for job_id, _ in told],
            "told_users": [event.scope.user_column for _, event in told],
            "told_ids": [event.id for _, event in told],
            "told": [orjson.dumps(event.to_json()).decode() for _, event in told],
        }


def _following(following: Following) -> dict[str, Any]:  # Any: as `_columns`
    jobs = [*following.enqueued, *following.debounced]
    follows = [(job.id, turn) for job in jobs for turn in job.follows]
    return {
        **entering.columns(jobs),
        "debounced": [job.id for job in following.debounced],
        "quiet": following.quiet,
        "at_most": following.at_most,
        "follow_jobs": [job for job, _ in follows],
        "follow_turns": [turn for _, turn in follows],
    }


def _written(row: asyncpg.Record | None) -> Written | None:
    if row is None or not row["go"]:
        return None
    return Written(
        new=frozenset(JobId(id_) for id_ in row["new"]),
        enqueued=frozenset(JobId(id_) for id_ in row["enqueued"]),
        cursors=dict(zip(row["events"] or (), row["cursors"] or (), strict=True)),
        took_ms=row["took_ms"],
        watermark=None,
    )
