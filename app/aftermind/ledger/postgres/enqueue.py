"""How jobs get into the ledger: enqueued, debounced, accepted, or recorded as done."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.ledger.protocol import Unstored
from aftermind.types import JobId, NewJob, Scope, Turn, session_order
from aftermind.types.session_order import Counted, session_columns

ENQUEUE_ATTEMPTS = 3  # at an effect whose job is claimed while we push it
UNFINISHED = "state IN ('queued', 'running', 'retrying')"

# The fair order (start-time fair queueing, Goyal et al., 1996): a job's rank is one after the owner's last rank, and
# not before the rank that is being served. So each owner with work is served once a round, whatever its number of jobs.
# `jobs_owner_position` and `jobs_ready` each return the end of the index: no scan, whatever the length of the queue.
PLACE = """
    greatest(
        coalesce((SELECT queue_position FROM aftermind.jobs WHERE kind = {kind} AND state IN ('queued', 'retrying')
                  AND queue_position IS NOT NULL ORDER BY queue_position, run_at LIMIT 1), 0),
        coalesce((SELECT queue_position FROM aftermind.jobs
                  WHERE kind = {kind} AND namespace = {namespace} AND user_id = {user}
                  AND state IN ('queued', 'retrying') AND queue_position IS NOT NULL
                  ORDER BY queue_position DESC LIMIT 1) + 1, 0))
"""

# New jobs as a relation: see `columns`.
ROWS = """
    unnest(CAST(:job_ids AS uuid[]), CAST(:job_namespaces AS text[]), CAST(:job_users AS text[]),
           CAST(:job_sessions AS text[]), CAST(:job_agents AS text[]), CAST(:job_kinds AS text[]),
           CAST(:job_payloads AS text[]), CAST(:job_keys AS text[]), CAST(:job_delays AS interval[]),
           CAST(:job_origins AS uuid[]), CAST(:job_plans AS text[]), CAST(:job_weights AS int[]))
    WITH ORDINALITY AS given (id, namespace, user_id, session_id, agent_id, kind, payload, effect_key, delay,
                              origin_job_id, replay_plan_id, weight, place)
"""

# Locks only its rows; `jobs_effect` decides which are new. Each owner's rank is read once, before the first insert: a
# read during the insert would skip the rows written so far.
ENQUEUE = f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM {{rows}}
    ), owners AS MATERIALIZED (
        SELECT namespace, user_id, kind,
               {PLACE.format(kind="asked.kind", namespace="asked.namespace", user="asked.user_id")} AS first
        FROM (SELECT DISTINCT namespace, user_id, kind FROM given) AS asked
    )
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, agent_id, kind, state, payload, effect_key,
                                queue_position, run_at, origin_job_id, replay_plan_id, weight)
    SELECT id, namespace, user_id, session_id, agent_id, kind, 'queued', CAST(payload AS jsonb), effect_key,
           CASE WHEN delay IS NULL OR delay <= interval '0' THEN
               first + row_number() OVER (PARTITION BY namespace, user_id, kind ORDER BY place) - 1 END,
           now() + coalesce(delay, interval '0'), origin_job_id, replay_plan_id, weight
    FROM given JOIN owners USING (namespace, user_id, kind) ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING id, kind, effect_key
"""
_ENQUEUE = text(ENQUEUE.format(rows=ROWS))

# The slot of the waiting job, else the one next to the running job, else the first. By `jobs_effect`.
_SLOT = """
    coalesce((SELECT slot FROM aftermind.jobs AS known WHERE known.namespace = given.namespace
              AND known.kind = given.kind AND known.effect_key = given.effect_key
              AND known.state IN ('queued', 'retrying') ORDER BY state, slot LIMIT 1),
             (SELECT 1 - slot FROM aftermind.jobs AS known WHERE known.namespace = given.namespace
              AND known.kind = given.kind AND known.effect_key = given.effect_key
              AND known.state = 'running' LIMIT 1), 0)
"""

# Waits for a lock on the job that it delays; in the order of effect keys, so that two stores cannot deadlock. `running`
# is the new `run_at` of a job that a claim has taken in between, for which this is too late.
DEBOUNCE = f"""
    INSERT INTO aftermind.jobs AS there (id, namespace, user_id, session_id, agent_id, kind, state, payload,
                                         effect_key, slot, run_at, due_by)
    SELECT id, namespace, user_id, session_id, agent_id, kind, 'queued', CAST(payload AS jsonb), effect_key, {_SLOT},
           clock_timestamp() + least(CAST(:quiet AS interval), CAST(:at_most AS interval)),
           clock_timestamp() + CAST(:at_most AS interval)
    FROM {{rows}} ORDER BY given.effect_key
    ON CONFLICT (namespace, kind, effect_key, slot) WHERE {UNFINISHED} DO UPDATE SET
        payload = there.payload || excluded.payload,
        run_at = CASE WHEN there.state = 'queued' AND there.queue_position IS NULL
                 THEN least(clock_timestamp() + CAST(:quiet AS interval), coalesce(there.due_by, there.run_at))
                 WHEN there.state = 'running' THEN {{running}} ELSE there.run_at END
    RETURNING id, namespace, kind, effect_key, state
"""
_DEBOUNCE = text(DEBOUNCE.format(rows=ROWS, running="there.run_at"))

_FOLLOWS = text(
    """
    INSERT INTO aftermind.job_followups (namespace, followed_job_id, kind, job_id)
    SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:follows AS uuid[]), CAST(:kinds AS text[]),
                         CAST(:jobs AS uuid[]))
    ON CONFLICT DO NOTHING
    """
)

# The id of a turn with an idempotency key repeats if the key is used again: if the first turn was forgotten, the second
# is a separate turn. Its job was due when it was accepted, which is before the row was created.
RECORD = """
    INSERT INTO aftermind.jobs AS there (id, namespace, user_id, session_id, agent_id, kind, state, effect_key, payload,
                                         run_at)
    SELECT id, namespace, user_id, session_id, agent_id, 'store', 'done', CAST(id AS text),
           jsonb_strip_nulls(jsonb_build_object('hash', hash)), remembered_at
    FROM unnest(CAST(:turn_ids AS uuid[]), CAST(:turn_namespaces AS text[]), CAST(:turn_users AS text[]),
                CAST(:turn_sessions AS text[]), CAST(:turn_agents AS text[]), CAST(:turn_hashes AS text[]),
                CAST(:turn_times AS timestamptz[]))
         AS given (id, namespace, user_id, session_id, agent_id, hash, remembered_at)
    WHERE {where} ORDER BY given.id
    ON CONFLICT (id) DO UPDATE SET state = 'done', session_id = excluded.session_id, agent_id = excluded.agent_id,
        payload = excluded.payload, run_at = excluded.run_at, reason_code = NULL, created_at = now(), updated_at = now()
    WHERE there.state = 'forgotten' AND there.kind = 'store'
    RETURNING id
"""
_RECORD = text(RECORD.format(where="true"))

# An agent cannot see other tenants' jobs, so it cannot compute the rank: the claim that promotes the job does.
_ACCEPT = text(
    """
    INSERT INTO aftermind.jobs AS there (id, namespace, user_id, session_id, agent_id, kind, state, raw, position,
                                         counted_from, effect_key, payload)
    VALUES (CAST(:id AS uuid), :namespace, :user, :session, :agent, 'store', 'queued', :raw, :position, :counted_from,
            CAST(CAST(:id AS uuid) AS text), jsonb_strip_nulls(jsonb_build_object('hash', CAST(:hash AS text))))
    ON CONFLICT (id) DO UPDATE SET state = 'queued', session_id = excluded.session_id, agent_id = excluded.agent_id,
        payload = excluded.payload, raw = excluded.raw, position = excluded.position,
        counted_from = excluded.counted_from, queue_position = NULL, attempts = 0, lost_leases = 0, run_at = now(),
        reason_code = NULL, created_at = now(), updated_at = now()
    WHERE there.state = 'forgotten' AND there.kind = 'store'
    RETURNING id
    """
)

_RECORD_FORGOTTEN = text(
    """
    INSERT INTO aftermind.jobs AS there (id, namespace, user_id, kind, state, effect_key)
    SELECT given.id, :namespace, :user, 'store', 'forgotten', CAST(given.id AS text)
    FROM (SELECT DISTINCT unnest(CAST(:ids AS uuid[]))) AS given (id) ORDER BY given.id
    ON CONFLICT (id) DO UPDATE SET state = 'forgotten', session_id = NULL, agent_id = NULL, payload = '{}', raw = NULL,
        updated_at = clock_timestamp()
    WHERE there.kind = 'store' AND there.namespace = :namespace AND there.user_id = :user AND there.state = 'done'
      AND CAST(:closed AS boolean)
    """
)
_HASH = text(
    """
    SELECT payload ->> 'hash' AS hash FROM aftermind.jobs
    WHERE id = :id AND namespace = :namespace AND user_id = :user AND kind = 'store' AND state <> 'forgotten'
    """
)

# `jobs_unstored` serves it.
_UNSTORED = text(
    f"""
    SELECT raw FROM aftermind.jobs
    WHERE namespace = :namespace AND user_id = :user AND raw IS NOT NULL AND kind = 'store' AND {UNFINISHED}
    ORDER BY created_at
    """
)

# By `jobs_unstored_position`: the end of the index for each session.
_ACCEPTED_ORDER = text(
    f"""
    SELECT given.user_id, given.session_id, last.position, last.counted_from
    FROM unnest(CAST(:users AS text[]), CAST(:sessions AS text[])) AS given (user_id, session_id)
    CROSS JOIN LATERAL (
        SELECT position, counted_from FROM aftermind.jobs
        WHERE namespace = :namespace AND user_id = given.user_id AND coalesce(session_id, '') = given.session_id
          AND raw IS NOT NULL AND kind = 'store' AND {UNFINISHED} AND position IS NOT NULL
        ORDER BY position DESC LIMIT 1
    ) AS last
    """
)

# By `jobs_unstored`, from the namespace or from the user. The size of a toasted value is in its pointer.
_MEASURE_UNSTORED = f"""
    SELECT count(*) AS turns, coalesce(sum(octet_length(raw)), 0) AS size_bytes,
           coalesce(clock_timestamp() - min(created_at), interval '0') AS oldest
    FROM (
        SELECT raw, created_at FROM aftermind.jobs
        WHERE namespace = :namespace {{and_user}} AND raw IS NOT NULL AND kind = 'store' AND {UNFINISHED}
        LIMIT :limit
    ) AS found
"""
_MEASURE_UNSTORED_OF_NAMESPACE = text(_MEASURE_UNSTORED.format(and_user=""))
_MEASURE_UNSTORED_OF_USER = text(_MEASURE_UNSTORED.format(and_user="AND user_id = :user"))

# One that a store job has locked ends at this moment: it meets the tombstone, and keeps no payload.
_KEPT = text(
    """
    SELECT id, raw FROM aftermind.jobs
    WHERE namespace = :namespace AND user_id = :user AND kind = 'store' AND raw IS NOT NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
    """
)
_REWRITE = text(
    """
    UPDATE aftermind.jobs
    SET raw = CAST(:raw AS bytea), edited = NULL,
        token = CASE WHEN CAST(:raw AS bytea) IS NULL THEN NULL ELSE token END,
        state = CASE WHEN CAST(:raw AS bytea) IS NULL THEN 'forgotten' ELSE state END,
        queue_position = CASE WHEN CAST(:raw AS bytea) IS NULL THEN NULL ELSE queue_position END,
        updated_at = clock_timestamp()
    WHERE id = :id
    """
)


async def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[JobId]:
    """See `Ledger.enqueue`."""
    if not jobs:
        return []
    new = [JobId(row.id) for row in await pg(tx).rows(_ENQUEUE, **columns(jobs))]
    known = set(new)
    await _follow(tx, [(job, job.id) for job in jobs if job.id in known])
    return new


async def debounce(tx: Transaction, jobs: Sequence[NewJob], *, quiet: timedelta, at_most: timedelta) -> list[JobId]:
    """See `Ledger.debounce`. A job that is claimed at this moment has started: the next check finds it running."""
    doing: dict[tuple[str, str, str], JobId] = {}
    left = list(jobs)
    for _ in range(ENQUEUE_ATTEMPTS):
        if not left:
            break
        rows = await pg(tx).rows(_DEBOUNCE, **columns(left), quiet=quiet, at_most=at_most)
        doing |= {(row.namespace, row.kind, row.effect_key): JobId(row.id) for row in rows if row.state != "running"}
        left = [job for job in left if _key(job) not in doing]
    await _follow(tx, [(job, doing[_key(job)]) for job in jobs if _key(job) in doing])
    if left:
        raise errors.StoreUnavailable("debounce", "its jobs were taken again and again while they were pushed")
    return [doing[_key(job)] for job in jobs]


async def record_stored(tx: Transaction, turns: Sequence[Turn]) -> frozenset[JobId]:
    """See `Ledger.record_stored`. Two stores of one turn wait for each other here, and the second finds it done."""
    if not turns:
        return frozenset()
    rows = await pg(tx).rows(_RECORD, **turn_columns(turns))
    return frozenset(JobId(row.id) for row in rows)


async def accept(tx: Transaction, turn: Turn, payload: bytes) -> bool:
    """See `Ledger.accept`."""
    scope = turn.scope
    found = await pg(tx).rows(
        _ACCEPT,
        id=turn.job_id,
        namespace=scope.namespace,
        user=scope.user_column,
        session=scope.session_id,
        agent=scope.agent_id,
        raw=payload,
        position=session_order.counted(turn).position,
        counted_from=turn.counted_from,
        hash=turn.content_hash,
    )
    return bool(found)


async def accepted_order(tx: Transaction, scopes: Sequence[Scope]) -> dict[tuple[str, str], Counted]:
    """See `Ledger.accepted_order`."""
    users, sessions = (list(column) for column in zip(*{session_columns(scope) for scope in scopes}, strict=True))
    rows = await pg(tx).rows(_ACCEPTED_ORDER, namespace=scopes[0].namespace, users=users, sessions=sessions)
    return {
        (row.user_id, row.session_id): Counted(position=row.position, counted_from=row.counted_from) for row in rows
    }


async def record_forgotten(tx: Transaction, owner: Scope, ids: Sequence[JobId], *, closed: bool = False) -> None:
    """See `Ledger.record_forgotten`. By the primary key."""
    if ids:
        given = {"namespace": owner.namespace, "user": owner.user_column, "ids": sorted(ids), "closed": closed}
        await pg(tx).execute(_RECORD_FORGOTTEN, given)


async def content_hash(tx: Transaction, owner: Scope, job_id: JobId) -> str | None:
    """See `Ledger.content_hash`. By the primary key."""
    row = await pg(tx).row(_HASH, id=job_id, namespace=owner.namespace, user=owner.user_column)
    return None if row is None else row.hash


async def unstored(tx: Transaction, owner: Scope) -> list[bytes]:
    """See `Ledger.unstored`."""
    rows = await pg(tx).rows(_UNSTORED, namespace=owner.namespace, user=owner.user_column)
    return [bytes(row.raw) for row in rows]


async def measure_unstored(tx: Transaction, namespace: str, user: str | None, *, limit: int) -> Unstored:
    """See `Ledger.measure_unstored`. By `jobs_unstored`."""
    if user is None:
        row = await pg(tx).row(_MEASURE_UNSTORED_OF_NAMESPACE, namespace=namespace, limit=limit)
    else:
        row = await pg(tx).row(_MEASURE_UNSTORED_OF_USER, namespace=namespace, user=user, limit=limit)
    if row is None:
        return Unstored()
    return Unstored(turns=row.turns, size_bytes=int(row.size_bytes), oldest=row.oldest)


async def list_turn_payloads(tx: Transaction, owner: Scope) -> list[tuple[JobId, bytes]]:
    """See `Ledger.list_turn_payloads`. By `jobs_owner`."""
    rows = await pg(tx).rows(_KEPT, namespace=owner.namespace, user=owner.user_column)
    return [(JobId(row.id), bytes(row.raw)) for row in rows]


async def rewrite_turn(tx: Transaction, job_id: JobId, payload: bytes | None) -> None:
    """See `Ledger.rewrite_turn`. A running store job loses its lease, and writes nothing."""
    await pg(tx).execute(_REWRITE, {"id": job_id, "raw": payload})


async def _follow(tx: Transaction, pairs: Sequence[tuple[NewJob, JobId]]) -> None:
    follows = [(job.scope.namespace, followed, job.kind.value, by) for job, by in pairs for followed in job.follows]
    if follows:
        namespaces, stores, kinds, jobs = (list(column) for column in zip(*follows, strict=True))
        await pg(tx).execute(_FOLLOWS, {"namespaces": namespaces, "follows": stores, "kinds": kinds, "jobs": jobs})


def _key(job: NewJob) -> tuple[str, str, str]:
    return job.scope.namespace, job.kind.value, job.effect_key


def turn_columns(turns: Sequence[Turn]) -> dict[str, list[Any]]:  # Any: one column each of another type
    """Turns as columns."""
    return {
        "turn_ids": [turn.job_id for turn in turns],
        "turn_hashes": [turn.content_hash for turn in turns],
        "turn_times": [turn.remembered_at for turn in turns],
        **_scopes("turn", [turn.scope for turn in turns]),
    }


def columns(jobs: Sequence[NewJob]) -> dict[str, list[Any]]:  # Any: one column each of another type
    """Jobs as columns."""
    ids: list[UUID] = [job.id for job in jobs]
    return {
        "job_ids": ids,
        **_scopes("job", [job.scope for job in jobs]),
        "job_kinds": [job.kind.value for job in jobs],
        "job_payloads": [orjson.dumps(job.payload).decode() for job in jobs],
        "job_keys": [job.effect_key for job in jobs],
        "job_delays": [job.delay for job in jobs],
        "job_origins": [job.origin_job_id for job in jobs],
        "job_plans": [job.replay_plan_id for job in jobs],
        "job_weights": [job.weight for job in jobs],
    }


def _scopes(of: str, scopes: Sequence[Scope]) -> dict[str, list[str | None]]:
    return {
        f"{of}_namespaces": [scope.namespace for scope in scopes],
        f"{of}_users": [scope.user_column for scope in scopes],
        f"{of}_sessions": [scope.session_id for scope in scopes],
        f"{of}_agents": [scope.agent_id for scope in scopes],
    }
