"""What a replay plan would do, before it does anything: estimates, and jobs that run without writing."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.ledger.reembed_jobs import TARGET
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.job import MODEL_KINDS
from aftermind.types.replay import DryRunResult, Estimate, PlanId, ReplayPlan

# What an item of a kind costs: the mean of the ledger's own attempts of the last days that cost something. A step of a
# re-embedding has none: it embeds a batch of messages, the job of a turn one.
_ESTIMATE = text(
    """
    WITH items AS (
        SELECT j.id, j.kind, j.namespace, j.user_id, j.session_id, j.effect_key, j.state, j.updated_at,
               j.payload ->> :step IS NOT NULL AS is_step,
               j.state = 'discarded' AND j.action_id IS DISTINCT FROM i.action_id AS is_discarded_since
        FROM aftermind.replay_items i LEFT JOIN aftermind.jobs j ON j.id = i.job_id
        WHERE i.plan_id = :plan AND i.state = 'waiting'
    ), spent AS (
        SELECT j.kind, avg(a.tokens_in + a.tokens_out) AS tokens, avg(a.cost_usd) AS cost
        FROM aftermind.job_attempts a JOIN aftermind.jobs j ON j.id = a.job_id
        WHERE a.tokens_in > 0 AND a.started_at > now() - interval '7 days'
          AND j.kind IN (SELECT DISTINCT kind FROM items) AND j.payload ->> :step IS NULL
        GROUP BY 1
    )
    SELECT items.kind, count(*) AS jobs, (SELECT count(DISTINCT namespace) FROM items) AS namespaces,
           min(items.updated_at) AS oldest, max(items.updated_at) AS newest,
           coalesce(max(spent.tokens), 0)::float8 AS tokens, coalesce(max(spent.cost), 0)::float8 AS cost,
           count(*) FILTER (WHERE items.is_step OR spent.kind IS NULL) AS unestimated,
           count(*) FILTER (WHERE EXISTS (
               SELECT FROM aftermind.jobs live
               WHERE live.namespace = items.namespace AND live.kind = items.kind
                 AND live.effect_key = items.effect_key AND live.state IN ('queued', 'running', 'retrying')
           )) AS conflicts,
           count(*) FILTER (WHERE items.kind = 'extract' AND EXISTS (
               SELECT FROM aftermind.facts f
               WHERE f.namespace = items.namespace AND f.user_id = items.user_id
                 AND f.session_id IS NOT DISTINCT FROM items.session_id AND f.recorded_at > items.updated_at
           )) AS newer,
           count(*) FILTER (WHERE items.id IS NULL OR items.state NOT IN ('dead', 'discarded', 'done')
               OR items.is_discarded_since) AS refused
    FROM items LEFT JOIN spent ON spent.kind = items.kind
    GROUP BY items.kind
    """
)

_SHADOW = text(
    """
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, agent_id, kind, state, payload, effect_key,
                                origin_job_id, replay_plan_id)
    SELECT gen_random_uuid(), j.namespace, j.user_id, j.session_id, j.agent_id, 'shadow', 'queued',
           jsonb_build_object('of', j.id, 'kind', j.kind) || p.overrides, 'shadow:' || p.id || ':' || j.id, j.id, p.id
    FROM aftermind.replay_plans p
    JOIN aftermind.replay_items i ON i.plan_id = p.id AND i.state = 'waiting'
    JOIN aftermind.jobs j ON j.id = i.job_id AND j.kind = 'extract'
      AND (j.state <> 'discarded' OR j.action_id IS NOT DISTINCT FROM i.action_id)
    WHERE p.id = :plan
    ORDER BY md5(j.id::text) LIMIT :sample
    ON CONFLICT DO NOTHING
    RETURNING id
    """
)
_SHADOWS = text(
    """
    SELECT origin_job_id, state, note, error FROM aftermind.jobs
    WHERE replay_plan_id = :plan AND kind = 'shadow' ORDER BY created_at, id
    """
)
_HAS_EXTRACTIONS = text(
    """
    SELECT jobs.id FROM aftermind.replay_items AS items JOIN aftermind.jobs AS jobs ON jobs.id = items.job_id
    WHERE items.plan_id = :plan AND jobs.kind = 'extract' LIMIT 1
    """
)
# Sorted by tenant, as other entries of several trails are.
_SHOWN = text(
    """
    SELECT DISTINCT namespace, user_id FROM aftermind.jobs
    WHERE replay_plan_id = :plan AND kind = 'shadow' ORDER BY namespace, user_id
    """
)


async def estimate(tx: Transaction, plan: ReplayPlan) -> Estimate:
    """See `Replays.estimate`. Locks nothing."""
    return _estimate(plan, await pg(tx).rows(_ESTIMATE, plan=plan.id, step=TARGET))


async def shadow(tx: Transaction, plan_id: PlanId, *, sample: int) -> list[JobId]:
    """See `Replays.dry_run`. The sample is the same however often it is drawn, so a second call adds nothing."""
    return [JobId(row.id) for row in await pg(tx).rows(_SHADOW, plan=plan_id, sample=sample)]


async def shadows(tx: Transaction, plan_id: PlanId) -> list[DryRunResult]:
    """See `Replays.dry_run_results`."""
    return [_shadow(row) for row in await pg(tx).rows(_SHADOWS, plan=plan_id)]


async def has_extractions(tx: Transaction, plan_id: PlanId) -> bool:
    """Whether a plan has items of which a sample can run."""
    return await pg(tx).row(_HAS_EXTRACTIONS, plan=plan_id) is not None


async def shadowed_users(tx: Transaction, plan_id: PlanId) -> list[tuple[str, str | None]]:
    """Whose memory the shadow runs of a plan show, by namespace and user."""
    return [(row.namespace, row.user_id or None) for row in await pg(tx).rows(_SHOWN, plan=plan_id)]


def _estimate(plan: ReplayPlan, rows: Sequence[Row[Any]]) -> Estimate:
    known = [row for row in rows if row.kind is not None]  # the others are items with a deleted job
    items = sum(row.jobs for row in rows)
    cost = sum((row.jobs - row.unestimated) * row.cost for row in known)
    return Estimate(
        items=items,
        by_kind={JobKind(row.kind): row.jobs for row in known},
        namespaces=max((row.namespaces for row in known), default=0),
        oldest=min((row.oldest for row in known), default=None),
        newest=max((row.newest for row in known), default=None),
        seconds=items / plan.rate,
        model_calls=sum(row.jobs for row in known if row.kind in MODEL_KINDS),
        tokens=round(sum((row.jobs - row.unestimated) * row.tokens for row in known)),
        cost_usd=cost or None,
        unestimated_calls=sum(row.unestimated for row in known if row.kind in MODEL_KINDS),
        conflicts=sum(row.conflicts for row in known),
        newer_facts=sum(row.newer for row in known),
        refused=sum(row.refused for row in rows),
    )


def _shadow(row: Row[Any]) -> DryRunResult:
    found: Mapping[str, list[str]] = orjson.loads(row.note) if row.state == JobState.DONE and row.note else {}
    return DryRunResult(
        job_id=JobId(row.origin_job_id),
        state=JobState(row.state),
        added=tuple(found.get("added", ())),
        superseded=tuple(found.get("superseded", ())),
        error=row.error,
    )
