"""Rows of `jobs` and `job_attempts` as the types of the library."""

from typing import Any

from sqlalchemy import Row

from aftermind.ledger.protocol import DailyUsage, ModelUsage
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, Scope


def to_job(row: Row[Any]) -> Job:  # Any: a row of `jobs`
    """The job that a row is."""
    return Job(
        id=JobId(row.id),
        kind=JobKind(row.kind),
        scope=Scope(
            namespace=row.namespace, user_id=row.user_id or None, session_id=row.session_id, agent_id=row.agent_id
        ),
        state=JobState(row.state),
        payload=row.payload,
        effect_key=row.effect_key,
        attempts=row.attempts,
        lost_leases=row.lost_leases,
        run_at=row.run_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
        reason_code=row.reason_code,
        error=row.error,
        fingerprint=row.fingerprint,
        answer=row.answer,
        raw=None if row.raw is None else bytes(row.raw),
        note=row.note,
        origin_job_id=None if row.origin_job_id is None else JobId(row.origin_job_id),
        worker=row.worker,
    )


def to_attempt(row: Row[Any]) -> Attempt:  # Any: a row of `job_attempts`
    """The attempt that a row is."""
    return Attempt(
        job_id=JobId(row.job_id),
        number=row.number,
        worker=row.worker,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
        error_class=row.error_class,
        error=row.error,
        model=row.model,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        cost_usd=row.cost_usd,
        calls=row.calls,
        latency_ms=row.latency_ms,
    )


def to_spending(row: Row[Any]) -> DailyUsage:  # Any: a row of `spending`
    """The spending that a row is."""
    return DailyUsage(
        owner=Scope(namespace=row.namespace, user_id=row.user_id or None),
        day=row.day,
        kind=JobKind(row.kind),
        spent=ModelUsage(
            model=row.model,
            calls=row.calls,
            tokens_in=row.tokens_in,
            tokens_out=row.tokens_out,
            cost_usd=row.cost_usd,
            latency_ms=row.latency_ms,
        ),
    )
