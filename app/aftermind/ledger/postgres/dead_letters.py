"""Dead letters in Postgres: listed, grouped, closed with a note. Nothing here removes one."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Row, and_, bindparam, func, or_, select, text, true, update

from aftermind import errors
from aftermind.db.audit.log import Trail
from aftermind.db.database_protocol import Database
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import JOB_ATTEMPTS, JOBS
from aftermind.ledger.postgres.rows import to_attempt, to_job
from aftermind.ledger.replay_protocol import DEAD, check_note, matching_states
from aftermind.types import Job, JobId, JobKind, JobState, Json
from aftermind.types.audit import Action
from aftermind.types.job import LEASE_LOST
from aftermind.types.replay import MAX_DEAD_LETTERS, DeadGroup, DeadLetter, JobFilter
from aftermind.types.whole_number import check_whole_number

# By the plans, whose items are indexed by job; a merged successor has another origin, or none.
_SUCCESSORS = text(
    "SELECT DISTINCT new_job_id AS id FROM aftermind.replay_items WHERE job_id = :job AND new_job_id IS NOT NULL"
)


class DeadLetters:
    """The dead letters of one ledger: of one tenant, or (`namespace` None, as the relay) of all."""

    def __init__(self, database: Database, *, namespace: str | None = None, trail: Trail | None = None) -> None:
        self._database, self._namespace, self._trail = database, namespace, trail

    async def list(self, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
        """Those that fit, the latest dead first."""
        check_whole_number(limit, most=MAX_DEAD_LETTERS, error=errors.InvalidFilter)
        # Locks nothing; `jobs_dead` serves kind and fingerprint, `jobs_owner` an owner.
        statement = select(JOBS).where(conditions(wanted, matching_states(wanted)))
        statement = statement.order_by(JOBS.c.updated_at.desc(), JOBS.c.id).limit(limit)
        async with self._database.transaction(namespace=self._namespace, read_only=True) as tx:
            return [to_job(row) for row in (await pg(tx).execute(statement)).all()]

    async def groups(self, wanted: JobFilter, *, limit: int = 100) -> Sequence[DeadGroup]:
        """Those that fit by kind, reason and fingerprint, the largest group first."""
        jobs = JOBS.c
        key = (jobs.kind, func.coalesce(jobs.reason_code, "").label("reason_code"))
        grouped = (*key, func.coalesce(jobs.fingerprint, "").label("fingerprint"))
        statement = (
            select(
                *grouped,
                func.max(jobs.error).label("error"),
                func.count().label("jobs"),
                func.count(jobs.namespace.distinct()).label("namespaces"),
                func.min(jobs.updated_at).label("oldest"),
                func.max(jobs.updated_at).label("newest"),
            )
            .where(conditions(wanted, matching_states(wanted)))
            .group_by(*grouped)
            .order_by(func.count().desc(), jobs.kind)
            .limit(limit)
        )
        async with self._database.transaction(namespace=self._namespace, read_only=True) as tx:
            return [_group(row) for row in (await pg(tx).execute(statement)).all()]

    async def get(self, job_id: JobId) -> DeadLetter | None:
        """One job whole, dead or not any more; None where there is no such job."""
        async with self._database.transaction(namespace=self._namespace, read_only=True) as tx:
            row = (await pg(tx).execute(select(JOBS).where(JOBS.c.id == job_id))).first()
            if row is None:
                return None
            tried = select(JOB_ATTEMPTS).where(JOB_ATTEMPTS.c.job_id == job_id).order_by(JOB_ATTEMPTS.c.number)
            attempts = (await pg(tx).execute(tried)).all()
            successors = await pg(tx).rows(_SUCCESSORS, job=job_id)
            named = select(JOBS).where(JOBS.c.id.in_([each.id for each in successors])).order_by(JOBS.c.created_at)
            followed = (await pg(tx).execute(named)).all() if successors else []
        return DeadLetter(
            job=to_job(row),
            attempts=tuple(to_attempt(each) for each in attempts),
            raw=None if row.raw is None else bytes(row.raw),
            note=row.note,
            successors=tuple(to_job(each) for each in followed),
        )

    async def discard(self, wanted: JobFilter, *, note: str, actor: str) -> int:
        """Close those that fit, with a note; how many. They stay readable, and can still be replayed by id."""
        check_note(note, actor)
        # Locks the rows it closes; a replay that has locked one first leaves it replayed, and it is passed over here.
        statement = (
            update(JOBS)
            .where(conditions(wanted, DEAD))
            .values(
                state=JobState.DISCARDED.value,
                former_state=JobState.DEAD.value,
                action_id=uuid4(),
                note=bindparam("said"),
                updated_at=func.now(),
            )
            .returning(JOBS.c.namespace)
        )
        async with self._database.transaction(namespace=self._namespace) as tx:
            done = await pg(tx).execute(statement, {"said": f"{note.strip()} ({actor.strip()})"})
            counts = Counter(row.namespace for row in done.all())
            if self._trail is not None:
                for namespace, count in sorted(counts.items()):  # sorted: two that discard never wait crosswise
                    said: dict[str, Json] = {"jobs": count, "note": note.strip()}
                    await self._trail.append(tx, namespace, Action.DISCARD, actor=actor.strip(), detail=said)
        if self._trail is not None:
            await self._trail.anchor()
        return counts.total()


def conditions(wanted: JobFilter, states: Sequence[str]) -> ColumnElement[bool]:
    """What a filter asks of a row of `jobs`."""
    jobs = JOBS.c
    asked: list[ColumnElement[bool]] = [jobs.state.in_(states)]
    if wanted.ids:
        asked.append(jobs.id.in_(wanted.ids))
    if wanted.kinds:
        asked.append(jobs.kind.in_([kind.value for kind in wanted.kinds]))
    if wanted.reasons:
        asked.append(jobs.reason_code.in_(wanted.reasons))
    if wanted.error is not None:
        part = wanted.error.lower()
        has_part = func.strpos(func.lower(jobs.error), part) > 0
        asked.append(or_(has_part, jobs.lost_leases > 0) if part in LEASE_LOST else has_part)
    same = {"fingerprint": wanted.fingerprint, "namespace": wanted.namespace, "user_id": wanted.user_id}
    same["session_id"] = wanted.session_id
    if wanted.action_id is not None:
        asked.append(jobs.action_id == wanted.action_id)
    asked += [jobs[name] == value for name, value in same.items() if value is not None]
    if wanted.since is not None:
        asked.append(jobs.updated_at >= wanted.since)
    if wanted.until is not None:
        asked.append(jobs.updated_at < wanted.until)
    return and_(true(), *asked)


def _group(row: Row[Any]) -> DeadGroup:  # Any: a row of `groups`
    return DeadGroup(
        kind=JobKind(row.kind),
        reason_code=row.reason_code,
        fingerprint=row.fingerprint,
        error=row.error or "",
        count=row.jobs,
        namespaces=row.namespaces,
        oldest=row.oldest,
        newest=row.newest,
    )
