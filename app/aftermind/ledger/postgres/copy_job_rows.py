"""Copies between stores: all jobs of a database, read and written as they are.

Rows are those of a store of one process (`ledger.inmemory.job_records`), by table and key. Jobs of replay plans stay
jobs; plans and their items are not copied. As the owner of the tables, because jobs are of all namespaces.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, insert, select, text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import JOB_ATTEMPTS, JOB_FOLLOWUPS, JOB_PAUSES, JOBS, REPLAY_PLANS, SPENDING
from aftermind.ledger.inmemory.job_records import UNFINISHED, WAITING, Record
from aftermind.ledger.postgres.rows import to_attempt, to_job, to_spending
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, LeaseToken
from aftermind.types.replay import PlanState
from aftermind.types.session_order import counted
from aftermind.wire.turn_encoding import decode_turn

Rows = dict[str, dict[Any, Any]]  # Any: each table has keys and rows of another type

PAGE_ROWS = 1_000
KEPT = (  # columns that are fields of a job
    *("id", "payload", "effect_key", "attempts", "lost_leases", "run_at", "created_at", "updated_at"),
    *("reason_code", "error", "fingerprint", "answer", "note", "raw", "origin_job_id", "worker"),
)
PAUSE = {"namespace": "", "kind": "", "reason": "a copy of another store is being written", "actor": "aftermind copy"}

_GENERATION = text("SELECT last_value FROM aftermind.generation")
# SQLAlchemy writes None as the `null` of JSON.
_NO_ANSWER = text("UPDATE aftermind.jobs SET answer = NULL WHERE answer = 'null'")
_RAISE_GENERATION = text(
    "SELECT setval('aftermind.generation', greatest(CAST(:number AS bigint), last_value)) FROM aftermind.generation"
)


async def is_empty(tx: Transaction) -> bool:
    """Whether there is no job and no spending."""
    found = [(await pg(tx).execute(select(column).limit(1))).all() for column in (JOBS.c.id, SPENDING.c.day)]
    return not any(found)


async def count_unfinished_plans(tx: Transaction) -> int:
    """Replay plans that can still retry jobs."""
    final = [each.value for each in PlanState if each.is_final]
    found = (await pg(tx).execute(select(REPLAY_PLANS.c.id).where(REPLAY_PLANS.c.state.not_in(final)))).all()
    return len(found)


async def pause(tx: Transaction) -> None:
    """Let no worker claim a job, unless all are paused already."""
    known = (
        await pg(tx).execute(select(JOB_PAUSES).where(JOB_PAUSES.c.namespace == "", JOB_PAUSES.c.kind == ""))
    ).all()
    if not known:
        await pg(tx).execute(insert(JOB_PAUSES), [PAUSE])


async def resume(tx: Transaction) -> None:
    """End the pause that `pause` began."""
    mine = [JOB_PAUSES.c[name] == PAUSE[name] for name in ("namespace", "kind", "actor")]
    await pg(tx).execute(JOB_PAUSES.delete().where(*mine))


async def read(tx: Transaction) -> Rows:
    """Every job with its attempts, which job follows which, spending, and the number of the last erasure."""
    run = pg(tx)
    attempts: dict[JobId, list[Attempt]] = {}
    for row in (await run.execute(select(JOB_ATTEMPTS).order_by(JOB_ATTEMPTS.c.job_id, JOB_ATTEMPTS.c.number))).all():
        attempts.setdefault(JobId(row.job_id), []).append(to_attempt(row))
    jobs = (await run.execute(select(JOBS).order_by(JOBS.c.created_at, JOBS.c.id))).all()
    follows: dict[JobId, tuple[JobId, ...]] = {}
    for row in (await run.execute(select(JOB_FOLLOWUPS).order_by(JOB_FOLLOWUPS.c.job_id))).all():
        known = follows.get(JobId(row.followed_job_id), ())
        follows[JobId(row.followed_job_id)] = (*known, JobId(row.job_id))
    spent = [to_spending(row) for row in (await run.execute(select(SPENDING))).all()]
    generation = await run.row(_GENERATION)
    return {
        "jobs": {JobId(row.id): _to_record(row, tuple(attempts.get(JobId(row.id), ()))) for row in jobs},
        "follows": follows,
        "spending": {(each.owner, each.day, each.kind, each.spent.model): each for each in spent},
        "generation": {} if generation is None else {"last": generation.last_value},
    }


async def write(tx: Transaction, rows: Rows) -> None:
    """Insert every job of a database that has none, and raise the number of the last erasure to the given one."""
    records: Mapping[JobId, Record] = rows.get("jobs", {})
    running = {_effect(each.job) for each in records.values() if each.job.state is JobState.RUNNING}
    jobs = [_job_row(each, running) for each in records.values()]
    attempts = [
        {
            **{name: getattr(attempt, name) for name in Attempt.__dataclass_fields__},
            "namespace": record.job.scope.namespace,
        }
        for record in records.values()
        for attempt in record.attempts
    ]
    follows = [
        {
            "namespace": records[by].job.scope.namespace,
            "followed_job_id": followed,
            "kind": records[by].job.kind.value,
            "job_id": by,
        }
        for followed, ids in rows.get("follows", {}).items()
        for by in ids
        if by in records
    ]
    spending = [
        {
            "namespace": each.owner.namespace,
            "user_id": each.owner.user_column,
            "day": each.day,
            "kind": each.kind.value,
            "model": each.spent.model or "unknown",
            **{
                name: getattr(each.spent, name)
                for name in ("calls", "tokens_in", "tokens_out", "cost_usd", "latency_ms")
            },
        }
        for each in rows.get("spending", {}).values()
    ]
    for table, values in ((JOBS, jobs), (JOB_ATTEMPTS, attempts), (JOB_FOLLOWUPS, follows), (SPENDING, spending)):
        for first in range(0, len(values), PAGE_ROWS):
            await pg(tx).execute(insert(table), values[first : first + PAGE_ROWS])
    await pg(tx).execute(_NO_ANSWER)
    await pg(tx).execute(_RAISE_GENERATION, {"number": rows.get("generation", {}).get("last", 0)})


async def clear(tx: Transaction) -> None:
    """Delete every job, and what belongs to jobs."""
    for table in (JOBS, JOB_ATTEMPTS, JOB_FOLLOWUPS, SPENDING):
        await pg(tx).execute(table.delete())


def _to_record(row: Row[Any], attempts: tuple[Attempt, ...]) -> Record:  # Any: a row of `jobs`
    return Record(
        job=to_job(row),
        token=None if row.token is None else LeaseToken(row.token),
        until=row.lease_until,
        place=row.queue_position,
        due_by=row.due_by,
        plan=row.replay_plan_id,
        attempts=attempts,
    )


def _job_row(record: Record, running: set[tuple[str, JobKind, str]]) -> dict[str, Any]:  # Any: values of columns
    job = record.job
    last = record.attempts[-1] if record.attempts else None
    position, counted_from = _order(job)
    return {
        **{name: getattr(job, name) for name in KEPT},
        "namespace": job.scope.namespace,
        "user_id": job.scope.user_column,
        "session_id": job.scope.session_id,
        "agent_id": job.scope.agent_id,
        "kind": job.kind.value,
        "state": job.state.value,
        "position": position,
        "counted_from": counted_from,
        "slot": int(job.state in WAITING and _effect(job) in running),
        "queue_position": record.place,
        "due_by": record.due_by,
        "token": record.token,
        "lease_until": record.until,
        "error_class": last.error_class if last is not None and job.error is not None else None,
        "replay_plan_id": record.plan,
    }


def _order(job: Job) -> tuple[int | None, int | None]:
    """Where an accepted turn that is not stored yet leaves its session."""
    if job.kind is not JobKind.STORE or job.raw is None or job.state not in UNFINISHED:
        return None, None
    try:
        order = counted(decode_turn(job.raw))
    except errors.UnknownPayload:  # its store job makes a dead letter of it
        return None, None
    return order.position, order.counted_from


def _effect(job: Job) -> tuple[str, JobKind, str]:
    return job.scope.namespace, job.kind, job.effect_key
