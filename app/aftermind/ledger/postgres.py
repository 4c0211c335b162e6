"""`PostgresLedger`: jobs as rows of the store's own database, by the statements of the modules beside it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date, timedelta
from time import monotonic

from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from aftermind.db.base import Transaction
from aftermind.db.failures import is_duplicate
from aftermind.db.postgres import PostgresDatabase
from aftermind.db.tables import JOB_ATTEMPTS, JOBS, SPENDING
from aftermind.db.transaction import PgTransaction, pg
from aftermind.ledger import postgres_entering as entering
from aftermind.ledger import postgres_working as working
from aftermind.ledger.base import Backlog, Failure, OnBuried, Spending, Spent, Tried
from aftermind.ledger.postgres_rows import attempt_of, job_of, spending_of
from aftermind.ledger.postgres_working import Wanted
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, Json, Lease, LeaseToken, NewJob, Scope, Turn

PROMOTE_EVERY = timedelta(seconds=0.1)  # looks at what has become due, while there is other work
CLAIM_TRIES = 3  # two claims that meet at one session: the unique index lets one through, the other looks again
COUNTED = 10_000  # of each kind and state; beyond it the backlog is "at least so many"

# Each count by its partial index, and bounded: it is asked every few seconds, also with a million jobs waiting.
_BACKLOG = text(
    f"""
    SELECT kinds.kind, ready.jobs AS ready, ready.oldest AS ready_since, due.jobs AS due, due.oldest AS due_since,
           ready.replays + due.replays AS replays,
           running.jobs AS running, waiting.jobs AS waiting, dead.jobs AS dead
    FROM unnest(CAST(:kinds AS text[])) AS kinds (kind),
    LATERAL (SELECT count(*) AS jobs, min(run_at) AS oldest, count(replay_plan_id) AS replays FROM (
        SELECT run_at, replay_plan_id FROM aftermind.jobs WHERE kind = kinds.kind AND state IN ('queued', 'retrying')
        AND turn IS NOT NULL ORDER BY turn, run_at LIMIT {COUNTED}) AS found) AS ready,
    LATERAL (SELECT count(*) AS jobs, min(run_at) AS oldest, count(replay_plan_id) AS replays FROM (
        SELECT run_at, replay_plan_id FROM aftermind.jobs WHERE kind = kinds.kind AND state IN ('queued', 'retrying')
        AND turn IS NULL AND run_at <= now() ORDER BY run_at LIMIT {COUNTED}) AS found) AS due,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs
        WHERE state = 'running' AND kind = kinds.kind LIMIT {COUNTED}) AS found) AS running,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs WHERE kind = kinds.kind AND state IN ('queued', 'retrying')
        AND turn IS NULL AND run_at > now() LIMIT {COUNTED}) AS found) AS waiting,
    LATERAL (SELECT count(*) AS jobs FROM (
        SELECT 1 FROM aftermind.jobs WHERE state = 'dead' AND kind = kinds.kind LIMIT {COUNTED}) AS found) AS dead
    """
)

_FOLLOWING = text(
    """
    SELECT kind, state FROM aftermind.jobs WHERE id = :id
    UNION ALL
    SELECT jobs.kind, jobs.state FROM aftermind.job_follows AS follows
    JOIN aftermind.jobs AS jobs ON jobs.id = follows.job_id WHERE follows.follows = :id
    """
)

_PRUNE = text(
    """
    WITH old AS (
        SELECT id FROM aftermind.jobs
        WHERE created_at < now() - CAST(:age AS interval) AND updated_at < now() - CAST(:age AS interval)
          AND state IN ('done', 'discarded', 'forgotten', 'replayed') LIMIT :limit FOR UPDATE SKIP LOCKED
    ), attempts AS (
        DELETE FROM aftermind.job_attempts USING old WHERE job_id = old.id
    ), follows AS (
        DELETE FROM aftermind.job_follows USING old WHERE follows = old.id
    )
    DELETE FROM aftermind.jobs USING old WHERE jobs.id = old.id RETURNING jobs.id
    """
)


class PostgresLedger:
    """The ledger in Postgres. Its clock is the database's. See `Ledger` for what each method promises.

    `namespace` is whose jobs are looked at where no owner is named; None: those of all, which takes the relay's role.
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
        self._served_last: dict[JobKind, str] = {}  # namespaces, see `Wanted.after`
        self._promoted_at: dict[JobKind, float] = {}

    # entering

    async def enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[JobId]:
        """Put jobs in; the ids that are new."""
        return await entering.enqueue(tx, jobs)

    async def debounce(
        self, tx: Transaction, jobs: Sequence[NewJob], *, quiet: timedelta, at_most: timedelta
    ) -> list[JobId]:
        """Put jobs in to run after `quiet`, or push those that still wait; who will do the work of each."""
        return await entering.debounce(tx, jobs, quiet=quiet, at_most=at_most)

    async def record_stored(self, tx: Transaction, turns: Sequence[Turn]) -> frozenset[JobId]:
        """Note turns as stored; those that were not before."""
        return await entering.record_stored(tx, turns)

    async def record_forgotten(
        self, tx: Transaction, owner: Scope, ids: Sequence[JobId], *, closed: bool = False
    ) -> None:
        """Say of turns of an owner that they were forgotten before they were stored."""
        await entering.record_forgotten(tx, owner, ids, closed=closed)

    async def content_hash(self, tx: Transaction, owner: Scope, job_id: JobId) -> str | None:
        """The hash of the content that an idempotency key was used for."""
        return await entering.content_hash(tx, owner, job_id)

    async def accept(self, tx: Transaction, turn: Turn, payload: bytes) -> bool:
        """Take a turn as a queued store job; False where the job id is known."""
        return await entering.accept(tx, turn, payload)

    async def unstored(self, tx: Transaction, owner: Scope) -> list[bytes]:
        """Accepted turns of the owner that are not stored yet, oldest first."""
        return await entering.unstored(tx, owner)

    async def kept_turns(self, tx: Transaction, owner: Scope) -> list[tuple[JobId, bytes]]:
        """Store jobs of the owner with their payload."""
        return await entering.kept_turns(tx, owner)

    async def rewrite_turn(self, tx: Transaction, job_id: JobId, payload: bytes | None) -> None:
        """Put another payload in a store job's place."""
        await entering.rewrite_turn(tx, job_id, payload)

    # working

    async def claim(
        self,
        kind: JobKind,
        *,
        worker: str,
        for_: timedelta,
        limit: int = 1,
        ids: Sequence[JobId] | None = None,
        replays: bool = False,
        alone: bool = False,
    ) -> list[Lease]:
        """Take up to `limit` runnable jobs of a kind, fairest and oldest first."""
        wanted = Wanted(
            kind=kind,
            worker=worker,
            lasts=for_,
            limit=limit,
            most_lost=self._max_lost,
            ids=ids,
            replays=replays,
            alone=alone,
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

    async def last_chance_is_next(self, kind: JobKind, *, replays: bool = False) -> bool:
        """Whether the next runnable job of the kind comes only to who claims `alone`."""
        async with self._database.statements() as run:
            return await working.last_chance_is_next(run, kind, most=self._max_lost, replays=replays)

    async def _promote(self, run: Transaction, kind: JobKind) -> int:
        self._promoted_at[kind] = monotonic()
        return await working.promote(run, kind)

    async def _claim(self, run: Transaction, wanted: Wanted) -> list[Lease]:
        for _ in range(CLAIM_TRIES):
            try:
                return await working.claim(run, wanted)
            except IntegrityError as exc:
                if not is_duplicate(exc):
                    raise
        return []

    async def heartbeat(self, leases: Sequence[Lease], *, for_: timedelta) -> frozenset[LeaseToken]:
        """Renew; the tokens that still hold."""
        async with self._database.statements() as tx:
            return await working.heartbeat(tx, leases, for_=for_)

    async def finish(
        self, tx: Transaction, lease: Lease, *, spent: Spent | None = None, note: str | None = None
    ) -> None:
        """Close the job as done, behind the fence."""
        await working.close_one(tx, lease, "done", "done", spent=spent, note=note)

    async def finish_all(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        """Close those as done whose token still fits."""
        return await working.close(tx, leases, "done", "done")

    async def keep_answer(self, lease: Lease, answer: Mapping[str, Json], *, spent: Spent) -> None:
        """Keep a model's answer with the job."""
        async with self._database.statements() as tx:
            await working.keep_answer(tx, lease, answer, spent=spent)

    async def spend(self, costs: Sequence[tuple[Lease, Spent]]) -> None:
        """Count what model calls cost whose answer is not kept."""
        async with self._database.statements() as tx:
            await working.spend(tx, costs)

    async def retry(self, lease: Lease, failure: Failure, *, after: timedelta, spent: Spent | None = None) -> None:
        """Hand back a failed attempt, to run again `after` from now."""
        async with self._database.statements() as tx:
            await working.close_one(tx, lease, "retrying", "failed", after=after, failure=failure, spent=spent)

    async def snooze(self, lease: Lease, *, after: timedelta, why: str) -> None:
        """Hand back without a failure; gives the attempt back."""
        async with self._database.statements() as tx:
            await working.close_one(tx, lease, "queued", "snoozed", after=after, give_back=True, note=why)

    async def bury(self, tx: Transaction | None, lease: Lease, failure: Failure, *, spent: Spent | None = None) -> None:
        """Make a dead letter of it, payload whole."""
        if tx is not None:
            await working.close_one(tx, lease, "dead", "dead", failure=failure, spent=spent)
            return
        async with self._database.statements() as own:
            await working.close_one(own, lease, "dead", "dead", failure=failure, spent=spent)

    async def bury_turn(
        self,
        tx: Transaction,
        job_id: JobId,
        owner: Scope,
        payload: bytes,
        failure: Failure,
        *,
        tried: Tried | None = None,
    ) -> bool:
        """Park a pending turn as a dead letter."""
        return await working.bury_turn(tx, job_id, owner, payload, failure, tried or Tried())

    async def return_lost(self, lease: Lease, *, why: str) -> bool:
        """Hand back what the store's absence kept from being handed back; see `Ledger.return_lost`."""
        async with self._database.transaction() as tx:
            if await working.close(tx, [lease], "queued", "snoozed", after=timedelta(0), give_back=True, note=why):
                return True
            return await working.uncount_loss(tx, lease, note=why)

    async def expire_leases(self, *, on_buried: OnBuried | None = None) -> int:
        """Make jobs runnable whose lease has run out; bury those that lost too many."""
        async with self._database.transaction() as tx:
            expired, buried = await working.expire(tx, most=self._max_lost)
            if buried and on_buried is not None:
                await on_buried(tx, buried)
        return expired

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete finished jobs, never dead letters, that ended so long ago."""
        async with self._database.statements() as tx:
            return len(await pg(tx).rows(_PRUNE, age=older_than, limit=limit))

    # looking

    async def job(self, job_id: JobId, *, owner: Scope | None = None) -> Job | None:
        """One job, or None."""
        async with self._looking(owner) as tx:
            row = (await pg(tx).execute(select(JOBS).where(JOBS.c.id == job_id))).first()
        return None if row is None else job_of(row)

    async def jobs(
        self,
        *,
        owner: Scope | None = None,
        states: Sequence[JobState] = (),
        kinds: Sequence[JobKind] = (),
        limit: int = 100,
    ) -> list[Job]:
        """Jobs that fit, the latest first."""
        wanted = select(JOBS).order_by(JOBS.c.created_at.desc(), JOBS.c.id).limit(limit)
        if owner is not None:
            wanted = wanted.where(JOBS.c.namespace == owner.namespace, JOBS.c.user_id == owner.user_column)
        if states:
            wanted = wanted.where(JOBS.c.state.in_([state.value for state in states]))
        if kinds:
            wanted = wanted.where(JOBS.c.kind.in_([kind.value for kind in kinds]))
        async with self._looking(owner) as tx:
            return [job_of(row) for row in (await pg(tx).execute(wanted)).all()]

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Every claim of a job, in order."""
        wanted = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_id == job_id).order_by(JOB_ATTEMPTS.c.number)
        async with self._looking(None) as tx:
            return [attempt_of(row) for row in (await pg(tx).execute(wanted)).all()]

    async def backlog(self) -> list[Backlog]:
        """Unfinished work by kind, each count up to 10,000."""
        async with self._looking(None) as tx:
            rows = await pg(tx).rows(_BACKLOG, kinds=[kind.value for kind in JobKind])
        return [
            Backlog(
                kind=JobKind(row.kind),
                runnable=row.ready + row.due,
                oldest_runnable_at=min((at for at in (row.ready_since, row.due_since) if at), default=None),
                running=row.running,
                waiting=row.waiting,
                dead=row.dead,
                replays=row.replays,
            )
            for row in rows
        ]

    async def spending(self, namespace: str, *, since: date, owner: Scope | None = None) -> list[Spending]:
        """What models have cost a namespace, or one of its owners, from that day on."""
        spent = SPENDING.c
        wanted = select(SPENDING).where(spent.namespace == namespace, spent.day >= since)
        if owner is not None:
            wanted = wanted.where(spent.user_id == owner.user_column)
        wanted = wanted.order_by(spent.day, spent.user_id, spent.kind, spent.model)
        async with self._database.transaction(namespace=namespace, read_only=True) as tx:
            return [spending_of(row) for row in (await pg(tx).execute(wanted)).all()]

    async def episode_states(self, job_id: JobId, *, owner: Scope | None = None) -> dict[JobKind, JobState]:
        """Where a store job and the jobs that follow it stand."""
        async with self._looking(owner) as tx:
            rows = await pg(tx).rows(_FOLLOWING, id=job_id)
        found: dict[JobKind, JobState] = {}
        for kind, state in ((JobKind(row.kind), JobState(row.state)) for row in rows):
            if kind not in found or found[kind] is JobState.DONE or (found[kind].is_final and not state.is_final):
                found[kind] = state  # of several jobs of a kind the one that is furthest from done
        return found

    def _looking(self, owner: Scope | None) -> AbstractAsyncContextManager[PgTransaction]:
        namespace = self._namespace if owner is None else owner.namespace
        return self._database.transaction(namespace=namespace, read_only=True)
