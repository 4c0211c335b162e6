"""Operators' statements on jobs: list, count, latencies, timeline, run now, discard, restore, pause."""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from uuid import UUID

from sqlalchemy import bindparam, func, literal_column, select, text, update

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import JOBS
from aftermind.ledger.job_timeline import MAX_EVENTS, MAX_HOLDS, MAX_TURNS, build_timeline
from aftermind.ledger.postgres.dead_letters import conditions
from aftermind.ledger.postgres.rows import to_job
from aftermind.types import EpisodeId, FactId, Job, JobId, JobKind, JobState
from aftermind.types.job_admin import (
    EndedHold,
    JobActionId,
    JobCount,
    JobPause,
    ModelCost,
    StageLatency,
    TenantSummary,
    Timeline,
    TimelineStep,
)
from aftermind.types.replay import JobFilter

MAX_SAMPLE = 50_000  # jobs of which latencies are computed

# Unfinished jobs by `jobs_effect`, dead letters by `jobs_dead`, discarded ones by `jobs_action`; locks nothing.
_COUNTS = text(
    """
    SELECT kind, state, count(*) AS jobs, count(*) FILTER (WHERE queue_position IS NULL AND run_at > now()) AS scheduled
    FROM aftermind.jobs
    WHERE state IN ('queued', 'running', 'retrying')
      AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace) GROUP BY 1, 2
    UNION ALL
    SELECT kind, state, count(*), 0 FROM aftermind.jobs
    WHERE state = 'dead' AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace) GROUP BY 1, 2
    UNION ALL
    SELECT kind, state, count(*), 0 FROM aftermind.jobs
    WHERE action_id IS NOT NULL AND state = 'discarded'
      AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace) GROUP BY 1, 2
    """
)

# By `jobs_created`. The row of a turn that Redis accepted is inserted when it is stored; `run_at` is its acceptance.
_LATENCIES = text(
    f"""
    SELECT kind, count(*) AS jobs, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY seconds) AS shares
    FROM (
        SELECT kind, extract(epoch FROM updated_at - least(created_at, run_at)) AS seconds
        FROM aftermind.jobs
        WHERE state = 'done' AND created_at > now() - CAST(:over AS interval)
          AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
        ORDER BY created_at DESC LIMIT {MAX_SAMPLE}
    ) AS completed GROUP BY kind
    """
)

# Users by their primary key, jobs by `jobs_effect`, `jobs_dead` and `jobs_created`; locks nothing.
COUNTED_USERS = 10_000  # of a namespace; beyond it, the count is one more
# Namespaces with users are found one by one in the primary key; only those of the page have their users counted.
_TENANTS = text(
    f"""
    WITH RECURSIVE named AS (
        SELECT (SELECT min(namespace) FROM aftermind.users WHERE starts_with(namespace, :prefix)
                AND (CAST(:after AS text) IS NULL OR namespace > :after)) AS namespace, 1 AS place
        UNION ALL
        SELECT (SELECT min(users.namespace) FROM aftermind.users
                WHERE starts_with(users.namespace, :prefix) AND users.namespace > named.namespace), place + 1
        FROM named WHERE named.namespace IS NOT NULL AND place < :limit
    )
    SELECT namespace, sum(users) AS users, sum(unfinished) AS unfinished_jobs, sum(dead) AS dead_letters,
           min(due) AS oldest_due_at, max(created) AS last_job_at, sum(calls) AS calls, sum(tokens) AS tokens,
           sum(cost) AS cost_usd, max(unpriced_models) AS unpriced_models
    FROM (
        SELECT namespace, (SELECT count(*) FROM (
                   SELECT 1 FROM aftermind.users WHERE users.namespace = named.namespace LIMIT {COUNTED_USERS + 1}
               ) AS counted) AS users, 0 AS unfinished, 0 AS dead, CAST(NULL AS timestamptz) AS due,
               CAST(NULL AS timestamptz) AS created, 0 AS calls, 0 AS tokens, 0.0 AS cost,
               CAST(NULL AS text[]) AS unpriced_models
        FROM named WHERE namespace IS NOT NULL
        UNION ALL
        SELECT namespace, 0, count(*), 0,
               min(run_at) FILTER (WHERE state <> 'running' AND run_at <= now()), NULL, 0, 0, 0, NULL
        FROM aftermind.jobs WHERE state IN ('queued', 'running', 'retrying') GROUP BY 1
        UNION ALL
        SELECT namespace, 0, 0, count(*), NULL, NULL, 0, 0, 0, NULL FROM aftermind.jobs WHERE state = 'dead' GROUP BY 1
        UNION ALL
        SELECT namespace, 0, 0, 0, NULL, max(created_at), 0, 0, 0, NULL FROM aftermind.jobs
        WHERE created_at > now() - interval '1 day' GROUP BY 1
        UNION ALL
        SELECT namespace, 0, 0, 0, NULL, NULL, sum(calls), sum(tokens_in + tokens_out), sum(cost_usd),
               array_agg(DISTINCT model) FILTER (WHERE cost_usd = 0 AND tokens_in + tokens_out > 0)
        FROM aftermind.spending WHERE day = CAST(now() AT TIME ZONE 'UTC' AS date) GROUP BY 1
    ) AS parts
    WHERE starts_with(namespace, :prefix) AND (CAST(:after AS text) IS NULL OR namespace > :after)
    GROUP BY 1 ORDER BY 1 LIMIT :limit
    """
)
_COSTS = text(
    """
    SELECT namespace, day, kind, model, sum(calls) AS calls, sum(tokens_in) AS tokens_in,
           sum(tokens_out) AS tokens_out, sum(cost_usd) AS cost_usd
    FROM aftermind.spending
    WHERE day >= :since AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
    GROUP BY 1, 2, 3, 4 ORDER BY 2 DESC, 8 DESC, 1, 3, 4
    """
)
_DUE = text(
    """
    UPDATE aftermind.jobs SET run_at = clock_timestamp(), updated_at = clock_timestamp()
    WHERE id = ANY(CAST(:ids AS uuid[])) AND state IN ('queued', 'retrying') AND queue_position IS NULL
    RETURNING namespace
    """
)
_END_ATTEMPTS = text(
    """
    UPDATE aftermind.job_attempts AS attempts SET ended_at = clock_timestamp(), outcome = 'cancelled'
    FROM unnest(CAST(:ids AS uuid[]), CAST(:numbers AS int[])) AS held (id, number)
    WHERE attempts.job_id = held.id AND attempts.number = held.number AND attempts.ended_at IS NULL
    """
)
# A cancelled job whose work another unfinished job does by now stays discarded: `jobs_effect` allows one.
_RESTORE = text(
    """
    WITH chosen AS (
        SELECT DISTINCT ON (namespace, kind, effect_key, dead_id) id, before AS former_state, place, note, updated_at
        FROM (SELECT id, namespace, kind, effect_key, before, created_at, coalesce(note, '') AS note, updated_at,
                     row_number() OVER (ORDER BY run_at, id) AS place, CASE WHEN before = 'dead' THEN id END AS dead_id
              FROM aftermind.jobs,
                   LATERAL coalesce(former_state, CASE kind WHEN 'shadow' THEN 'queued' ELSE 'dead' END) AS before
              WHERE id = ANY(CAST(:ids AS uuid[])) AND state = 'discarded') AS discarded
        ORDER BY namespace, kind, effect_key, dead_id, created_at DESC
    ), restored AS (
        UPDATE aftermind.jobs AS jobs
        SET state = CASE WHEN chosen.former_state = 'dead' THEN 'dead' ELSE 'queued' END, former_state = NULL,
            action_id = NULL, note = NULL, slot = 0, queue_position = NULL,
            run_at = CASE WHEN jobs.run_at > now() OR chosen.former_state = 'dead' THEN jobs.run_at
                ELSE now() + chosen.place * interval '1 microsecond' END,
            updated_at = CASE WHEN chosen.former_state = 'dead' THEN coalesce((
                SELECT max(ended_at) FROM aftermind.job_attempts WHERE job_id = jobs.id), jobs.updated_at)
                ELSE clock_timestamp() END
        FROM chosen
        WHERE jobs.id = chosen.id AND jobs.state = 'discarded' AND (chosen.former_state = 'dead' OR NOT EXISTS (
            SELECT 1 FROM aftermind.jobs AS other
            WHERE other.namespace = jobs.namespace AND other.kind = jobs.kind AND other.effect_key = jobs.effect_key
              AND other.state IN ('queued', 'running', 'retrying')))
        RETURNING jobs.namespace, jobs.kind, jobs.id, chosen.note, chosen.updated_at
    ), held AS (
        INSERT INTO aftermind.hold_history (namespace, kind, job_id, reason, created_at, ended_by)
        SELECT namespace, kind, id, note, updated_at, CAST(:actor AS text) FROM restored WHERE kind <> 'shadow'
    )
    SELECT namespace FROM restored
    """
)

_PAUSE = text(
    """
    INSERT INTO aftermind.job_pauses (namespace, kind, reason, actor) VALUES (:namespace, :kind, :reason, :actor)
    ON CONFLICT (namespace, kind) DO UPDATE
    SET reason = excluded.reason, actor = excluded.actor, created_at = clock_timestamp()
    """
)
_RESUME = text(
    """
    WITH ended AS (
        DELETE FROM aftermind.job_pauses WHERE namespace = :namespace AND kind = :kind RETURNING *
    )
    INSERT INTO aftermind.hold_history (namespace, kind, reason, created_at, ended_by)
    SELECT namespace, kind, reason || ' (' || actor || ')', created_at, CAST(:actor AS text) FROM ended
    """
)
# Waits and discards by `hold_history_job`, pauses by `hold_history_pauses`; locks nothing.
_ENDED_HOLDS = text(
    f"""
    SELECT namespace, kind, job_id, reason, created_at, ended_at, ended_by FROM aftermind.hold_history
    WHERE job_id = ANY(CAST(:jobs AS uuid[]))
    UNION ALL
    (SELECT namespace, kind, job_id, reason, created_at, ended_at, ended_by FROM aftermind.hold_history
     WHERE job_id IS NULL AND namespace IN ('', :namespace) AND ended_at >= :since ORDER BY ended_at LIMIT {MAX_HOLDS})
    """
)
_PAUSES = text("SELECT namespace, kind, reason, actor, created_at FROM aftermind.job_pauses ORDER BY 1, 2")

# The turn of a store job, of a later job (by the user's store jobs of that time: `jobs_owner`), an episode or a fact.
_TURNS = text(
    f"""
    WITH asked AS (
        SELECT id, namespace, user_id, kind, created_at, updated_at FROM aftermind.jobs
        WHERE id = :id AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
    )
    SELECT id, created_at FROM asked WHERE kind = 'store'
    UNION
    SELECT stores.id, stores.created_at FROM asked
    JOIN aftermind.jobs AS stores ON stores.namespace = asked.namespace AND stores.user_id = asked.user_id
     AND stores.kind = 'store' AND stores.created_at BETWEEN asked.created_at - interval '1 h' AND asked.updated_at
    JOIN aftermind.job_followups AS follows ON follows.followed_job_id = stores.id AND follows.job_id = asked.id
    WHERE asked.kind <> 'store'
    UNION
    SELECT jobs.id, jobs.created_at FROM aftermind.episodes AS episodes
    JOIN aftermind.jobs AS jobs ON jobs.id = episodes.job_id
    WHERE episodes.id = :id AND episodes.namespace = CAST(:namespace AS text)
    UNION
    SELECT jobs.id, jobs.created_at FROM aftermind.fact_sources AS sources
    JOIN aftermind.episodes AS episodes ON episodes.namespace = sources.namespace
     AND episodes.user_id = sources.user_id AND episodes.id = sources.episode_id
    JOIN aftermind.jobs AS jobs ON jobs.id = episodes.job_id
    WHERE sources.fact_id = :id AND sources.namespace = CAST(:namespace AS text)
    ORDER BY created_at, id LIMIT {MAX_TURNS}
    """
)
_TURN_EPISODES = text(
    """
    SELECT id, job_id, remembered_at, stored_at FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND job_id = ANY(CAST(:jobs AS uuid[]))
      AND stored_at >= CAST(:since AS timestamptz) - interval '1 min' ORDER BY position
    """
)
_TURN_JOBS = text(
    """
    WITH RECURSIVE family AS (
        SELECT job_id AS id FROM aftermind.job_followups WHERE followed_job_id = :turn
        UNION SELECT CAST(:turn AS uuid)
    ), replayed AS (
        SELECT id FROM family
        UNION
        SELECT items.new_job_id FROM replayed JOIN aftermind.replay_items AS items ON items.job_id = replayed.id
        WHERE items.new_job_id IS NOT NULL
    )
    SELECT jobs.id, kind, state, created_at, updated_at, run_at, reason_code, note FROM aftermind.jobs AS jobs
    WHERE jobs.id IN (SELECT id FROM replayed) ORDER BY created_at, kind = 'store' DESC, kind
    """
)
_TURN_ATTEMPTS = text(
    """
    SELECT job_id, number, worker, started_at, ended_at, outcome, error, model FROM aftermind.job_attempts
    WHERE job_id = ANY(CAST(:jobs AS uuid[])) ORDER BY started_at, number
    """
)
_TURN_FACTS = text(
    """
    SELECT facts.id, facts.recorded_at FROM aftermind.facts AS facts
    WHERE namespace = :namespace AND user_id = :user AND id IN (
        SELECT fact_id FROM aftermind.fact_sources
        WHERE namespace = :namespace AND user_id = :user AND episode_id = ANY(CAST(:episodes AS uuid[])))
    ORDER BY recorded_at
    """
)
_TURN_EVENTS = text(
    f"""
    SELECT event ->> 'event' AS name, event ->> 'job_id' AS job, created_at FROM aftermind.events
    WHERE namespace = :namespace AND user_id = :user AND event ->> 'job_id' = ANY(CAST(:jobs AS text[]))
    ORDER BY seq LIMIT {MAX_EVENTS}
    """
)


async def list_jobs(tx: Transaction, wanted: JobFilter, *, limit: int) -> list[Job]:
    """Those that fit, the latest change first. Locks nothing."""
    states = [state.value for state in wanted.states or tuple(JobState)]
    statement = select(JOBS).where(conditions(wanted, states)).order_by(JOBS.c.updated_at.desc(), JOBS.c.id)
    return [to_job(row) for row in (await pg(tx).execute(statement.limit(limit))).all()]


async def count_jobs(tx: Transaction, namespace: str | None) -> list[JobCount]:
    """Unfinished, dead and discarded jobs by kind and state."""
    return [
        JobCount(kind=JobKind(row.kind), state=JobState(row.state), count=row.jobs, scheduled=row.scheduled)
        for row in await pg(tx).rows(_COUNTS, namespace=namespace)
    ]


async def latencies(tx: Transaction, namespace: str | None, *, over: timedelta) -> list[StageLatency]:
    """Of jobs that were created and completed within the time, the latest `MAX_SAMPLE`."""
    return [
        StageLatency(kind=JobKind(row.kind), count=row.jobs, p50=row.shares[0], p95=row.shares[1], p99=row.shares[2])
        for row in await pg(tx).rows(_LATENCIES, namespace=namespace, over=over)
    ]


async def tenants(tx: Transaction, *, prefix: str, after: str | None, limit: int) -> list[TenantSummary]:
    """Namespaces with users, jobs or costs, by name; of all tenants, as the relay."""
    return [
        TenantSummary(
            namespace=row.namespace,
            users=int(row.users),
            unfinished_jobs=int(row.unfinished_jobs),
            dead_letters=int(row.dead_letters),
            oldest_due_at=row.oldest_due_at,
            last_job_at=row.last_job_at,
            calls=int(row.calls),
            tokens=int(row.tokens),
            cost_usd=float(row.cost_usd),
            unpriced_models=tuple(row.unpriced_models or ()),
        )
        for row in await pg(tx).rows(_TENANTS, prefix=prefix, after=after, limit=limit)
    ]


async def costs(tx: Transaction, namespace: str | None, *, since: date) -> list[ModelCost]:
    """What models have cost, by day, namespace, kind and model, the newest day first."""
    return [
        ModelCost(
            namespace=row.namespace,
            day=row.day,
            kind=JobKind(row.kind),
            model=row.model,
            calls=int(row.calls),
            tokens_in=int(row.tokens_in),
            tokens_out=int(row.tokens_out),
            cost_usd=float(row.cost_usd),
        )
        for row in await pg(tx).rows(_COSTS, namespace=namespace, since=since)
    ]


async def run_now(tx: Transaction, wanted: JobFilter) -> Counter[str]:
    """Make scheduled jobs and retries due; how many, by namespace. Locks the rows."""
    states = (JobState.QUEUED.value, JobState.RETRYING.value)
    found = select(JOBS.c.id).where(conditions(wanted, states), JOBS.c.run_at > func.clock_timestamp())
    ids = [row.id for row in (await pg(tx).execute(found)).all()]
    return Counter(row.namespace for row in await pg(tx).rows(_DUE, ids=ids))


async def discard(
    tx: Transaction, wanted: JobFilter, states: Sequence[JobState], *, action: JobActionId, note: str
) -> Counter[str]:
    """Close jobs in these states; how many, by namespace. The fence refuses the effect of one that runs.

    Accepted turns that are not stored yet are left out: to delete content, forget it. Locks the rows; a replay or a
    completion that has locked one first is passed over.
    """
    chosen = [state.value for state in states if not wanted.states or state in wanted.states]
    statement = (
        update(JOBS)
        .where(conditions(wanted, chosen))
        .where((JOBS.c.kind != JobKind.STORE.value) | (JOBS.c.state == JobState.DEAD.value))
        .values(
            state=JobState.DISCARDED.value,
            former_state=JOBS.c.state,
            action_id=action,
            note=bindparam("said"),
            token=None,
            lease_until=None,
            queue_position=None,
            updated_at=literal_column("clock_timestamp()"),
        )
        .returning(JOBS.c.id, JOBS.c.namespace, JOBS.c.attempts, JOBS.c.former_state)
    )
    rows = (await pg(tx).execute(statement, {"said": note})).all()
    ran = [row for row in rows if row.former_state == JobState.RUNNING.value]
    if ran:
        given = {"ids": [row.id for row in ran], "numbers": [row.attempts for row in ran]}
        await pg(tx).execute(_END_ATTEMPTS, given)
    return Counter(row.namespace for row in rows)


async def restore(tx: Transaction, wanted: JobFilter, *, actor: str) -> Counter[str]:
    """Make discarded jobs what they were, due when they were, failed when they did; how many, by namespace.

    A running one is queued again. Those that were due before are due now, in their order: they have not waited since.
    """
    found = select(JOBS.c.id).where(conditions(wanted, (JobState.DISCARDED.value,)))
    ids = [row.id for row in (await pg(tx).execute(found)).all()]
    return Counter(row.namespace for row in await pg(tx).rows(_RESTORE, ids=ids, actor=actor))


async def pause(tx: Transaction, kind: JobKind | None, namespace: str | None, *, reason: str, actor: str) -> None:
    """Let workers claim no jobs of the kind in the namespace; they notice within a second. It ends a former pause."""
    await resume(tx, kind, namespace, actor=actor)
    given = {"namespace": namespace or "", "kind": kind or "", "reason": reason, "actor": actor}
    await pg(tx).execute(_PAUSE, given)


async def resume(tx: Transaction, kind: JobKind | None, namespace: str | None, *, actor: str) -> bool:
    """End a pause, and keep it for timelines; False if there was none."""
    return bool(await pg(tx).count(_RESUME, namespace=namespace or "", kind=kind or "", actor=actor))


async def pauses(tx: Transaction) -> list[JobPause]:
    """All pauses that the role can see."""
    return [
        JobPause(
            kind=JobKind(row.kind) if row.kind else None,
            namespace=row.namespace or None,
            reason=row.reason,
            actor=row.actor,
            created_at=row.created_at,
        )
        for row in await pg(tx).rows(_PAUSES)
    ]


async def ended_holds(tx: Transaction, namespace: str, jobs: Sequence[JobId], *, since: datetime) -> list[EndedHold]:
    """Waits of these jobs, their discards that were restored, and pauses of the namespace that ended since then."""
    return [
        EndedHold(
            kind=JobKind(row.kind) if row.kind else None,
            namespace=row.namespace or None,
            job_id=None if row.job_id is None else JobId(row.job_id),
            reason=row.reason,
            created_at=row.created_at,
            ended_at=row.ended_at,
            ended_by=row.ended_by,
        )
        for row in await pg(tx).rows(_ENDED_HOLDS, namespace=namespace, jobs=list(jobs), since=since)
    ]


async def turns_of(tx: Transaction, namespace: str | None, any_id: UUID) -> list[JobId]:
    """Store jobs of the turns that an id belongs to: of a job, an episode or a fact."""
    return [JobId(row.id) for row in await pg(tx).rows(_TURNS, namespace=namespace, id=any_id)]


async def timeline(tx: Transaction, turns: Sequence[JobId]) -> Timeline | None:
    """The processing of the first of these turns. None if its store job does not exist."""
    run = pg(tx)
    store = (await run.execute(select(JOBS).where(JOBS.c.id == turns[0]))).first()
    if store is None:
        return None
    owned = {"namespace": store.namespace, "user": store.user_id}
    episodes = await run.rows(_TURN_EPISODES, **owned, jobs=list(turns), since=store.created_at)
    jobs = await run.rows(_TURN_JOBS, turn=turns[0])
    attempts = await run.rows(_TURN_ATTEMPTS, jobs=[job.id for job in jobs])
    mine = [each for each in episodes if each.job_id == turns[0]]
    facts = await run.rows(_TURN_FACTS, **owned, episodes=[each.id for each in mine])
    events = await run.rows(_TURN_EVENTS, **owned, jobs=[str(job.id) for job in jobs])
    return build_timeline(
        to_job(store),
        turns,
        accepted_at=min([each.remembered_at for each in mine] + [store.created_at]),
        episode_ids=[EpisodeId(each.id) for each in episodes],
        jobs=jobs,
        attempts=attempts,
        facts=[(FactId(each.id), each.recorded_at) for each in facts],
        events=[TimelineStep(name=each.name, at=each.created_at, job_id=JobId(UUID(each.job))) for each in events],
    )
