"""`PostgresLedger`: jobs as rows of the store's database, with the statements of the other modules of this package."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date, timedelta
from time import monotonic
from uuid import UUID, uuid4

from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from aftermind.db.database_protocol import Transaction
from aftermind.db.engine import PostgresDatabase
from aftermind.db.error_mapping import is_duplicate
from aftermind.db.postgres_transaction import PgTransaction, pg
from aftermind.db.tables import JOB_ATTEMPTS, JOBS, SPENDING
from aftermind.ledger.job_timeline import follow_ups_by_kind
from aftermind.ledger.postgres import enqueue as entering
from aftermind.ledger.postgres import leases as working
from aftermind.ledger.postgres.leases import ClaimRequest, ready_namespaces
from aftermind.ledger.postgres.rows import to_attempt, to_job, to_spending
from aftermind.ledger.protocol import Backlog, DailyUsage, Failure, ModelUsage, OnBuried, Tried
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, Json, Lease, LeaseToken, Scope
from aftermind.types.job import FollowUp, failed_state

PROMOTE_EVERY = timedelta(seconds=0.1)  # how often due jobs are promoted while there is other work
CLAIM_TRIES = 3  # two claims that compete for one session: the unique index admits one, the other retries
COUNTED = 10_000  # of each kind and state; beyond it the backlog is a lower bound


def _count_runnable(place: str) -> str:
    """How many jobs of a kind could run, since when the oldest could, and how many of them are of replays.

    Minima by namespace first: pauses are of namespaces, and ten thousand jobs are of few.
    """
    return f"""
    SELECT coalesce(sum(jobs), 0)::bigint AS jobs, min({_runnable_since("oldest")}) AS oldest,
           coalesce(sum(replays), 0)::bigint AS replays
    FROM (SELECT namespace, count(*) AS jobs, min(run_at) AS oldest, count(replay_plan_id) AS replays FROM (
        SELECT namespace, run_at, replay_plan_id FROM aftermind.jobs
        WHERE kind = kinds.kind AND state IN ('queued', 'retrying') AND {place} LIMIT {COUNTED}
    ) AS listed GROUP BY namespace) AS one
    """


def _runnable_since(run_at: str) -> str:
    """Since when a job could run: since its time, later by what it waited of its last pause that was ended."""
    return f"""greatest({run_at}, (
    SELECT max(least(resumed.at, {run_at} + (resumed.at - resumed.began))) FROM resumed
    WHERE resumed.kind IN ('', kinds.kind) AND resumed.namespace IN ('', one.namespace)))"""


_IN_ORDER = "queue_position IS NOT NULL ORDER BY queue_position, run_at"
_DUE = "queue_position IS NULL AND run_at <= now() {} ORDER BY run_at"
# A paused job waits for an operator, and not for a worker; '' is every namespace. While single namespaces are paused,
# their jobs may be more than are counted: the oldest of the others is searched apart.
_SOME_PAUSED = "paused.namespaces IS NOT NULL AND '' <> ALL(paused.namespaces)"
# Each count by its partial index, and bounded: it is asked every few seconds, also with a million jobs waiting. Ended
# pauses by `hold_history_pauses`.
_BACKLOG = text(
    f"""
    WITH resumed AS MATERIALIZED (
        SELECT DISTINCT ON (namespace, kind) namespace, kind, created_at AS began, ended_at AS at
        FROM aftermind.hold_history WHERE job_id IS NULL ORDER BY namespace, kind, ended_at DESC
    )
    SELECT kinds.kind, ready.jobs AS ready, due.jobs AS due, ready.replays + due.replays AS replays,
           now() - CASE WHEN paused.namespaces IS NULL THEN least(ready.oldest, due.oldest) ELSE others.oldest END
           AS oldest_wait,
           running.jobs AS running, waiting.jobs AS waiting, dead.jobs AS dead
    FROM unnest(CAST(:kinds AS text[])) AS kinds (kind),
    LATERAL (SELECT array_agg(namespace) AS namespaces FROM aftermind.job_pauses
        WHERE kind IN ('', kinds.kind)) AS paused,
    LATERAL (SELECT CASE WHEN {_SOME_PAUSED} THEN least(
        (SELECT min({_runnable_since("one.run_at")}) FROM (
            {ready_namespaces("kinds.kind")}
            SELECT namespaces.namespace, first.run_at FROM namespaces CROSS JOIN LATERAL (
                SELECT run_at FROM aftermind.jobs
                WHERE kind = kinds.kind AND namespace = namespaces.namespace
                  AND state IN ('queued', 'retrying') AND queue_position IS NOT NULL
                ORDER BY queue_position, run_at LIMIT 1) AS first
            WHERE namespaces.namespace <> ALL(paused.namespaces)) AS one),
        (SELECT oldest FROM ({_count_runnable(_DUE.format("AND namespace <> ALL(paused.namespaces)"))}) AS others)
        ) END AS oldest
    ) AS others,
    LATERAL ({_count_runnable(_IN_ORDER)}) AS ready,
    LATERAL ({_count_runnable(_DUE.format(""))}) AS due,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs
        WHERE state = 'running' AND kind = kinds.kind LIMIT {COUNTED}) AS found) AS running,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs WHERE kind = kinds.kind AND state IN ('queued', 'retrying')
        AND queue_position IS NULL AND run_at > now() LIMIT {COUNTED}) AS found) AS waiting,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs WHERE state = 'dead' AND kind = kinds.kind LIMIT {COUNTED}) AS found) AS dead
    """
)

_FOLLOWING = text(
    """
    SELECT kind, state, error, note, reason_code FROM aftermind.jobs WHERE id = :id
    UNION ALL
    SELECT jobs.kind, jobs.state, jobs.error, jobs.note, jobs.reason_code FROM aftermind.job_followups AS follows
    JOIN aftermind.jobs AS jobs ON jobs.id = follows.job_id WHERE follows.followed_job_id = :id
    """
)

_TODAY = "CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)"  # as the rows of `spending` name their day

_PRUNE = text(
    """
    WITH old AS (
        SELECT id FROM aftermind.jobs
        WHERE created_at < now() - CAST(:age AS interval) AND updated_at < now() - CAST(:age AS interval)
          AND state IN ('done', 'discarded', 'forgotten', 'replayed') LIMIT :limit FOR UPDATE SKIP LOCKED
    ), attempts AS (
        DELETE FROM aftermind.job_attempts USING old WHERE job_id = old.id
    ), follows AS (
        DELETE FROM aftermind.job_followups USING old WHERE followed_job_id = old.id
    ), holds AS (
        DELETE FROM aftermind.hold_history WHERE id IN (
            SELECT id FROM aftermind.hold_history WHERE ended_at < now() - CAST(:age AS interval)
            ORDER BY ended_at LIMIT :limit)
    )
    DELETE FROM aftermind.jobs USING old WHERE jobs.id = old.id RETURNING jobs.id
    """
)


class PostgresLedger:
    """The ledger in Postgres. It uses the database's clock. See `Ledger` for the promise of each method.

    `namespace` limits queries without an owner; None: all namespaces, which needs the relay's role.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        namespace: str | None = None,
        max_lost_leases: int = 3,
        promote_every: timedelta = PROMOTE_EVERY,
    ) -> None:
        self._database, self._namespace, self._max_lost = database, namespace, max_lost_leases
        self._promote_seconds = promote_every.total_seconds()
        self._served_last: dict[JobKind, str] = {}  # namespaces, see `ClaimRequest.after`
        self._promoted_at: dict[JobKind, float] = {}

    # entering

    enqueue = staticmethod(entering.enqueue)
    debounce = staticmethod(entering.debounce)
    record_stored = staticmethod(entering.record_stored)
    record_forgotten = staticmethod(entering.record_forgotten)
    content_hash = staticmethod(entering.content_hash)
    accept = staticmethod(entering.accept)
    accepted_order = staticmethod(entering.accepted_order)
    unstored = staticmethod(entering.unstored)
    measure_unstored = staticmethod(entering.measure_unstored)
    list_turn_payloads = staticmethod(entering.list_turn_payloads)
    rewrite_turn = staticmethod(entering.rewrite_turn)

    # working

    async def claim(
        self,
        kind: JobKind,
        *,
        worker: str,
        for_: timedelta,
        limit: int = 1,
        size_bytes: int | None = None,
        weight: int | None = None,
        ids: Sequence[JobId] | None = None,
        replays: bool = False,
        alone: bool = False,
        except_namespaces: Sequence[str] = (),
        claim_id: UUID | None = None,
    ) -> list[Lease]:
        wanted = ClaimRequest(
            kind=kind,
            worker=worker,
            lasts=for_,
            limit=limit,
            size_bytes=size_bytes,
            weight=weight,
            most_lost=self._max_lost,
            ids=ids,
            replays=replays,
            alone=alone,
            claim_id=claim_id or uuid4(),
            excepted=except_namespaces,
            after=self._served_last.get(kind, ""),
        )
        async with self._database.statements() as run:
            is_time = monotonic() - self._promoted_at.get(kind, 0.0) >= self._promote_seconds
            if is_time:
                await self._promote(run, kind)
            leases = await self._claim(run, wanted)
            if not leases and not is_time and await self._promote(run, kind):
                leases = await self._claim(run, wanted)
        if ids is None:
            self._served_last[kind] = wanted.served_last(leases)
        return leases

    async def last_chance_is_next(
        self, kind: JobKind, *, replays: bool = False, except_namespaces: Sequence[str] = ()
    ) -> bool:
        async with self._database.statements() as run:
            return await working.last_chance_is_next(
                run, kind, most=self._max_lost, replays=replays, excepted=except_namespaces
            )

    async def _promote(self, run: Transaction, kind: JobKind) -> int:
        self._promoted_at[kind] = monotonic()
        return await working.promote(run, kind)

    async def _claim(self, run: Transaction, wanted: ClaimRequest) -> list[Lease]:
        for _ in range(CLAIM_TRIES):
            try:
                return await working.claim(run, wanted)
            except IntegrityError as exc:
                if not is_duplicate(exc):
                    raise
        return []

    async def heartbeat(self, leases: Sequence[Lease], *, for_: timedelta) -> frozenset[LeaseToken]:
        async with self._database.statements() as tx:
            return await working.heartbeat(tx, leases, for_=for_)

    async def finish(
        self, tx: Transaction, lease: Lease, *, spent: ModelUsage | None = None, note: str | None = None
    ) -> None:
        await working.close_one(tx, lease, "done", "done", spent=spent, note=note)

    hold = staticmethod(working.hold)

    async def finish_all(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        return await working.close(tx, leases, "done", "done")

    async def save_answer(self, lease: Lease, answer: Mapping[str, Json], *, spent: ModelUsage) -> None:
        async with self._database.statements() as tx:
            await working.save_answer(tx, lease, answer, spent=spent)

    async def spend(self, costs: Sequence[tuple[Lease, ModelUsage]]) -> None:
        async with self._database.statements() as tx:
            await working.spend(tx, costs)

    async def retry(self, lease: Lease, failure: Failure, *, after: timedelta, spent: ModelUsage | None = None) -> None:
        async with self._database.statements() as tx:
            await working.close_one(tx, lease, "retrying", "failed", after=after, failure=failure, spent=spent)

    async def snooze(self, lease: Lease, *, after: timedelta, why: str) -> None:
        async with self._database.statements() as tx:
            await working.close_one(tx, lease, "queued", "snoozed", after=after, give_back=True, note=why, is_wait=True)

    async def mark_dead(
        self, tx: Transaction | None, lease: Lease, failure: Failure, *, spent: ModelUsage | None = None
    ) -> None:
        state = failed_state(lease.job.kind).value
        if tx is not None:
            await working.close_one(tx, lease, state, "dead", failure=failure, spent=spent)
            return
        async with self._database.statements() as own:
            await working.close_one(own, lease, state, "dead", failure=failure, spent=spent)

    async def dead_letter_turn(
        self,
        tx: Transaction,
        job_id: JobId,
        owner: Scope,
        payload: bytes,
        failure: Failure,
        *,
        tried: Tried | None = None,
    ) -> bool:
        return await working.dead_letter_turn(tx, job_id, owner, payload, failure, tried or Tried())

    note_lost_leases = staticmethod(working.note_lost_leases)

    async def return_leases(self, leases: Sequence[Lease], *, why: str, uncount_loss: bool = False) -> frozenset[JobId]:
        async with self._database.transaction() as tx:
            held = await working.close(tx, leases, "queued", "snoozed", after=timedelta(0), give_back=True, note=why)
            expired = [lease for lease in leases if uncount_loss and lease.job.id not in held]
            return held | await working.uncount_losses(tx, expired, note=why)

    async def return_claim(self, claim_id: UUID, *, worker: str, why: str) -> int:
        async with self._database.statements() as tx:
            return await working.return_claim(tx, claim_id, worker=worker, note=why)

    async def expire_leases(self, *, on_buried: OnBuried | None = None) -> Counter[JobKind]:
        async with self._database.transaction() as tx:
            expired, buried = await working.expire(tx, most=self._max_lost)
            if buried and on_buried is not None:
                await on_buried(tx, buried)
        return expired

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        async with self._database.statements() as tx:
            return len(await pg(tx).rows(_PRUNE, age=older_than, limit=limit))

    # queries

    async def job(self, job_id: JobId, *, owner: Scope | None = None) -> Job | None:
        async with self._looking(owner) as tx:
            row = (await pg(tx).execute(select(JOBS).where(JOBS.c.id == job_id))).first()
        return None if row is None else to_job(row)

    async def successor(self, job: Job) -> Job | None:
        jobs, owner = JOBS.c, job.scope.owner  # by owner, for the index
        wanted = select(JOBS).where(jobs.namespace == owner.namespace, jobs.user_id == owner.user_column)
        wanted = wanted.where(jobs.origin_job_id == job.id).order_by(jobs.created_at.desc()).limit(1)
        async with self._looking(owner) as tx:
            row = (await pg(tx).execute(wanted)).first()
        return None if row is None else to_job(row)

    async def jobs(
        self,
        *,
        owner: Scope | None = None,
        states: Sequence[JobState] = (),
        kinds: Sequence[JobKind] = (),
        limit: int = 100,
    ) -> list[Job]:
        wanted = select(JOBS).order_by(JOBS.c.created_at.desc(), JOBS.c.id).limit(limit)
        if owner is not None:
            wanted = wanted.where(JOBS.c.namespace == owner.namespace, JOBS.c.user_id == owner.user_column)
        if states:
            wanted = wanted.where(JOBS.c.state.in_([state.value for state in states]))
        if kinds:
            wanted = wanted.where(JOBS.c.kind.in_([kind.value for kind in kinds]))
        async with self._looking(owner) as tx:
            return [to_job(row) for row in (await pg(tx).execute(wanted)).all()]

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        wanted = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_id == job_id).order_by(JOB_ATTEMPTS.c.number)
        async with self._looking(None) as tx:
            return [to_attempt(row) for row in (await pg(tx).execute(wanted)).all()]

    async def backlog(self) -> list[Backlog]:
        async with self._looking(None) as tx:
            rows = await pg(tx).rows(_BACKLOG, kinds=[kind.value for kind in JobKind])
        return [
            Backlog(
                kind=JobKind(row.kind),
                runnable=row.ready + row.due,
                oldest_wait=row.oldest_wait,
                running=row.running,
                waiting=row.waiting,
                dead=row.dead,
                replays=row.replays,
            )
            for row in rows
        ]

    async def spending(self, namespace: str, *, since: date | None, owner: Scope | None = None) -> list[DailyUsage]:
        spent = SPENDING.c
        first = text(_TODAY) if since is None else since
        wanted = select(SPENDING).where(spent.namespace == namespace, spent.day >= first)
        if owner is not None:
            wanted = wanted.where(spent.user_id == owner.user_column)
        wanted = wanted.order_by(spent.day, spent.user_id, spent.kind, spent.model)
        async with self._database.transaction(namespace=namespace, read_only=True) as tx:
            return [to_spending(row) for row in (await pg(tx).execute(wanted)).all()]

    async def follow_ups(self, job_id: JobId, *, owner: Scope | None = None) -> dict[JobKind, FollowUp]:
        async with self._looking(owner) as tx:
            return follow_ups_by_kind(await pg(tx).rows(_FOLLOWING, id=job_id))

    def _looking(self, owner: Scope | None) -> AbstractAsyncContextManager[PgTransaction]:
        namespace = self._namespace if owner is None else owner.namespace
        return self._database.transaction(namespace=namespace, read_only=True)
