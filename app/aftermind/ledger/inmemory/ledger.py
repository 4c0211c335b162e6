"""`InMemoryLedger`: the ledger of one process; the conformance tests compare it with the Postgres ledger."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from heapq import heapify, heappop
from typing import Any
from uuid import UUID, uuid4

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryDatabase, MemoryTransaction, mem
from aftermind.ledger.inmemory import job_records
from aftermind.ledger.inmemory.job_records import UNFINISHED, WAITING, Record
from aftermind.ledger.job_timeline import MAX_WAITS, follow_ups_by_kind
from aftermind.ledger.protocol import Backlog, DailyUsage, Failure, ModelUsage, OnBuried, Tried, Unstored
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, Json, Lease, LeaseToken, NewJob, Scope, Turn
from aftermind.types.job import SERIAL_KINDS, FollowUp, failed_state, is_last_chance, together
from aftermind.types.job_admin import EndedHold, JobPause
from aftermind.types.session_order import Counted, counted, session_columns
from aftermind.wire.turn_encoding import decode_turn

# kept for receipts and `jobs`; the oldest are deleted first, since this store has no janitor
MAX_FINISHED_JOBS = 10_000
_CLEARED: Mapping[str, Any] = dict.fromkeys(("answer", "raw", "reason_code", "error", "fingerprint"))  # when it is done
OVERDUE = timedelta(seconds=2)  # a running process checks 20 times a second for due jobs


class InMemoryLedger:
    """The ledger in this process. See `Ledger` for what each method promises.

    The jobs are in one table by id. Two indexes hold ids: unfinished and dead jobs by kind, and finished jobs in the
    order of their end. So what a turn costs does not grow with the jobs that are done.
    """

    def __init__(self, database: MemoryDatabase, *, max_lost_leases: int = 3) -> None:
        self._database, self._max_lost = database, max_lost_leases
        database.followers["jobs"] = _follow_row

    # entering

    async def enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[JobId]:
        new = []
        for job in jobs:
            if job.id in jobs_table(tx) or list_unfinished(tx, job):
                continue
            now = self._database.now()
            put_record(
                tx,
                Record(
                    job=job_records.new_job(job, now, run_at=now + (job.delay or timedelta(0))),
                    plan=job.replay_plan_id,
                    weight=job.weight,
                ),
            )
            _follow(tx, job, job.id)
            new.append(job.id)
        return new

    async def debounce(
        self, tx: Transaction, jobs: Sequence[NewJob], *, quiet: timedelta, at_most: timedelta
    ) -> list[JobId]:
        return [self._debounced(tx, job, quiet, at_most) for job in jobs]

    def _debounced(self, tx: Transaction, job: NewJob, quiet: timedelta, at_most: timedelta) -> JobId:
        now = self._database.now()
        waiting = [record for record in list_unfinished(tx, job) if record.job.state is not JobState.RUNNING]
        if not waiting:
            made = job_records.new_job(job, now, run_at=now + min(quiet, at_most))
            put_record(tx, Record(job=made, due_by=now + at_most))
            _follow(tx, job, job.id)
            return job.id
        record = waiting[0]
        record = replace(record, job=replace(record.job, payload={**record.job.payload, **job.payload}))
        put_record(tx, record)
        if record.job.state is JobState.QUEUED and record.place is None:
            pushed = min(now + quiet, record.due_by or record.job.run_at)
            put_record(tx, replace(record, job=replace(record.job, run_at=pushed)))
        _follow(tx, job, record.job.id)
        return record.job.id

    async def record_stored(self, tx: Transaction, turns: Sequence[Turn]) -> frozenset[JobId]:
        new = set()
        for turn in turns:
            if _is_new(tx, turn):
                put_record(tx, Record(job=job_records.make_store_job(turn, self._database.now(), JobState.DONE, None)))
                new.add(turn.job_id)
        return frozenset(new)

    async def record_forgotten(
        self, tx: Transaction, owner: Scope, ids: Sequence[JobId], *, closed: bool = False
    ) -> None:
        for id_ in ids:
            known = jobs_table(tx).get(id_)
            if known is None or closed:
                now = self._database.now()
                shell = job_records.make_job(id_, JobKind.STORE, owner.owner, JobState.FORGOTTEN, str(id_), now)
                put_record(tx, Record(job=shell))

    async def content_hash(self, tx: Transaction, owner: Scope, job_id: JobId) -> str | None:
        known = jobs_table(tx).get(job_id)
        if known is None or known.job.state is JobState.FORGOTTEN or known.job.scope.owner != owner.owner:
            return None
        found: str | None = known.job.payload.get("hash")
        return found

    async def accept(self, tx: Transaction, turn: Turn, payload: bytes) -> bool:
        if not _is_new(tx, turn):
            return False
        sessions, session = _last_of_sessions(tx, turn.scope.namespace), session_columns(turn.scope)
        last = sessions.get(session)
        put_record(tx, Record(job=job_records.make_store_job(turn, self._database.now(), JobState.QUEUED, payload)))
        if last is not None:
            mem(tx).put(sessions, session, max(last, counted(turn), key=lambda each: each.position))
        return True

    async def accepted_order(self, tx: Transaction, scopes: Sequence[Scope]) -> dict[tuple[str, str], Counted]:
        found = {session_columns(scope): _last_accepted(tx, scope) for scope in scopes}
        return {session: last for session, last in found.items() if last is not None}

    async def unstored(self, tx: Transaction, owner: Scope) -> list[bytes]:
        mine = _unstored(tx, owner.namespace, owner.user_column)
        return [job.raw for job in sorted(mine, key=job_records.created) if job.raw is not None]

    async def measure_unstored(self, tx: Transaction, namespace: str, user: str | None, *, limit: int) -> Unstored:
        mine = _unstored(tx, namespace, user)[:limit]
        now = self._database.now()
        return Unstored(
            turns=len(mine),
            size_bytes=sum(len(job.raw or b"") for job in mine),
            oldest=max((now - job.created_at for job in mine), default=timedelta(0)),
        )

    async def list_turn_payloads(self, tx: Transaction, owner: Scope) -> list[tuple[JobId, bytes]]:
        jobs = [record.job for record in _live(tx, JobKind.STORE)]  # a finished one has no payload
        return [(job.id, job.raw) for job in jobs if job.raw is not None and job.scope.owner == owner.owner]

    async def rewrite_turn(self, tx: Transaction, job_id: JobId, payload: bytes | None) -> None:
        record = jobs_table(tx)[job_id]
        if payload is None:
            job = replace(record.job, raw=None, state=JobState.FORGOTTEN, updated_at=self._database.now())
            put_record(tx, replace(record, job=job, token=None, place=None, edited=None))
        else:
            put_record(tx, replace(record, job=replace(record.job, raw=payload), edited=None))

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
        # A lease that a crash undoes is claimed again; what its holder writes comes after it.
        async with self._database.transaction(is_awaited=False) as tx:
            now = self._database.now()
            chosen: list[Record] = []
            size = 0
            paused = _paused_namespaces(tx, kind)
            waiting = self._placed(tx, kind, now)
            if None in paused:
                return []
            runnable = _runnable(waiting, replays=replays)
            for record in runnable if weight is None else job_records.order_by_start(list(runnable)):
                if weight is not None and sum(each.weight for each in chosen) >= weight:
                    break
                if ids is not None and record.job.id not in ids:
                    continue
                if record.job.scope.namespace in except_namespaces or record.job.scope.namespace in paused:
                    continue
                if kind in SERIAL_KINDS and _session_is_taken(tx, record, chosen):
                    continue
                lost = chosen[0].job.lost_leases if chosen else record.job.lost_leases
                if record.job.lost_leases != lost:
                    continue
                most = together(limit, lost, most=self._max_lost, alone=alone)
                size += len(record.job.raw or b"")
                if chosen and size_bytes is not None and size > size_bytes:
                    break
                if len(chosen) < most:
                    chosen.append(record)
                if len(chosen) == most:
                    break
            chosen = [replace(record, opening=self._database.opening) for record in chosen]
            return [_leased(tx, record, worker, now, for_) for record in chosen]

    async def last_chance_is_next(
        self, kind: JobKind, *, replays: bool = False, except_namespaces: Sequence[str] = ()
    ) -> bool:
        async with self._database.transaction(read_only=True) as tx:
            for record in _runnable(_live(tx, kind), replays=replays):
                if record.job.scope.namespace in except_namespaces:
                    continue
                if kind not in SERIAL_KINDS or not _session_is_taken(tx, record, []):
                    return is_last_chance(record.job.lost_leases, most=self._max_lost)
            return False

    async def heartbeat(self, leases: Sequence[Lease], *, for_: timedelta) -> frozenset[LeaseToken]:
        async with self._database.transaction() as tx:
            held = [record for lease in leases if (record := _held(tx, lease)) is not None]
            for record in held:
                put_record(tx, replace(record, until=self._database.now() + for_))
            return frozenset(record.token for record in held if record.token is not None)

    async def finish(
        self, tx: Transaction, lease: Lease, *, spent: ModelUsage | None = None, note: str | None = None
    ) -> None:
        self._close(tx, lease, JobState.DONE, "done", spent=spent, note=note)

    async def hold(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        return frozenset(lease.job.id for lease in leases if _held(tx, lease) is not None)

    async def finish_all(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        held = [lease for lease in leases if _held(tx, lease) is not None]
        for lease in held:
            self._close(tx, lease, JobState.DONE, "done")
        return frozenset(lease.job.id for lease in held)

    async def save_answer(self, lease: Lease, answer: Mapping[str, Json], *, spent: ModelUsage) -> None:
        async with self._database.transaction() as tx:
            _pay(tx, lease, spent, self._database.now())
            record = _held(tx, lease)
            if record is not None:
                put_record(tx, job_records.counted(replace(record, job=replace(record.job, answer=answer)), spent))
        if record is None:
            raise errors.LeaseLost(lease.job.id)

    async def spend(self, costs: Sequence[tuple[Lease, ModelUsage]]) -> None:
        async with self._database.transaction() as tx:
            for lease, spent in costs:
                _pay(tx, lease, spent, self._database.now())
                if (record := _held(tx, lease)) is not None:
                    put_record(tx, job_records.counted(record, spent))

    async def retry(self, lease: Lease, failure: Failure, *, after: timedelta, spent: ModelUsage | None = None) -> None:
        async with self._database.transaction() as tx:
            self._close(tx, lease, JobState.RETRYING, "failed", after=after, failure=failure, spent=spent)

    async def snooze(self, lease: Lease, *, after: timedelta, why: str) -> None:
        async with self._database.transaction() as tx:
            self._close(tx, lease, JobState.QUEUED, "snoozed", after=after, give_back=True, note=why)
            _keep_wait(tx, jobs_table(tx)[lease.job.id], number=lease.job.attempts, why=why)

    async def mark_dead(
        self, tx: Transaction | None, lease: Lease, failure: Failure, *, spent: ModelUsage | None = None
    ) -> None:
        state = failed_state(lease.job.kind)
        if tx is not None:
            self._close(tx, lease, state, "dead", failure=failure, spent=spent)
            return
        async with self._database.transaction() as own:
            self._close(own, lease, state, "dead", failure=failure, spent=spent)

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
        known = jobs_table(tx).get(job_id)
        if known is not None and known.job.state not in (*WAITING, JobState.DEAD):
            return False
        now, tried = self._database.now(), tried or Tried()
        job = job_records.make_job(
            job_id, JobKind.STORE, owner, JobState.DEAD, str(job_id), now, raw=payload, attempts=tried.attempts
        )
        put_record(
            tx,
            Record(
                job=job_records.failed(job, failure), attempts=job_records.make_attempts(job_id, tried, failure, now)
            ),
        )
        return True

    async def note_lost_leases(self, tx: Transaction, lost: Mapping[JobId, Tried]) -> None:
        for job_id, tried in lost.items():
            record = jobs_table(tx).get(job_id)
            if record is not None:
                job = replace(record.job, lost_leases=tried.lost_leases, attempts=tried.attempts)
                put_record(tx, replace(record, job=job, attempts=job_records.lost_attempts(job_id, tried)))

    async def return_leases(self, leases: Sequence[Lease], *, why: str, uncount_loss: bool = False) -> frozenset[JobId]:
        """Hand back as `snooze`: this store is never away, so no lease runs out for want of it."""
        returned: set[JobId] = set()
        for lease in leases:
            with suppress(errors.LeaseLost):
                async with self._database.transaction() as tx:
                    self._close(tx, lease, JobState.QUEUED, "snoozed", after=timedelta(0), give_back=True, note=why)
                returned.add(lease.job.id)
        return frozenset(returned)

    async def return_claim(self, claim_id: UUID, *, worker: str, why: str) -> int:
        """0: in one process no answer is lost."""
        return 0

    async def expire_leases(self, *, on_buried: OnBuried | None = None) -> Counter[JobKind]:
        async with self._database.transaction() as tx:
            now = self._database.now()
            gone = [
                record
                for kind in JobKind
                for record in _live(tx, kind)
                if record.job.state is JobState.RUNNING and self._is_lost(record, now)
            ]
            dead_letters: list[tuple[Job, Failure]] = []
            for record in gone:
                lost = record.job.lost_leases + 1
                job = replace(record.job, lost_leases=lost, run_at=now, updated_at=now, state=JobState.QUEUED)
                if lost >= self._max_lost:
                    failure = job_records.worker_lost(lost)
                    job = replace(job_records.failed(job, failure), state=failed_state(job.kind))
                    dead_letters += [(job, failure)] if job.state is JobState.DEAD else []
                put_record(
                    tx,
                    job_records.end_attempt(
                        replace(record, job=job, token=None, until=None, place=None), now, "lost", None
                    ),
                )
            if dead_letters and on_buried is not None:
                await on_buried(tx, dead_letters)
            return Counter(record.job.kind for record in gone)

    async def has_abandoned(self) -> bool:
        """Whether a lease is lost, or a job has been due for so long that the process that put it in may have ended."""
        async with self._database.transaction(read_only=True) as tx:
            now = self._database.now()
            return any(
                self._is_lost(record, now)
                if record.job.state is JobState.RUNNING
                else record.job.state in WAITING and record.job.run_at < now - OVERDUE
                for kind in JobKind
                if None not in (paused := _paused_namespaces(tx, kind))
                for record in _live(tx, kind)
                if record.job.scope.namespace not in paused
            )

    def _is_lost(self, record: Record, now: datetime) -> bool:
        """A lease that ran out, or that a process held which has ended."""
        return self._database.has_ended(record.opening) or (record.until is not None and record.until < now)

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        async with self._database.transaction() as tx:
            before = self._database.now() - older_than
            old: list[JobId] = []
            for id_ in _finished(tx):  # in the order of their end
                if len(old) == limit or jobs_table(tx)[id_].job.updated_at >= before:
                    break
                old.append(id_)
            for id_ in old:
                _drop(tx, id_)
            holds: dict[UUID, EndedHold] = mem(tx).table("hold_history")
            for hold_id in [each for each, hold in holds.items() if hold.ended_at < before][:limit]:
                mem(tx).drop(holds, hold_id)
            return len(old)

    # queries

    async def job(self, job_id: JobId, *, owner: Scope | None = None) -> Job | None:
        async with self._database.transaction(read_only=True) as tx:
            record = jobs_table(tx).get(job_id)
            return None if record is None else record.job

    async def successor(self, job: Job) -> Job | None:
        async with self._database.transaction(read_only=True) as tx:
            found = [each.job for each in jobs_table(tx).values() if each.job.origin_job_id == job.id]
        return max(found, key=lambda each: each.created_at, default=None)

    async def jobs(
        self,
        *,
        owner: Scope | None = None,
        states: Sequence[JobState] = (),
        kinds: Sequence[JobKind] = (),
        limit: int = 100,
    ) -> list[Job]:
        async with self._database.transaction(read_only=True) as tx:
            found = [
                record.job
                for record in jobs_table(tx).values()
                if (owner is None or record.job.scope.owner == owner.owner)
                and (not states or record.job.state in states)
                and (not kinds or record.job.kind in kinds)
            ]
        return sorted(found, key=job_records.created, reverse=True)[:limit]

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        async with self._database.transaction(read_only=True) as tx:
            record = jobs_table(tx).get(job_id)
            return [] if record is None else list(record.attempts)

    async def backlog(self) -> list[Backlog]:
        async with self._database.transaction(read_only=True) as tx:
            now = self._database.now()
            jobs = {kind: [record.job for record in _live(tx, kind)] for kind in JobKind}
            paused = {kind: _paused_namespaces(tx, kind) for kind in JobKind}
            holds: list[EndedHold] = list(mem(tx).table("hold_history").values())
        ended = [hold for hold in holds if hold.job_id is None]
        return [
            job_records.count_backlog(
                kind, jobs[kind], now, paused=paused[kind], ended=[each for each in ended if each.kind in (None, kind)]
            )
            for kind in JobKind
        ]

    async def spending(self, namespace: str, *, since: date | None, owner: Scope | None = None) -> list[DailyUsage]:
        async with self._database.transaction(read_only=True) as tx:
            first = since or self._database.now().date()
            rows: list[DailyUsage] = list(mem(tx).table("spending").values())
        mine = [each for each in rows if owner is None or each.owner == owner.owner]
        found = [each for each in mine if each.owner.namespace == namespace and each.day >= first]
        return sorted(found, key=lambda each: (each.day, each.owner.user_column, each.kind, each.spent.model or ""))

    async def follow_ups(self, job_id: JobId, *, owner: Scope | None = None) -> dict[JobKind, FollowUp]:
        async with self._database.transaction(read_only=True) as tx:
            ids = [job_id, *mem(tx).table("follows").get(job_id, ())]
            return follow_ups_by_kind(jobs_table(tx)[id_].job for id_ in ids if id_ in jobs_table(tx))

    def _placed(self, tx: Transaction, kind: JobKind, now: datetime) -> list[Record]:
        """The jobs that wait; those whose time has come get their place: one after the owner's last, not before the
        one served now.
        """
        waiting = [each for each in _live(tx, kind) if each.job.state in WAITING]
        due = [each for each in waiting if each.place is None and each.job.run_at <= now]
        if not due:
            return waiting
        placed = [each for each in waiting if each.place is not None]
        served = min((each.place or 0 for each in placed), default=0)
        last: dict[tuple[str, str], int] = {}
        for each in placed:
            owner = _owner(each.job)
            last[owner] = max(each.place or 0, last.get(owner, 0))
        for each in sorted(due, key=lambda each: each.job.run_at):
            owner = _owner(each.job)
            last[owner] = max(served, last[owner] + 1 if owner in last else served)
            given = replace(each, place=last[owner])
            for rows in (jobs_table(tx), _live_index(tx, kind)):
                mem(tx).put(rows, each.job.id, given)
            placed.append(given)
        return placed

    def _close(
        self,
        tx: Transaction,
        lease: Lease,
        state: JobState,
        outcome: str,
        *,
        after: timedelta | None = None,
        give_back: bool = False,
        failure: Failure | None = None,
        spent: ModelUsage | None = None,
        note: str | None = None,
    ) -> None:
        record = _held(tx, lease)
        if record is None:
            raise errors.LeaseLost(lease.job.id)
        now = self._database.now()
        cleared = _CLEARED if state is JobState.DONE else {}
        job = replace(
            record.job,
            state=state,
            note=note,
            attempts=record.job.attempts - int(give_back),
            run_at=record.job.run_at if after is None else now + after,
            updated_at=now,
            **cleared,
        )
        if failure is not None:
            job = job_records.failed(job, failure if state is JobState.DEAD else replace(failure, answer=None))
        ended = replace(record, job=job, token=None, until=None, place=None)
        if spent is not None:
            ended = job_records.counted(ended, spent)
        put_record(tx, job_records.end_attempt(ended, now, outcome, failure))


def jobs_table(tx: Transaction) -> dict[JobId, Record]:
    """All jobs by id. `put_record` changes them."""
    return mem(tx).table("jobs")


def _owner(job: Job) -> tuple[str, str]:
    return job.scope.namespace, job.scope.user_column


def _is_new(tx: Transaction, turn: Turn) -> bool:
    """Also where all of an earlier turn of the same idempotency key was forgotten."""
    known = jobs_table(tx).get(turn.job_id)
    return known is None or known.job.state is JobState.FORGOTTEN


def _live(tx: Transaction, kind: JobKind) -> list[Record]:
    """Unfinished and dead jobs of the kind, in the order in which they came."""
    return list(_live_index(tx, kind).values())


def _live_index(tx: Transaction, kind: JobKind) -> dict[JobId, Record]:
    def build() -> dict[JobId, Record]:
        mine = [each for each in jobs_table(tx).values() if each.job.kind is kind and not _is_finished(each)]
        return {each.job.id: each for each in sorted(mine, key=lambda each: job_records.created(each.job))}

    return mem(tx).index(f"live_jobs:{kind}", build)


def _unstored(tx: Transaction, namespace: str, user: str | None) -> list[Job]:
    """Accepted turns of a namespace, or of one of its users (`Scope.user_column`), that are not stored yet."""
    jobs, users = jobs_table(tx), _unstored_ids(tx, namespace)
    chosen = users.values() if user is None else [users.get(user, {})]
    found = [jobs[id_].job for ids in chosen for id_ in ids]
    return [job for job in found if _is_unstored(job)]


def _unstored_ids(tx: Transaction, namespace: str) -> dict[str, dict[JobId, None]]:
    """By user."""

    def build() -> dict[str, dict[JobId, None]]:
        users: dict[str, dict[JobId, None]] = {}
        for job in (record.job for record in _live(tx, JobKind.STORE)):
            if job.scope.namespace == namespace and _is_unstored(job):
                users.setdefault(job.scope.user_column, {})[job.id] = None
        return users

    return mem(tx).index(f"unstored_turns:{namespace}", build)


def _last_accepted(tx: Transaction, scope: Scope) -> Counted | None:
    """The last turn of the session that is accepted and not stored. Read from payloads once a session, then kept."""
    key, known = session_columns(scope), _last_of_sessions(tx, scope.namespace)
    if key not in known:
        jobs = [jobs_table(tx)[id_].job for id_ in _unstored_ids(tx, scope.namespace).get(scope.user_column, {})]
        turns = [decode_turn(job.raw) for job in jobs if job.raw is not None and session_columns(job.scope) == key]
        if not turns:
            return None
        mem(tx).put(known, key, max((counted(turn) for turn in turns), key=lambda each: each.position))
    return known[key]


def _last_of_sessions(tx: Transaction, namespace: str) -> dict[tuple[str, str], Counted]:
    """See `_last_accepted`; dropped when that turn is stored, or a turn comes from another process."""
    return mem(tx).index(f"last_unstored:{namespace}", dict)


def _is_unstored(job: Job) -> bool:
    return job.kind is JobKind.STORE and job.state in UNFINISHED and job.raw is not None


def _finished(tx: Transaction) -> dict[JobId, None]:
    def build() -> dict[JobId, None]:
        ended = [each.job for each in jobs_table(tx).values() if _is_finished(each)]
        return {job.id: None for job in sorted(ended, key=lambda job: job.updated_at)}

    return mem(tx).index("finished_jobs", build)


def _is_finished(record: Record) -> bool:
    return record.job.state not in (*UNFINISHED, JobState.DEAD)


def put_record(tx: Transaction, record: Record) -> None:
    """Set a job, and its place in the indexes."""
    run, job_id = mem(tx), record.job.id
    known = jobs_table(tx).get(job_id)
    live, finished = _live_index(tx, record.job.kind), _finished(tx)
    if record.job.kind is JobKind.STORE:
        _put_unstored(tx, record.job)
    run.put(jobs_table(tx), job_id, record)
    if not _is_finished(record):
        run.drop(finished, job_id)
        run.put(live, job_id, record)
        return
    run.drop(live, job_id)
    if job_id in finished and known is not None and known.job.updated_at != record.job.updated_at:
        run.drop(finished, job_id)  # a finished job that was forgotten ends again: it moves behind the others
    if job_id not in finished:
        run.put(finished, job_id, None)
    while len(finished) > MAX_FINISHED_JOBS:  # by more than one after an erasure
        _drop(tx, next(iter(finished)))


def _follow_row(tx: MemoryTransaction, job_id: JobId, record: Record | None) -> None:
    """Take over a job that another process has changed, or deleted."""
    if record is not None:
        put_record(tx, record)
    elif job_id in jobs_table(tx):
        _drop(tx, job_id)


def _put_unstored(tx: Transaction, job: Job) -> None:
    run, users = mem(tx), _unstored_ids(tx, job.scope.namespace)
    user = job.scope.user_column
    if _is_unstored(job):
        if user not in users:
            run.put(users, user, {})
        if job.id not in users[user]:
            run.put(users[user], job.id, None)
            run.drop(_last_of_sessions(tx, job.scope.namespace), session_columns(job.scope))
    elif user in users:
        _drop_unstored(tx, job)
        if not users[user]:
            run.drop(users, user)


def _drop_unstored(tx: Transaction, job: Job) -> None:
    run, last, session = mem(tx), _last_of_sessions(tx, job.scope.namespace), session_columns(job.scope)
    run.drop(_unstored_ids(tx, job.scope.namespace).get(job.scope.user_column, {}), job.id)
    if session in last and last[session].job_id == job.id:
        run.drop(last, session)


def _drop(tx: Transaction, job_id: JobId) -> None:
    run = mem(tx)
    record = jobs_table(tx)[job_id]
    if record.job.kind is JobKind.STORE:
        _drop_unstored(tx, record.job)
    for rows in (_finished(tx), _live_index(tx, record.job.kind), jobs_table(tx), run.table("follows")):
        run.drop(rows, job_id)


def _keep_wait(tx: Transaction, record: Record, *, number: int, why: str) -> None:
    """Why a job whose claim was given back waits; one row while the reason is the same, without an attempt between."""
    holds: dict[UUID, EndedHold] = mem(tx).table("hold_history")
    job = record.job
    earlier = [(id_, hold) for id_, hold in holds.items() if hold.job_id == job.id and hold.ended_by is None]
    earlier.sort(key=lambda each: each[1].created_at)
    if earlier:
        id_, last = earlier[-1]
        between = (each.ended_at for each in record.attempts if each.number < number)
        if last.reason == why and not any(end is not None and end > last.created_at for end in between):
            mem(tx).put(holds, id_, replace(last, ended_at=job.run_at))
            return
    for id_, _ in earlier[: max(0, len(earlier) - MAX_WAITS + 1)]:
        mem(tx).drop(holds, id_)
    wait = EndedHold(
        kind=job.kind,
        namespace=job.scope.namespace,
        job_id=job.id,
        reason=why,
        created_at=job.updated_at,
        ended_at=job.run_at,
        ended_by=None,
    )
    mem(tx).put(holds, uuid4(), wait)


def _follow(tx: Transaction, job: NewJob, by: JobId) -> None:
    run: MemoryTransaction = mem(tx)
    table = run.table("follows")
    for followed in job.follows:
        if by not in table.get(followed, ()):
            run.put(table, followed, (*table.get(followed, ()), by))


def _pay(tx: Transaction, lease: Lease, spent: ModelUsage, now: datetime) -> None:
    if not (spent.calls or spent.tokens_in):
        return
    run: MemoryTransaction = mem(tx)
    owner, day, kind = lease.job.scope.owner, now.date(), lease.job.kind
    key = (owner, day, kind, spent.model)
    before: DailyUsage | None = run.table("spending").get(key)
    total = spent if before is None else job_records.together(before.spent, spent)
    run.put(run.table("spending"), key, DailyUsage(owner=owner, day=day, kind=kind, spent=total))


def list_unfinished(tx: Transaction, job: NewJob | Job) -> list[Record]:
    return [
        record
        for record in _live(tx, job.kind)
        if record.job.state in UNFINISHED
        and record.job.effect_key == job.effect_key
        and record.job.scope.namespace == job.scope.namespace
    ]


def _runnable(jobs: Sequence[Record], *, replays: bool) -> Iterator[Record]:
    """In their order. A claim takes few of many, so they are not sorted as a whole."""
    found = [
        (record.place, record.job.run_at, number, record)
        for number, record in enumerate(jobs)
        if record.place is not None and record.job.state in WAITING and (record.plan is not None) == replays
    ]
    heapify(found)
    while found:
        yield heappop(found)[-1]


def _paused_namespaces(tx: Transaction, kind: JobKind) -> set[str | None]:
    """The namespaces in which an operator has paused jobs of the kind; None is every one."""
    pauses: dict[tuple[str, str], JobPause] = mem(tx).table("job_pauses")
    return {each.namespace for each in pauses.values() if each.kind in (None, kind)}


def _session_is_taken(tx: Transaction, record: Record, chosen: Sequence[Record]) -> bool:
    def session(job: Job) -> tuple[Scope, str | None]:
        return job.scope.owner, job.scope.session_id

    running = [each.job for each in _live(tx, record.job.kind) if each.job.state is JobState.RUNNING]
    taken = [job for job in [*running, *(each.job for each in chosen)] if job.kind is record.job.kind]
    return any(session(job) == session(record.job) for job in taken)


def _leased(tx: Transaction, record: Record, worker: str, now: datetime, for_: timedelta) -> Lease:
    job = replace(record.job, state=JobState.RUNNING, attempts=record.job.attempts + 1, updated_at=now)
    token = LeaseToken(uuid4())
    begun = Attempt(job_id=job.id, number=job.attempts, worker=worker, started_at=now, ended_at=None, outcome=None)
    earlier = tuple(attempt for attempt in record.attempts if attempt.number != job.attempts)
    put_record(tx, replace(record, job=job, token=token, until=now + for_, attempts=(*earlier, begun)))
    return Lease(job=job, token=token, until=now + for_, worker=worker, weight=record.weight)


def _held(tx: Transaction, lease: Lease) -> Record | None:
    record = jobs_table(tx).get(lease.job.id)
    fits = record is not None and record.token == lease.token and record.job.state is JobState.RUNNING
    return record if fits else None
