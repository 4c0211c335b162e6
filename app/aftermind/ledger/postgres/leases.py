"""Leases of jobs: claim, renew, close behind the fence, release, dead-letter."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Row, text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import JOBS, SERIAL_KINDS
from aftermind.ledger.job_timeline import MAX_WAITS
from aftermind.ledger.postgres.enqueue import PLACE
from aftermind.ledger.postgres.rows import to_job
from aftermind.ledger.protocol import Failure, ModelUsage, Tried
from aftermind.types import Job, JobId, JobKind, JobState, Lease, LeaseToken, Scope
from aftermind.types.job import is_last_chance, together

PROMOTED = 500  # due jobs that get their rank together: 30 ms among a million others

# `jobs_due`. One claim at a time: if many jobs become due, other claims continue with ranked ones.
_PROMOTE = text(
    f"""
    WITH due AS (
        SELECT id, namespace, user_id, run_at FROM aftermind.jobs
        WHERE kind = :kind AND state IN ('queued', 'retrying') AND queue_position IS NULL
          AND run_at <= clock_timestamp()
          AND (SELECT pg_try_advisory_xact_lock(hashtextextended('aftermind promotes ' || :kind, 0)))
        ORDER BY run_at LIMIT {PROMOTED} FOR UPDATE SKIP LOCKED
    ), owners AS MATERIALIZED (
        SELECT namespace, user_id,
               {PLACE.format(kind=":kind", namespace="asked.namespace", user="asked.user_id")} AS first
        FROM (SELECT DISTINCT namespace, user_id FROM due) AS asked
    ), placed AS (
        SELECT id, first + row_number() OVER (PARTITION BY namespace, user_id ORDER BY run_at) - 1 AS queue_position
        FROM due JOIN owners USING (namespace, user_id)
    )
    UPDATE aftermind.jobs AS jobs SET queue_position = placed.queue_position FROM placed WHERE jobs.id = placed.id
    """
)

# Different for each job, and available to the worker before the answer arrives, which may never happen.
_TOKEN = "CAST(md5(CAST(:claim AS text) || CAST(jobs.id AS text)) AS uuid)"
_COLUMNS = ", ".join(f"jobs.{column.name}" for column in JOBS.c)
_NONE_RUNNING = """
    AND NOT EXISTS (
        SELECT 1 FROM aftermind.jobs AS other
        WHERE other.kind = jobs.kind AND other.namespace = jobs.namespace AND other.user_id = jobs.user_id
          AND other.session_id IS NOT DISTINCT FROM jobs.session_id AND other.state = 'running')
"""


def _runnable(kind_rule: str, also: str = "") -> str:
    """Rows that may be claimed, next first: by `jobs_ready`, within a namespace by `jobs_namespace_position`."""
    return f"""
        FROM aftermind.jobs AS jobs
        WHERE kind = :kind AND state IN ('queued', 'retrying') AND queue_position IS NOT NULL {also} {kind_rule}
          AND (replay_plan_id IS NOT NULL) = CAST(:replays AS boolean)
        ORDER BY queue_position, run_at
    """


def _ready_namespace(condition: str) -> str:
    """The first namespace with a job in the fair order; one probe of `jobs_namespace_position`."""
    return f"""
        SELECT namespace FROM aftermind.jobs WHERE kind = :kind AND state IN ('queued', 'retrying')
        AND queue_position IS NOT NULL AND {condition} ORDER BY namespace LIMIT 1
    """


def ready_namespaces(kind: str = ":kind") -> str:
    """All namespaces with a job in the fair order, as `namespaces`; one probe of `jobs_namespace_position` each."""
    first, following = (
        _ready_namespace(condition).replace(":kind", kind) for condition in ("true", "namespace > namespaces.namespace")
    )
    return f"""
        WITH RECURSIVE namespaces AS (
            ({first}) UNION ALL SELECT ({following}) FROM namespaces WHERE namespaces.namespace IS NOT NULL
        )
    """


_AFTER, _UP_TO = "namespace > CAST(:after AS text)", "namespace <= CAST(:after AS text)"
_ALLOWED = "namespace IS NOT NULL AND namespace <> ALL(CAST(:excepted AS text[]))"
# The size of a toasted value is in its pointer.
_PICKED_COLUMNS = (
    "id, queue_position, run_at, lost_leases, namespace, user_id, session_id, weight, octet_length(raw) AS size"
)


def _picked_by_id(kind_rule: str) -> str:
    named = "AND id = ANY(CAST(:ids AS uuid[]))"
    return f"""
    WITH picked AS (
        SELECT {_PICKED_COLUMNS} {_runnable(kind_rule, named)} LIMIT CAST(:limit AS int) FOR UPDATE SKIP LOCKED
    )
    """


def _picked(kind_rule: str) -> str:
    """Half of the claim by namespaces in turn, after the one that was served last; the rest in the fair order.

    The fair order counts users: by it alone a namespace with many users would take many shares. If namespaces are
    excepted, the whole claim is by namespaces in turn: the fair order would have to be read past all their jobs.
    """
    return f"""
    WITH RECURSIVE following AS (
        ({_ready_namespace(_AFTER)})
        UNION ALL
        SELECT ({_ready_namespace("namespace > following.namespace")}) FROM following
        WHERE following.namespace IS NOT NULL
    ), first AS (
        ({_ready_namespace(_UP_TO)})
        UNION ALL
        SELECT ({_ready_namespace(f"namespace > first.namespace AND {_UP_TO}")}) FROM first
        WHERE first.namespace IS NOT NULL
    ), served AS (
        SELECT namespace FROM (
            (SELECT namespace FROM following WHERE {_ALLOWED} LIMIT CAST(:in_turn AS int))
            UNION ALL
            (SELECT namespace FROM first WHERE {_ALLOWED} LIMIT CAST(:in_turn AS int))
        ) AS both_parts LIMIT CAST(:in_turn AS int)
    ), fair AS (
        SELECT one.* FROM served CROSS JOIN LATERAL (
            SELECT {_PICKED_COLUMNS} {_runnable(kind_rule, "AND namespace = served.namespace")}
            LIMIT (SELECT greatest(1, CAST(:in_turn AS int) / count(*)) FROM served) FOR UPDATE SKIP LOCKED
        ) AS one
    ), others AS (
        SELECT {_PICKED_COLUMNS} {_runnable(kind_rule, "AND id NOT IN (SELECT id FROM fair)")}
        LIMIT CASE WHEN cardinality(CAST(:excepted AS text[])) = 0
                   THEN CAST(:limit AS int) - (SELECT count(*) FROM fair) ELSE 0 END FOR UPDATE SKIP LOCKED
    ), picked AS (
        SELECT * FROM fair UNION ALL SELECT * FROM others
    )
    """


def _claim(kind_rule: str, *, ids: bool) -> str:
    """One UPDATE: locks the rows that it takes, skips those that another claim has locked.

    A job that lost a lease may have crashed the worker: it is claimed with others that lost as many, and few of them
    (`types.job.together`); if `together` is 0, none. For a serial kind, one job per session. Jobs of a replay plan are
    left to claims with `replays`: there are never more in `jobs_ready` than plans may have unfinished (`concurrency`),
    so skipping them is cheap. A claim with a weight takes jobs in the order of the weight that their namespace has
    before them (start tags: Goyal et al., 1996), and ends with the one that reaches it.
    """
    return f"""
    {_picked_by_id(kind_rule) if ids else _picked(kind_rule)}, numbered AS (
        SELECT *, first_value(lost_leases) OVER (ORDER BY queue_position, run_at) AS lost,
               row_number() OVER (PARTITION BY lost_leases ORDER BY queue_position, run_at) AS place,
               sum(size) OVER (PARTITION BY lost_leases ORDER BY queue_position, run_at ROWS UNBOUNDED PRECEDING)
                   AS bytes,
               row_number() OVER (
                   PARTITION BY namespace, user_id, session_id ORDER BY queue_position, run_at) AS in_session,
               sum(weight) OVER (PARTITION BY lost_leases, namespace ORDER BY queue_position, run_at
                                 ROWS UNBOUNDED PRECEDING) - weight AS start
        FROM picked
    ), allowed AS (
        SELECT id, sum(weight) OVER (
                   ORDER BY start, namespace <= CAST(:after AS text), namespace, queue_position, run_at
                   ROWS UNBOUNDED PRECEDING) - weight AS weight_before
        FROM numbered
        WHERE lost_leases = lost AND place <= (CAST(:together AS int[]))[least(lost, CAST(:most AS int) - 1) + 1]
          AND (in_session = 1 OR NOT CAST(:serial AS boolean))
          AND (place = 1 OR coalesce(bytes <= CAST(:size_bytes AS bigint), true))
    ), chosen AS (
        SELECT id FROM allowed WHERE coalesce(weight_before < CAST(:weight AS bigint), true)
    ), claimed AS (
        UPDATE aftermind.jobs AS jobs
        SET state = 'running', attempts = attempts + 1, token = {_TOKEN}, worker = :worker,
            lease_until = clock_timestamp() + CAST(:lasts AS interval), updated_at = clock_timestamp()
        FROM chosen WHERE jobs.id = chosen.id
        RETURNING {_COLUMNS}
    ), attempted AS (
        INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at)
        SELECT namespace, id, attempts, :worker, clock_timestamp() FROM claimed
        ON CONFLICT (job_id, number) DO UPDATE
        SET worker = excluded.worker, started_at = excluded.started_at, ended_at = NULL, outcome = NULL,
            error_class = NULL, error = NULL
    )
    SELECT * FROM claimed ORDER BY queue_position, run_at
    """


_NEXT = {
    serial: text(f"SELECT lost_leases {_runnable(_NONE_RUNNING if serial else '')} LIMIT 1") for serial in (False, True)
}
_NEXT_OF_OTHERS = {
    serial: text(
        f"""
        {ready_namespaces()}
        SELECT one.lost_leases FROM namespaces CROSS JOIN LATERAL (
            SELECT lost_leases, queue_position, run_at
            {_runnable(_NONE_RUNNING if serial else "", "AND namespace = namespaces.namespace")} LIMIT 1
        ) AS one
        WHERE {_ALLOWED.replace("namespace", "namespaces.namespace")} ORDER BY one.queue_position, one.run_at LIMIT 1
        """
    )
    for serial in (False, True)
}
_CLAIMS = {
    (serial, ids): text(_claim(_NONE_RUNNING if serial else "", ids=ids)).columns(*JOBS.c)
    for serial in (False, True)
    for ids in (False, True)
}

_HEARTBEAT = text(
    """
    UPDATE aftermind.jobs AS jobs SET lease_until = clock_timestamp() + CAST(:lasts AS interval)
    FROM unnest(CAST(:ids AS uuid[]), CAST(:tokens AS uuid[])) AS held (id, token)
    WHERE jobs.id = held.id AND jobs.token = held.token AND jobs.state = 'running'
    RETURNING jobs.token
    """
)

_HOLD = text(
    """
    SELECT jobs.id FROM aftermind.jobs AS jobs
    JOIN unnest(CAST(:ids AS uuid[]), CAST(:tokens AS uuid[])) AS held (id, token) USING (id, token)
    WHERE jobs.state = 'running' ORDER BY jobs.id FOR SHARE OF jobs
    """
)

# The fence: a row whose token does not fit any more is not touched, and the caller rolls its effect back.
_CLOSING = """
    WITH closed AS (
        UPDATE aftermind.jobs AS jobs
        SET state = :state, attempts = attempts - CASE WHEN CAST(:give_back AS boolean) THEN 1 ELSE 0 END,
            run_at = CASE WHEN CAST(:after AS interval) IS NULL THEN run_at
                     ELSE clock_timestamp() + CAST(:after AS interval) END,
            queue_position = NULL, token = NULL, lease_until = NULL, updated_at = clock_timestamp(),
            answer = CASE WHEN :state = 'done' THEN NULL
                     WHEN :state = 'dead' THEN coalesce(CAST(:answer AS jsonb), answer) ELSE answer END,
            raw = CASE WHEN :state = 'done' THEN NULL ELSE raw END, note = :note,
            reason_code = CASE WHEN :state = 'done' THEN NULL ELSE coalesce(:reason_code, reason_code) END,
            error_class = CASE WHEN :state = 'done' THEN NULL ELSE coalesce(:error_class, error_class) END,
            error = CASE WHEN :state = 'done' THEN NULL ELSE coalesce(:error, error) END,
            fingerprint = CASE WHEN :state = 'done' THEN NULL ELSE coalesce(:fingerprint, fingerprint) END,
            model = coalesce(:model, model)
        FROM unnest(CAST(:ids AS uuid[]), CAST(:tokens AS uuid[]), CAST(:numbers AS int[])) AS held (id, token, number)
        WHERE jobs.id = held.id AND jobs.token = held.token AND jobs.state = 'running'
        RETURNING jobs.id, jobs.namespace, jobs.kind, jobs.updated_at, jobs.run_at, held.number
    ), ended AS (
        UPDATE aftermind.job_attempts AS attempts
        SET ended_at = clock_timestamp(), outcome = :outcome, error_class = :error_class, error = :error,
            model = coalesce(:model, attempts.model), tokens_in = attempts.tokens_in + :tokens_in,
            tokens_out = attempts.tokens_out + :tokens_out, cost_usd = attempts.cost_usd + :cost_usd
        FROM closed WHERE attempts.job_id = closed.id AND attempts.number = closed.number
    )
"""
_CLOSE = text(f"{_CLOSING} SELECT id FROM closed")
# The wait of one job, by `hold_history_job`. One that continues for the same reason, without an attempt between, is one
# row: a provider that is away for a day has a job claimed and given back thousands of times.
_SNOOZE = text(
    f"""
    {_CLOSING}, earlier AS (
        SELECT holds.id, reason, created_at FROM aftermind.hold_history AS holds
        WHERE job_id = (SELECT id FROM closed) AND ended_by IS NULL
    ), extended AS (
        UPDATE aftermind.hold_history AS holds SET ended_at = closed.run_at
        FROM closed, (SELECT * FROM earlier ORDER BY created_at DESC LIMIT 1) AS last
        WHERE holds.id = last.id AND last.reason = :note AND NOT EXISTS (
            SELECT 1 FROM aftermind.job_attempts AS attempts
            WHERE attempts.job_id = closed.id AND attempts.number < closed.number
              AND attempts.ended_at > last.created_at)
        RETURNING holds.id
    ), added AS (
        INSERT INTO aftermind.hold_history (namespace, kind, job_id, reason, created_at, ended_at)
        SELECT namespace, kind, id, :note, updated_at, run_at FROM closed WHERE NOT EXISTS (SELECT 1 FROM extended)
    ), dropped AS (
        DELETE FROM aftermind.hold_history WHERE NOT EXISTS (SELECT 1 FROM extended)
        AND id IN (SELECT id FROM earlier ORDER BY created_at DESC OFFSET {MAX_WAITS - 1})
    )
    SELECT id FROM closed
    """
)

# What a model call cost, for each job that it was made for: on its attempt, and in the owner's account of the day. The
# attempt has the model of its first call: during a re-embedding that is the one that serves. In the order of the
# accounts, so that two workers that pay for the same owners never wait crosswise.
_PAYING = """
    given AS (
        SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:numbers AS int[]), CAST(:models AS text[]),
                             CAST(:calls AS int[]), CAST(:tokens_in AS int[]), CAST(:tokens_out AS int[]),
                             CAST(:costs AS float8[]), CAST(:latencies AS float8[]))
             AS one (id, number, model, calls, tokens_in, tokens_out, cost_usd, latency_ms)
    ), counted AS (
        UPDATE aftermind.job_attempts AS attempts
        SET model = coalesce(attempts.model, given.model), calls = attempts.calls + given.calls,
            tokens_in = attempts.tokens_in + given.tokens_in, tokens_out = attempts.tokens_out + given.tokens_out,
            cost_usd = attempts.cost_usd + given.cost_usd, latency_ms = attempts.latency_ms + given.latency_ms
        FROM given WHERE attempts.job_id = given.id AND attempts.number = given.number
    ), paid AS (
        INSERT INTO aftermind.spending AS there (namespace, user_id, day, kind, model, calls, tokens_in, tokens_out,
                                                 cost_usd, latency_ms)
        SELECT jobs.namespace, jobs.user_id, CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) AS day, jobs.kind,
               coalesce(given.model, 'unknown') AS named, sum(given.calls), sum(given.tokens_in),
               sum(given.tokens_out), sum(given.cost_usd), sum(given.latency_ms)
        FROM given JOIN aftermind.jobs AS jobs ON jobs.id = given.id
        WHERE given.calls > 0 OR given.tokens_in > 0
        GROUP BY jobs.namespace, jobs.user_id, jobs.kind, named
        ORDER BY jobs.namespace, jobs.user_id, jobs.kind, named
        ON CONFLICT (namespace, day, user_id, kind, model) DO UPDATE
        SET calls = there.calls + excluded.calls, tokens_in = there.tokens_in + excluded.tokens_in,
            tokens_out = there.tokens_out + excluded.tokens_out, cost_usd = there.cost_usd + excluded.cost_usd,
            latency_ms = there.latency_ms + excluded.latency_ms
    )
"""
_SPEND = text(f"WITH {_PAYING} SELECT count(*) AS jobs FROM given")
# The cost of an answer is counted even if the lease was lost: it was paid.
_KEEP_ANSWER = text(
    f"""
    WITH kept AS (
        UPDATE aftermind.jobs SET answer = CAST(:answer AS jsonb)
        WHERE id = :id AND token = :token AND state = 'running' RETURNING id
    ), {_PAYING}
    SELECT id FROM kept
    """
)

_BURY_TURN = text(
    """
    INSERT INTO aftermind.jobs AS there (id, namespace, user_id, kind, state, raw, effect_key, attempts, reason_code,
                                         error_class, error, fingerprint)
    VALUES (CAST(:id AS uuid), :namespace, :user, 'store', 'dead', :raw, CAST(CAST(:id AS uuid) AS text), :attempts,
            :reason_code, :error_class, :error, :fingerprint)
    ON CONFLICT (id) DO UPDATE
    SET state = 'dead', raw = excluded.raw, reason_code = excluded.reason_code, error_class = excluded.error_class,
        error = excluded.error, fingerprint = excluded.fingerprint, queue_position = NULL, updated_at = now()
    WHERE there.state IN ('queued', 'retrying', 'dead')
    RETURNING id
    """
)
# A pending turn counts its attempts in Redis, so they become rows with the dead letter: first those of crashed workers.
_TURN_ATTEMPTS = text(
    """
    INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at, ended_at, outcome, error_class,
                                        error)
    SELECT :namespace, CAST(:id AS uuid), number, CASE WHEN number = :attempts THEN CAST(:worker AS text) ELSE '' END,
           CAST(:since AS timestamptz), CASE WHEN number = :attempts THEN clock_timestamp() END,
           CASE WHEN number <= :lost THEN 'lost' WHEN number = :attempts THEN 'dead' ELSE 'failed' END,
           CASE WHEN number = :attempts THEN CAST(:error_class AS text) END,
           CASE WHEN number = :attempts THEN CAST(:error AS text) END
    FROM generate_series(1, CAST(:attempts AS int)) AS number
    ON CONFLICT (job_id, number) DO NOTHING
    """
)

_NOTE_LOST = text(
    """
    WITH lost AS (
        SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:counts AS int[]), CAST(:attempts AS int[]),
                             CAST(:workers AS text[]), CAST(:since AS timestamptz[]))
                      AS lost (id, count, attempts, worker, since)
    ), noted AS (
        UPDATE aftermind.jobs AS jobs SET lost_leases = lost.count, attempts = lost.attempts
        FROM lost WHERE jobs.id = lost.id RETURNING jobs.id, jobs.namespace
    )
    INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at, outcome)
    SELECT noted.namespace, noted.id, number, CASE WHEN number = lost.count THEN lost.worker ELSE '' END, lost.since,
           'lost'
    FROM noted JOIN lost USING (id) CROSS JOIN generate_series(1, lost.count) AS number
    ON CONFLICT (job_id, number) DO NOTHING
    """
)

# `jobs_leases`. A lost lease is not a failure of the job, until there were too many of them.
_EXPIRE = text(
    f"""
    WITH gone AS (
        SELECT id, attempts AS number FROM aftermind.jobs
        WHERE state = 'running' AND lease_until < clock_timestamp() LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), expired AS (
        UPDATE aftermind.jobs AS jobs
        SET lost_leases = lost_leases + 1, queue_position = NULL, token = NULL, lease_until = NULL,
            updated_at = clock_timestamp(), run_at = clock_timestamp(),
            state = CASE WHEN lost_leases + 1 < :most THEN 'queued'
                         WHEN kind = 'shadow' THEN 'discarded' ELSE 'dead' END,
            reason_code = CASE WHEN lost_leases + 1 >= :most THEN 'worker_lost' ELSE reason_code END,
            error_class = CASE WHEN lost_leases + 1 >= :most THEN 'WorkerLost' ELSE error_class END,
            error = CASE WHEN lost_leases + 1 >= :most
                    THEN lost_leases + 1 || ' workers lost their lease on it' ELSE error END,
            fingerprint = CASE WHEN lost_leases + 1 >= :most THEN 'worker_lost' ELSE fingerprint END
        FROM gone WHERE jobs.id = gone.id
        RETURNING {_COLUMNS}, gone.number
    ), ended AS (
        UPDATE aftermind.job_attempts AS attempts SET ended_at = clock_timestamp(), outcome = 'lost'
        FROM expired WHERE attempts.job_id = expired.id AND attempts.number = expired.number
    )
    SELECT * FROM expired
    """
)

# By `jobs_leases`: running jobs are few.
_RETURN_CLAIM = text(
    f"""
    WITH held AS (
        SELECT id, attempts AS number FROM aftermind.jobs AS jobs
        WHERE state = 'running' AND worker = :worker AND token = {_TOKEN} FOR UPDATE
    ), returned AS (
        UPDATE aftermind.jobs AS jobs
        SET state = 'queued', attempts = attempts - 1, run_at = clock_timestamp(), queue_position = NULL, token = NULL,
            lease_until = NULL, updated_at = clock_timestamp(), note = :note
        FROM held WHERE jobs.id = held.id
    )
    UPDATE aftermind.job_attempts AS attempts SET ended_at = clock_timestamp(), outcome = 'snoozed'
    FROM held WHERE attempts.job_id = held.id AND attempts.number = held.number
    """
)

# By primary keys. The attempt identifies the expired lease: an attempt that was closed otherwise is skipped.
_UNCOUNT = text(
    """
    WITH attempt AS (
        UPDATE aftermind.job_attempts AS attempts SET outcome = 'snoozed'
        FROM unnest(CAST(:ids AS uuid[]), CAST(:numbers AS int[]), CAST(:workers AS text[]))
             AS held (id, number, worker)
        WHERE attempts.job_id = held.id AND attempts.number = held.number AND attempts.worker = held.worker
          AND attempts.outcome = 'lost'
        RETURNING attempts.job_id
    )
    UPDATE aftermind.jobs AS jobs
    SET lost_leases = greatest(lost_leases - 1, 0), attempts = greatest(attempts - 1, 0), note = :note,
        queue_position = CASE WHEN state = 'dead' THEN NULL ELSE queue_position END,
        run_at = CASE WHEN state = 'dead' THEN clock_timestamp() ELSE run_at END,
        reason_code = CASE WHEN state = 'dead' THEN NULL ELSE reason_code END,
        error_class = CASE WHEN state = 'dead' THEN NULL ELSE error_class END,
        error = CASE WHEN state = 'dead' THEN NULL ELSE error END,
        fingerprint = CASE WHEN state = 'dead' THEN NULL ELSE fingerprint END,
        state = CASE WHEN state = 'dead' THEN 'queued' ELSE state END, updated_at = clock_timestamp()
    FROM attempt
    WHERE jobs.id = attempt.job_id
      AND (state IN ('queued', 'retrying', 'running') OR state = 'dead' AND reason_code = 'worker_lost')
    RETURNING jobs.id
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a claim asks for; see `Ledger.claim`."""

    kind: JobKind
    worker: str
    lasts: timedelta
    limit: int
    size_bytes: int | None
    weight: int | None
    most_lost: int
    ids: Sequence[JobId] | None
    replays: bool
    alone: bool
    claim_id: UUID
    excepted: Sequence[str] = ()
    after: str = ""  # the namespace that was served last: those that follow it in alphabetical order are next

    @property
    def in_turn(self) -> int:
        """How many jobs are claimed by namespaces in turn; the rest in the fair order."""
        return self.limit if self.excepted else (self.limit + 1) // 2

    def order(self) -> dict[str, Any]:  # Any: parameters of a statement
        """As parameters of the claim."""
        return {"in_turn": self.in_turn, "excepted": list(self.excepted)}

    def served_last(self, leases: Sequence[Lease]) -> str:
        """The namespace to begin after next time, by what this claim took."""
        spaces = {lease.job.scope.namespace for lease in leases}
        in_turn = sorted(spaces, key=lambda space: (space <= self.after, space))[: self.in_turn]
        return in_turn[-1] if in_turn else ""


async def promote(tx: Transaction, kind: JobKind) -> int:
    """Give jobs whose time has come their place in the fair order; how many. One promotes at a time."""
    return await pg(tx).count(_PROMOTE, kind=kind.value)


async def claim(tx: Transaction, wanted: ClaimRequest) -> list[Lease]:
    """See `Ledger.claim`: what has a place, in one statement."""
    serial = wanted.kind.value in SERIAL_KINDS
    most = wanted.most_lost
    rows = await pg(tx).rows(
        _CLAIMS[serial, wanted.ids is not None],
        kind=wanted.kind.value,
        limit=wanted.limit,
        size_bytes=wanted.size_bytes,
        weight=wanted.weight,
        after=wanted.after,
        together=[together(wanted.limit, lost, most=most, alone=wanted.alone) for lost in range(most)],
        most=most,
        worker=wanted.worker,
        claim=str(wanted.claim_id),
        lasts=wanted.lasts,
        serial=serial,
        replays=wanted.replays,
        **(wanted.order() if wanted.ids is None else {"ids": list(wanted.ids)}),
    )
    return [
        Lease(
            job=to_job(row),
            token=LeaseToken(row.token),
            until=row.lease_until,
            worker=wanted.worker,
            weight=row.weight,
        )
        for row in rows
    ]


async def last_chance_is_next(
    tx: Transaction, kind: JobKind, *, most: int, replays: bool, excepted: Sequence[str] = ()
) -> bool:
    """See `Ledger.last_chance_is_next`."""
    is_serial, given = kind.value in SERIAL_KINDS, {"kind": kind.value, "replays": replays}
    if excepted:
        rows = await pg(tx).rows(_NEXT_OF_OTHERS[is_serial], **given, excepted=list(excepted))
    else:
        rows = await pg(tx).rows(_NEXT[is_serial], **given)
    return any(is_last_chance(row.lost_leases, most=most) for row in rows)


async def heartbeat(tx: Transaction, leases: Sequence[Lease], *, for_: timedelta) -> frozenset[LeaseToken]:
    """See `Ledger.heartbeat`."""
    rows = await pg(tx).rows(_HEARTBEAT, **_held(leases, numbers=False), lasts=for_)
    return frozenset(LeaseToken(row.token) for row in rows)


async def hold(tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
    """See `Ledger.hold`."""
    return frozenset(JobId(row.id) for row in await pg(tx).rows(_HOLD, **_held(leases, numbers=False)))


async def close(
    tx: Transaction,
    leases: Sequence[Lease],
    state: str,
    outcome: str,
    *,
    after: timedelta | None = None,
    give_back: bool = False,
    failure: Failure | None = None,
    spent: ModelUsage | None = None,
    note: str | None = None,
    is_wait: bool = False,
) -> frozenset[JobId]:
    """End an attempt: `state` is what the job is then. The ids of those whose token fitted.

    `is_wait`: keep for timelines why the job, which has to be one, waits.
    """
    if not leases:
        return frozenset()
    rows = await pg(tx).rows(
        _SNOOZE if is_wait else _CLOSE,
        **_held(leases),
        state=state,
        outcome=outcome,
        after=after,
        give_back=give_back,
        note=note,
        answer=orjson.dumps(failure.answer).decode() if failure and failure.answer else None,
        **_why(failure),
        **_cost(spent, failure),
    )
    return frozenset(JobId(row.id) for row in rows)


async def close_one(tx: Transaction, lease: Lease, state: str, outcome: str, **more: Any) -> None:  # Any: as `close`
    """Close one lease. Raises `LeaseLost`, so that the caller's transaction rolls back."""
    if not await close(tx, [lease], state, outcome, **more):
        raise errors.LeaseLost(lease.job.id)


async def save_answer(tx: Transaction, lease: Lease, answer: Mapping[str, Any], *, spent: ModelUsage) -> None:
    """See `Ledger.save_answer`."""
    kept = await pg(tx).rows(
        _KEEP_ANSWER,
        id=lease.job.id,
        token=lease.token,
        answer=orjson.dumps(answer).decode(),
        **_paid([(lease, spent)]),
    )
    if not kept:
        raise errors.LeaseLost(lease.job.id)


async def spend(tx: Transaction, costs: Sequence[tuple[Lease, ModelUsage]]) -> None:
    """See `Ledger.spend`."""
    if costs:
        await pg(tx).rows(_SPEND, **_paid(costs))


async def dead_letter_turn(
    tx: Transaction, job_id: JobId, owner: Scope, payload: bytes, failure: Failure, tried: Tried
) -> bool:
    """See `Ledger.dead_letter_turn`."""
    rows = await pg(tx).rows(
        _BURY_TURN,
        id=job_id,
        namespace=owner.namespace,
        user=owner.user_column,
        raw=payload,
        attempts=tried.attempts,
        **_why(failure),
    )
    if rows and tried.attempts:
        named = {"namespace": owner.namespace, "id": job_id, "worker": tried.worker, "since": tried.since}
        named |= {"error_class": failure.error_class, "error": failure.error}
        await pg(tx).execute(_TURN_ATTEMPTS, {**named, "attempts": tried.attempts, "lost": tried.lost_leases})
    return bool(rows)


async def note_lost_leases(tx: Transaction, lost: Mapping[JobId, Tried]) -> None:
    """See `Ledger.note_lost_leases`."""
    given = {"ids": list(lost), "counts": [each.lost_leases for each in lost.values()]}
    given |= {"attempts": [each.attempts for each in lost.values()]}
    given |= {"workers": [each.worker for each in lost.values()], "since": [each.since for each in lost.values()]}
    await pg(tx).execute(_NOTE_LOST, given)


async def expire(tx: Transaction, *, most: int) -> tuple[Counter[JobKind], list[tuple[Job, Failure]]]:
    """See `Ledger.expire_leases`: how many of each kind, and those that are dead letters now."""
    rows = await pg(tx).rows(_EXPIRE, most=most)
    dead = [(to_job(row), _failure(row)) for row in rows if row.state == JobState.DEAD.value]
    return Counter(JobKind(row.kind) for row in rows), dead


def _failure(row: Row[Any]) -> Failure:  # Any: a row of `jobs`
    return Failure(
        reason_code=row.reason_code, error_class=row.error_class, error=row.error, fingerprint=row.fingerprint
    )


async def return_claim(tx: Transaction, claim_id: UUID, *, worker: str, note: str) -> int:
    """See `Ledger.return_claim`."""
    return await pg(tx).count(_RETURN_CLAIM, claim=str(claim_id), worker=worker, note=note)


async def uncount_losses(tx: Transaction, leases: Sequence[Lease], *, note: str) -> frozenset[JobId]:
    """See `Ledger.return_leases`: these leases have run out already."""
    if not leases:
        return frozenset()
    ids, numbers = [lease.job.id for lease in leases], [lease.job.attempts for lease in leases]
    workers = [lease.worker for lease in leases]
    rows = await pg(tx).rows(_UNCOUNT, ids=ids, numbers=numbers, workers=workers, note=note)
    return frozenset(JobId(row.id) for row in rows)


def _held(leases: Sequence[Lease], *, numbers: bool = True) -> dict[str, list[Any]]:  # Any: a column each
    columns: dict[str, list[Any]] = {
        "ids": [lease.job.id for lease in leases],
        "tokens": [lease.token for lease in leases],
    }
    return columns | ({"numbers": [lease.job.attempts for lease in leases]} if numbers else {})


def _why(failure: Failure | None) -> dict[str, str | None]:
    return {
        "reason_code": failure.reason_code if failure else None,
        "error_class": failure.error_class if failure else None,
        "error": failure.error if failure else None,
        "fingerprint": failure.fingerprint if failure else None,
    }


def _paid(costs: Sequence[tuple[Lease, ModelUsage]]) -> dict[str, list[Any]]:  # Any: a column each
    return {
        "ids": [lease.job.id for lease, _ in costs],
        "numbers": [lease.job.attempts for lease, _ in costs],
        "models": [spent.model for _, spent in costs],
        "calls": [spent.calls for _, spent in costs],
        "tokens_in": [spent.tokens_in for _, spent in costs],
        "tokens_out": [spent.tokens_out for _, spent in costs],
        "costs": [spent.cost_usd for _, spent in costs],
        "latencies": [spent.latency_ms for _, spent in costs],
    }


def _cost(spent: ModelUsage | None, failure: Failure | None) -> dict[str, Any]:  # Any: text and numbers
    found = spent or ModelUsage()
    model = found.model or (failure.model if failure else None)
    return {
        "model": model,
        "tokens_in": found.tokens_in,
        "tokens_out": found.tokens_out,
        "cost_usd": found.cost_usd,
    }
