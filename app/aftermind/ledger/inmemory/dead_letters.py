"""Dead letters in one process: listed, grouped, closed with a note."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryDatabase, mem
from aftermind.ledger.inmemory import job_records
from aftermind.ledger.inmemory.ledger import jobs_table, put_record
from aftermind.ledger.replay_protocol import check_note, matching_states
from aftermind.types import Job, JobId, JobKind, JobState
from aftermind.types.job import LEASE_LOST, check_transition
from aftermind.types.job_admin import JobActionId
from aftermind.types.replay import MAX_DEAD_LETTERS, DeadGroup, DeadLetter, JobFilter
from aftermind.types.whole_number import check_whole_number


class InMemoryDeadLetters:
    """See `DeadLetters`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def list(self, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
        check_whole_number(limit, most=MAX_DEAD_LETTERS, error=errors.InvalidFilter)
        async with self._database.transaction(read_only=True) as tx:
            found = [each.job for each in jobs_table(tx).values() if fits(each, wanted, matching_states(wanted))]
        return sorted(found, key=lambda job: job.updated_at, reverse=True)[:limit]

    async def groups(self, wanted: JobFilter, *, limit: int = 100) -> Sequence[DeadGroup]:
        alike: dict[tuple[str, str, str], list[Job]] = {}
        for job in await self.list(wanted, limit=MAX_DEAD_LETTERS):
            alike.setdefault((job.kind, job.reason_code or "", job.fingerprint or ""), []).append(job)
        found = [
            DeadGroup(
                kind=jobs[0].kind,
                reason_code=reason,
                fingerprint=fingerprint,
                error=max(job.error or "" for job in jobs),
                count=len(jobs),
                namespaces=len({job.scope.namespace for job in jobs}),
                oldest=min(job.updated_at for job in jobs),
                newest=max(job.updated_at for job in jobs),
            )
            for (_, reason, fingerprint), jobs in alike.items()
        ]
        return sorted(found, key=lambda group: (-group.count, group.kind))[:limit]

    async def get(self, job_id: JobId) -> DeadLetter | None:
        async with self._database.transaction(read_only=True) as tx:
            record = jobs_table(tx).get(job_id)
            if record is None:
                return None
            successors = [each.job for each in jobs_table(tx).values() if each.job.origin_job_id == job_id]
        job = record.job
        return DeadLetter(job=job, attempts=record.attempts, raw=job.raw, note=job.note, successors=tuple(successors))

    async def discard(self, wanted: JobFilter, *, note: str, actor: str) -> int:
        check_note(note, actor)
        async with self._database.transaction() as tx:
            said = f"{note.strip()} ({actor.strip()})"
            counts = await discard(tx, wanted, (JobState.DEAD,), action=JobActionId(uuid4()), note=said)
        return counts.total()


async def discard(
    tx: Transaction, wanted: JobFilter, states: Sequence[JobState], *, action: JobActionId, note: str
) -> Counter[str]:
    """See `ledger.postgres.job_admin.discard`."""
    now, counts = mem(tx).database.now(), Counter[str]()
    chosen = [state.value for state in states if not wanted.states or state in wanted.states]
    for record in [each for each in jobs_table(tx).values() if fits(each, wanted, chosen)]:
        job = record.job
        if job.kind is JobKind.STORE and job.state is not JobState.DEAD:
            continue
        check_transition(job.state, JobState.DISCARDED)
        ended = job_records.end_attempt(record, now, "cancelled", None) if job.state is JobState.RUNNING else record
        closed = replace(job, state=JobState.DISCARDED, note=note, updated_at=now)
        closed_record = replace(ended, job=closed, token=None, until=None, place=None)
        put_record(tx, replace(closed_record, action_id=action, former_state=job.state))
        counts[job.scope.namespace] += 1
    return counts


def fits(record: job_records.Record, wanted: JobFilter, states: Sequence[str]) -> bool:
    """See `JobFilter`."""
    job = record.job
    given = {"fingerprint": (wanted.fingerprint, job.fingerprint), "namespace": (wanted.namespace, job.scope.namespace)}
    given["user_id"] = (wanted.user_id, job.scope.user_column)
    given["session_id"] = (wanted.session_id, job.scope.session_id)
    return (
        job.state in states
        and wanted.action_id in (None, record.action_id)
        and (not wanted.ids or job.id in wanted.ids)
        and (not wanted.kinds or job.kind in wanted.kinds)
        and (not wanted.reasons or job.reason_code in wanted.reasons)
        and (wanted.error is None or _has_error(job, wanted.error.lower()))
        and all(one is None or one == other for one, other in given.values())
        and (wanted.since is None or job.updated_at >= wanted.since)
        and (wanted.until is None or job.updated_at < wanted.until)
    )


def _has_error(job: Job, text: str) -> bool:
    return text in (job.error or "").lower() or (job.lost_leases > 0 and text in LEASE_LOST)
