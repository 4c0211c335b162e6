"""The ledger, its dead letters and its replays as a state machine beside a model, on a real Postgres.

The clock is moved by moving every stored time into the past: the database's own clock stays the only one in the code.
All durations are multiples of 30 s, so the moments that the machine itself takes never decide anything. Ids are
numbers in order, so that one that decides between equals does so alike whenever an example is run again.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.postgres.replay_step import step
from aftermind.ledger.protocol import Failure
from aftermind.ledger.replay_overrides import OverrideRules
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobId, JobKind, JobState, Lease, NewJob, Scope
from aftermind.types.replay import ItemState, JobFilter, PlanId, ReplayMode
from tests.support.replay_engine import SteppedReplays as Replays

T = TypeVar("T")
LEASE = 90  # seconds
MAX_LOST = 3
FAILURE = Failure(reason_code="llm_bad_answer", error_class="BadModelAnswer", error="no", fingerprint="f")
RULES = OverrideRules(extractors=frozenset({"openai:gpt-5"}))
KINDS = st.sampled_from([JobKind.EMBED, JobKind.EXTRACT])
UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)

_SHIFT = """
    UPDATE aftermind.jobs SET run_at = run_at - $1::interval, lease_until = lease_until - $1::interval,
           created_at = created_at - $1::interval, updated_at = updated_at - $1::interval;
    UPDATE aftermind.replay_plans SET due_at = due_at - $1::interval, resumed_at = resumed_at - $1::interval;
    UPDATE aftermind.replay_items SET updated_at = updated_at - $1::interval
"""
_EMPTY = "TRUNCATE aftermind.jobs, aftermind.job_attempts, aftermind.job_followups, aftermind.replay_plans CASCADE"


class Killed(Exception):
    """Whoever was at work is no more."""


@dataclass(slots=True)
class Modelled:
    """A job as it should be. Times in seconds of the model's clock."""

    kind: JobKind
    session: str
    key: str
    state: JobState = JobState.QUEUED
    attempts: int = 0
    lost: int = 0
    run_at: int = 0
    lease_until: int = 0
    token: object = None
    is_replay: bool = False
    effects: int = 0


class LedgerMachine(RuleBasedStateMachine):
    """Rules are what agents, workers, the reconciler, operators and time do."""

    url = ""
    leases = Bundle("leases")
    plans = Bundle("plans")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.database = PostgresDatabase(self.url)
        self.ledger = PostgresLedger(self.database, max_lost_leases=MAX_LOST, promote_every=timedelta(0))
        self.dead = DeadLetters(self.database)
        self.replays = Replays(self.database, rules=RULES)
        self.link = self.run(asyncpg.connect(self.url))
        self.run(self.link.execute(_EMPTY))
        self.jobs: dict[JobId, Modelled] = {}
        self.now = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On the machine's own loop."""
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.database.close())
        self.run(self.link.close())
        self.runner.close()

    @initialize(kind=KINDS, target=leases)
    def begin_with_work(self, kind: JobKind) -> Any:
        """Four jobs, one of them dead and one claimed: most of what can go wrong begins here."""
        for session, key in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")):
            self.enqueue(kind, session, key)
        [doomed] = self.claim(kind, 1, False, True).values
        self.bury(doomed)
        return self.claim(kind, 1, False, True)

    # agents

    @rule(
        kind=KINDS,
        session=st.sampled_from("ab"),
        key=st.sampled_from("xy"),
    )
    def enqueue(self, kind: JobKind, session: str, key: str) -> None:
        named = f"{session}-{key}"
        job = NewJob(
            id=JobId(UUID(int=len(self.jobs) + 1)),
            kind=kind,
            scope=Scope(user_id="u", session_id=session),
            effect_key=named,
        )
        is_known = any(one.kind is kind and one.key == named and one.state in UNFINISHED for one in self.jobs.values())

        new = self.run(self._enqueue(job))

        assert new == ([] if is_known else [job.id])
        if not is_known:
            self.jobs[job.id] = Modelled(kind=kind, session=session, key=named, run_at=self.now)

    async def _enqueue(self, job: NewJob) -> list[JobId]:
        async with self.database.transaction() as tx:
            return await self.ledger.enqueue(tx, [job])

    # workers

    @rule(
        target=leases,
        kind=KINDS,
        limit=st.integers(1, 3),
        replays=st.booleans(),
        alone=st.booleans(),
    )
    def claim(self, kind: JobKind, limit: int, replays: bool, alone: bool) -> Any:
        runnable = {job for job in self.jobs if self._is_runnable(job, kind, replays=replays)}

        taken = self.run(
            self.ledger.claim(
                kind, worker="w", for_=timedelta(seconds=LEASE), limit=limit, replays=replays, alone=alone
            )
        )

        ids = [lease.job.id for lease in taken]
        assert set(ids) <= runnable
        assert len(ids) <= limit
        last_chances = {job for job in runnable if self.jobs[job].lost == MAX_LOST - 1}
        assert bool(ids) == bool(runnable) or (last_chances and not alone)
        if not ids:
            assert self.run(self.ledger.last_chance_is_next(kind, replays=replays)) == bool(runnable)
        lost = {self.jobs[job].lost for job in ids}
        assert len(lost) <= 1, "jobs that lost leases come with others that lost as many"
        assert not lost - {0} or len(ids) <= max(1, limit // 8), "and fewer of them"
        assert MAX_LOST - 1 not in lost or (len(ids) == 1 and alone), "the last time each comes alone"
        for lease in taken:
            self._claimed(lease)
        return multiple(*taken)

    def _claimed(self, lease: Lease) -> None:
        job = self.jobs[lease.job.id]
        job.state, job.token, job.lease_until = JobState.RUNNING, lease.token, self.now + LEASE
        job.attempts += 1
        assert lease.job.attempts == job.attempts

    def _is_runnable(self, job_id: JobId, kind: JobKind, *, replays: bool) -> bool:
        job = self.jobs[job_id]
        if job.kind is not kind or job.is_replay is not replays:
            return False
        if job.state not in (JobState.QUEUED, JobState.RETRYING) or job.run_at > self.now:
            return False
        if kind is JobKind.EMBED:
            return True
        return not any(
            other.kind is kind and other.session == job.session and other.state is JobState.RUNNING
            for other in self.jobs.values()
        )

    def _holds(self, lease: Lease) -> bool:
        job = self.jobs[lease.job.id]
        return job.state is JobState.RUNNING and job.token == lease.token

    @rule(lease=leases)
    def heartbeat(self, lease: Lease) -> None:
        held = self.run(self.ledger.heartbeat([lease], for_=timedelta(seconds=LEASE)))

        assert held == (frozenset({lease.token}) if self._holds(lease) else frozenset())
        if held:
            self.jobs[lease.job.id].lease_until = self.now + LEASE

    @rule(lease=leases)
    def finish(self, lease: Lease) -> None:
        """Also by a zombie, whose token is old, and a second time by the same worker."""
        if self._close(lease, self._effect(lease)):
            job = self.jobs[lease.job.id]
            job.state, job.effects = JobState.DONE, job.effects + 1

    async def _effect(self, lease: Lease) -> None:
        async with self.database.transaction() as tx:
            await self.ledger.finish(tx, lease)

    @rule(lease=leases, after=st.sampled_from([0, 60, 180]))
    def fail(self, lease: Lease, after: int) -> None:
        if self._close(lease, self.ledger.retry(lease, FAILURE, after=timedelta(seconds=after))):
            job = self.jobs[lease.job.id]
            job.state, job.run_at = JobState.RETRYING, self.now + after

    @rule(lease=leases, after=st.sampled_from([0, 60]))
    def snooze(self, lease: Lease, after: int) -> None:
        if self._close(lease, self.ledger.snooze(lease, after=timedelta(seconds=after), why="outage")):
            job = self.jobs[lease.job.id]
            job.state, job.run_at, job.attempts = JobState.QUEUED, self.now + after, job.attempts - 1

    @rule(lease=leases)
    def bury(self, lease: Lease) -> None:
        if self._close(lease, self.ledger.mark_dead(None, lease, FAILURE)):
            self.jobs[lease.job.id].state = JobState.DEAD

    def _close(self, lease: Lease, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the fence let it through, which it has to exactly for who holds the lease."""
        held = self._holds(lease)
        try:
            self.run(work)
        except errors.LeaseLost:
            assert not held, "the holder of a lease was refused"
            return False
        assert held, "a zombie got through the fence"
        return True

    # time and the reconciler

    @rule(seconds=st.sampled_from([30, 60, 120]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.run(self._shift(timedelta(seconds=seconds)))

    async def _shift(self, by: timedelta) -> None:
        for statement in _SHIFT.split(";"):
            await self.link.execute(statement, by)

    @rule()
    def expire_leases(self) -> None:
        expired = [job for job in self.jobs.values() if job.state is JobState.RUNNING and job.lease_until <= self.now]

        assert self.run(self.ledger.expire_leases()).total() == len(expired)
        for job in expired:
            job.lost += 1
            job.state = JobState.DEAD if job.lost >= MAX_LOST else JobState.QUEUED
            job.run_at = self.now

    @rule(target=leases, kind=KINDS)
    def workers_vanish(self, kind: JobKind) -> Any:
        """Every lease runs out, and others take the jobs: whoever held one before is a zombie now."""
        self.time_passes(120)
        self.expire_leases()
        return self.claim(kind, 3, False, True)

    # operators

    @rule(target=plans, kind=KINDS, edited=st.booleans())
    def plan(self, kind: JobKind, edited: bool) -> Any:
        fits = sum(job.kind is kind and job.state is JobState.DEAD for job in self.jobs.values())
        is_edited = edited and kind is JobKind.EXTRACT
        mode = ReplayMode.EDITED if is_edited else ReplayMode.RETRY
        new = NewPlan(
            name="p",
            reason="r",
            actor="a",
            mode=mode,
            overrides={"model": "gpt-5"} if is_edited else {},
            rate=1_000.0,
            concurrency=3,
            max_failure_share=1.0,
        )
        try:
            made = self.run(self.replays.create(JobFilter(kinds=(kind,)), new))
        except errors.InvalidFilter:
            assert not fits
            return multiple()
        assert made.counts == {ItemState.WAITING: fits}
        self.run(self.replays.start(made.id))
        self.step(made.id)
        return made.id

    @rule(plan=plans)
    def step(self, plan: PlanId) -> None:
        self.run(self.replays.step(plan))
        self._learn_successors()

    @rule(plan=plans)
    def the_replayer_is_killed_in_a_step(self, plan: PlanId) -> None:
        """Its work is done and not committed: as if nothing had been. Then another one goes on."""
        before = self.run(self._states())

        self.run(self._killed_in_a_step(plan))

        assert self.run(self._states()) == before
        self.step(plan)

    async def _killed_in_a_step(self, plan: PlanId) -> None:
        with suppress(Killed):
            async with self.database.transaction() as tx:
                await step(tx, plan, limit=100)
                raise Killed

    @rule(plan=plans)
    def pause_and_resume(self, plan: PlanId) -> None:
        try:
            self.run(self.replays.pause(plan, note="n"))
        except errors.ReplayConflict:
            return
        before = self.run(self._states())
        assert self.run(self.replays.step(plan)).replayed == 0
        assert self.run(self._states()) == before
        self.run(self.replays.start(plan))

    @rule(plan=consumes(plans))
    def abort(self, plan: PlanId) -> None:
        try:
            self.run(self.replays.abort(plan, note="n"))
        except errors.ReplayConflict:
            return
        assert self.run(self.replays.step(plan)).replayed == 0

    @rule(kind=KINDS)
    def discard(self, kind: JobKind) -> None:
        closed = [job for job in self.jobs.values() if job.kind is kind and job.state is JobState.DEAD]

        assert self.run(self.dead.discard(JobFilter(kinds=(kind,)), note="n", actor="a")) == len(closed)
        for job in closed:
            job.state = JobState.DISCARDED

    def _learn_successors(self) -> None:
        """What a step may do: move dead letters to replayed, and put in a fresh job for each that has none to join."""
        rows = self.run(self.link.fetch("SELECT * FROM aftermind.jobs"))
        for row in rows:
            known = self.jobs.get(row["id"])
            if known is None:
                origin = self.jobs[row["origin_job_id"]]
                assert (row["state"], row["attempts"], row["lost_leases"]) == (JobState.QUEUED, 0, 0)
                self.jobs[JobId(row["id"])] = Modelled(
                    kind=origin.kind, session=origin.session, key=row["effect_key"], run_at=self.now, is_replay=True
                )
            elif row["state"] != known.state:
                assert (row["state"], known.state) in (
                    (JobState.REPLAYED, JobState.DEAD),
                    (JobState.REPLAYED, JobState.DISCARDED),
                )
                known.state = JobState.REPLAYED

    async def _states(self) -> dict[JobId, str]:
        return {row["id"]: row["state"] for row in await self.link.fetch("SELECT id, state FROM aftermind.jobs")}

    # what always holds

    @invariant()
    def every_job_is_as_modelled(self) -> None:
        rows = self.run(self.link.fetch("SELECT id, state, attempts, lost_leases FROM aftermind.jobs"))
        found = {row["id"]: (row["state"], row["attempts"], row["lost_leases"]) for row in rows}
        assert found == {key: (job.state, job.attempts, job.lost) for key, job in self.jobs.items()}

    @invariant()
    def an_effect_is_there_once_and_only_with_done(self) -> None:
        assert all(job.effects == (job.state is JobState.DONE) for job in self.jobs.values())
        done = "SELECT job_id FROM aftermind.job_attempts WHERE outcome = 'done' GROUP BY 1"
        found = {row["job_id"] for row in self.run(self.link.fetch(done))}
        assert found == {key for key, job in self.jobs.items() if job.state is JobState.DONE}

    @invariant()
    def an_effect_has_at_most_one_unfinished_job(self) -> None:
        unfinished = [(job.kind, job.key) for job in self.jobs.values() if job.state in UNFINISHED]
        assert len(unfinished) == len(set(unfinished))

    @invariant()
    def every_replayed_letter_has_exactly_one_successor(self) -> None:
        rows = self.run(
            self.link.fetch(
                "SELECT j.id, count(DISTINCT i.new_job_id) AS successors FROM aftermind.jobs j "
                "LEFT JOIN aftermind.replay_items i ON i.job_id = j.id AND i.new_job_id IS NOT NULL "
                "WHERE j.state = 'replayed' GROUP BY 1"
            )
        )
        assert all(row["successors"] == 1 for row in rows)

    @invariant()
    def a_letter_with_a_successor_is_a_dead_letter_no_more(self) -> None:
        rows = self.run(
            self.link.fetch(
                "SELECT i.job_id FROM aftermind.replay_items i JOIN aftermind.jobs j ON j.id = i.job_id "
                "WHERE i.new_job_id IS NOT NULL AND j.state IN ('dead', 'discarded')"
            )
        )
        assert not rows

    @invariant()
    def an_ended_attempt_is_closed(self) -> None:
        rows = self.run(
            self.link.fetch(
                "SELECT a.job_id FROM aftermind.job_attempts a JOIN aftermind.jobs j ON j.id = a.job_id "
                "WHERE a.ended_at IS NULL AND (j.state <> 'running' OR a.number < j.attempts)"
            )
        )
        assert not rows
