"""A ledger to be held to its contract, and jobs for it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from aftermind.db.database_protocol import Database, Transaction
from aftermind.ledger.protocol import Backlog, Failure, Ledger
from aftermind.types import JobId, JobKind, JobState, Lease, NewJob, Scope
from aftermind.types.message import new_ids

LEASE = timedelta(seconds=30)
QUIET, AT_MOST = timedelta(seconds=8), timedelta(seconds=25)
FAILURE = Failure(reason_code="llm_bad_answer", error_class="BadModelAnswer", error="no JSON", fingerprint="f1")


class _RolledBack(Exception):
    """What ends a transaction that is to leave nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A ledger with its database, and a way to let time pass: by moving what is stored into the past."""

    db: Database
    ledger: Ledger
    pass_time: Callable[[timedelta], Awaitable[None]]

    async def put(self, *jobs: NewJob) -> list[JobId]:
        """Enqueue in a transaction of their own."""
        async with self.db.transaction() as tx:
            return await self.ledger.enqueue(tx, jobs)

    async def push(self, *jobs: NewJob) -> list[JobId]:
        """Debounce in a transaction of their own."""
        async with self.db.transaction() as tx:
            return await self.ledger.debounce(tx, jobs, quiet=QUIET, at_most=AT_MOST)

    async def claim(
        self, kind: JobKind = JobKind.EMBED, *, limit: int = 100, worker: str = "w1", alone: bool = True
    ) -> list[Lease]:
        """Claim as a worker does."""
        return await self.ledger.claim(kind, worker=worker, for_=LEASE, limit=limit, alone=alone)

    async def claim_one(self, kind: JobKind = JobKind.EMBED, *, worker: str = "w1") -> Lease:
        """The only job that can be claimed."""
        (lease,) = await self.claim(kind, worker=worker)
        return lease

    async def finish(self, lease: Lease) -> None:
        """Finish without an effect."""
        async with self.db.transaction() as tx:
            await self.ledger.finish(tx, lease)

    async def undone(self, work: Callable[[Transaction], Awaitable[object]]) -> None:
        """Do it in a transaction that rolls back."""
        with suppress(_RolledBack):
            async with self.db.transaction() as tx:
                await work(tx)
                raise _RolledBack

    async def state(self, job_id: JobId) -> JobState:
        """Where a job stands."""
        job = await self.ledger.job(job_id)
        assert job is not None
        return job.state

    async def backlog(self, kind: JobKind) -> Backlog:
        """The backlog of one kind."""
        return next(each for each in await self.ledger.backlog() if each.kind is kind)


def job(
    kind: JobKind = JobKind.EMBED,
    *,
    user: str | None = "alice",
    session: str | None = "s1",
    namespace: str = "default",
    key: str | None = None,
    run_in: timedelta | None = None,
    follows: Sequence[JobId] = (),
    weight: int = 1,
) -> NewJob:
    """A job of an effect of its own, unless a key is named."""
    job_id, _ = new_ids(0)
    return NewJob(
        id=job_id,
        kind=kind,
        scope=Scope(namespace=namespace, user_id=user, session_id=session),
        payload={"episodes": ["e1"]},
        effect_key=key or str(job_id),
        delay=run_in,
        follows=tuple(follows),
        weight=weight,
    )


def ids_of(leases: Sequence[Lease]) -> list[JobId]:
    """The jobs of leases, in order."""
    return [lease.job.id for lease in leases]
