"""What every ledger promises, whichever database keeps it. Bound to each in `test_ledgers.py`."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pytest

from aftermind import errors
from aftermind.db.base import Database, Transaction
from aftermind.ledger.base import Backlog, Failure, Ledger, Spent
from aftermind.types import JobId, JobKind, JobState, Lease, NewJob, Scope
from aftermind.types.message import new_ids
from tests.support.turns import turn_of

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

    async def claim(self, kind: JobKind = JobKind.EMBED, *, limit: int = 100, worker: str = "w1") -> list[Lease]:
        """Claim as a worker does."""
        return await self.ledger.claim(kind, worker=worker, for_=LEASE, limit=limit)

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
) -> NewJob:
    """A job of an effect of its own, unless a key is named."""
    job_id, _ = new_ids(0)
    return NewJob(
        id=job_id,
        kind=kind,
        scope=Scope(namespace=namespace, user_id=user, session_id=session),
        payload={"episodes": ["e1"]},
        effect_key=key or str(job_id),
        run_at=None if run_in is None else datetime.now(UTC) + run_in,
        follows=tuple(follows),
    )


def ids_of(leases: Sequence[Lease]) -> list[JobId]:
    """The jobs of leases, in order."""
    return [lease.job.id for lease in leases]


class LedgerContract:
    """Subclasses give the fixture `rig`."""

    # entering

    async def test_a_second_job_of_an_unfinished_effect_is_left_out(self, rig: Rig) -> None:
        first, second, third = job(key="k"), job(key="k"), job(key="k")

        assert await rig.put(first) == [first.id]
        assert await rig.put(second) == []
        await rig.finish(await rig.claim_one())

        assert await rig.put(third) == [third.id]

    async def test_the_same_effect_in_another_namespace_is_another_effect(self, rig: Rig) -> None:
        ours, theirs = job(key="k"), job(key="k", namespace="other")

        assert await rig.put(ours, theirs) == [ours.id, theirs.id]

    async def test_a_job_of_a_transaction_that_rolled_back_was_never_there(self, rig: Rig) -> None:
        wanted = job()

        await rig.undone(lambda tx: rig.ledger.enqueue(tx, [wanted]))

        assert await rig.ledger.job(wanted.id) is None
        assert await rig.claim() == []

    async def test_a_job_is_claimed_when_its_time_has_come_and_not_before(self, rig: Rig) -> None:
        later = job(run_in=timedelta(minutes=5))
        await rig.put(later)
        assert await rig.claim() == []

        await rig.pass_time(timedelta(minutes=6))

        assert ids_of(await rig.claim()) == [later.id]

    async def test_a_burst_is_one_job_that_runs_when_it_is_quiet(self, rig: Rig) -> None:
        first, second = job(JobKind.EXTRACT, key="s1"), job(JobKind.EXTRACT, key="s1")

        assert await rig.push(first) == [first.id]
        await rig.pass_time(timedelta(seconds=6))
        assert await rig.push(second) == [first.id]
        await rig.pass_time(timedelta(seconds=6))
        assert await rig.claim(JobKind.EXTRACT) == []
        await rig.pass_time(timedelta(seconds=3))

        assert ids_of(await rig.claim(JobKind.EXTRACT)) == [first.id]

    async def test_a_job_that_is_pushed_again_and_again_runs_at_last(self, rig: Rig) -> None:
        first = job(JobKind.EXTRACT, key="s1")
        await rig.push(first)

        for _ in range(5):
            await rig.pass_time(timedelta(seconds=6))
            await rig.push(job(JobKind.EXTRACT, key="s1"))

        assert ids_of(await rig.claim(JobKind.EXTRACT)) == [first.id]

    async def test_what_comes_while_the_job_runs_is_done_by_one_successor(self, rig: Rig) -> None:
        first, second, third, fourth = (job(JobKind.EXTRACT, key="s1") for _ in range(4))
        await rig.push(first)
        await rig.pass_time(QUIET)
        running = await rig.claim_one(JobKind.EXTRACT)

        assert await rig.push(second) == [second.id]
        assert await rig.push(third) == [second.id]
        await rig.pass_time(QUIET)
        assert await rig.claim(JobKind.EXTRACT) == []  # one of a session at a time
        await rig.finish(running)
        assert await rig.push(fourth) == [second.id]

        await rig.pass_time(QUIET)
        assert ids_of(await rig.claim(JobKind.EXTRACT)) == [second.id]

    async def test_a_turn_is_recorded_as_stored_once(self, rig: Rig) -> None:
        old, new = turn_of("alice", "one"), turn_of("bob", "two")
        async with rig.db.transaction() as tx:
            assert await rig.ledger.record_stored(tx, [old]) == {old.job_id}

        async with rig.db.transaction() as tx:
            assert await rig.ledger.record_stored(tx, [old, new]) == {new.job_id}

        assert await rig.state(old.job_id) is JobState.DONE

    async def test_accepted_turns_are_seen_by_their_owner_until_they_are_stored(self, rig: Rig) -> None:
        first, second, other = turn_of("alice", "one"), turn_of("alice", "two"), turn_of("bob", "three")
        for turn in (first, second, other):
            async with rig.db.transaction() as tx:
                assert await rig.ledger.accept(tx, turn, turn.messages[0].content.encode())
        async with rig.db.transaction() as tx:
            assert not await rig.ledger.accept(tx, first, b"again")
            assert await rig.ledger.unstored(tx, Scope(user_id="alice")) == [b"one", b"two"]

        leases = await rig.claim(JobKind.STORE)
        assert {lease.job.raw for lease in leases} == {b"one", b"two", b"three"}
        await rig.finish(next(lease for lease in leases if lease.job.id == first.job_id))

        async with rig.db.transaction() as tx:
            assert await rig.ledger.unstored(tx, Scope(user_id="alice")) == [b"two"]

    # claiming

    async def test_a_claim_counts_the_attempt_and_keeps_others_away(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)

        lease = await rig.claim_one(worker="w7")

        assert (lease.job.id, lease.job.state, lease.job.attempts) == (wanted.id, JobState.RUNNING, 1)
        assert lease.job.payload == {"episodes": ["e1"]}
        assert await rig.claim() == []
        assert [attempt.worker for attempt in await rig.ledger.attempts(wanted.id)] == ["w7"]

    async def test_a_claim_takes_its_kind_only_and_no_more_than_asked(self, rig: Rig) -> None:
        embeds = [job() for _ in range(3)]
        await rig.put(*embeds, job(JobKind.FORGET))

        assert ids_of(await rig.claim(limit=2)) == [embeds[0].id, embeds[1].id]

    async def test_a_claim_by_id_takes_those_alone(self, rig: Rig) -> None:
        wanted, other = job(), job()
        await rig.put(other, wanted)
        unknown = job().id

        leases = await rig.ledger.claim(JobKind.EMBED, worker="w", for_=LEASE, limit=9, ids=[wanted.id, unknown])

        assert ids_of(leases) == [wanted.id]

    async def test_a_user_who_floods_does_not_hold_others_up(self, rig: Rig) -> None:
        await rig.put(*(job(user="flood") for _ in range(50)))
        late = job(user="late")
        await rig.put(late)

        assert late.id in ids_of(await rig.claim(limit=3))

    async def test_owners_with_work_are_served_in_turn(self, rig: Rig) -> None:
        for user in ("a", "b", "c"):
            await rig.put(*(job(user=user) for _ in range(4)))

        served = [lease.job.scope.user_id for lease in await rig.claim(limit=12)]

        assert [sorted(map(str, served[i : i + 3])) for i in (0, 3, 6, 9)] == [["a", "b", "c"]] * 4

    async def test_a_session_is_mined_by_one_job_at_a_time(self, rig: Rig) -> None:
        first, second = job(JobKind.EXTRACT), job(JobKind.EXTRACT)
        elsewhere = job(JobKind.EXTRACT, session="s2")
        await rig.put(first, second, elsewhere)

        leases = await rig.claim(JobKind.EXTRACT)
        assert set(ids_of(leases)) == {first.id, elsewhere.id}
        assert await rig.claim(JobKind.EXTRACT) == []
        await rig.finish(next(lease for lease in leases if lease.job.id == first.id))

        assert ids_of(await rig.claim(JobKind.EXTRACT)) == [second.id]

    async def test_the_sessionless_bucket_counts_as_one_session(self, rig: Rig) -> None:
        await rig.put(job(JobKind.EXTRACT, session=None), job(JobKind.EXTRACT, session=None))

        assert len(await rig.claim(JobKind.EXTRACT)) == 1
        assert await rig.claim(JobKind.EXTRACT) == []

    # ending

    async def test_a_job_is_done_with_its_effect_or_not_at_all(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        lease = await rig.claim_one()

        await rig.undone(lambda tx: rig.ledger.finish(tx, lease))
        assert await rig.state(wanted.id) is JobState.RUNNING
        await rig.finish(lease)

        assert await rig.state(wanted.id) is JobState.DONE
        assert [attempt.outcome for attempt in await rig.ledger.attempts(wanted.id)] == ["done"]

    async def test_a_worker_that_lost_its_lease_cannot_commit(self, rig: Rig) -> None:
        wanted, effect = job(), job()
        await rig.put(wanted)
        zombie = await rig.claim_one(worker="zombie")
        await rig.pass_time(LEASE + timedelta(seconds=1))
        assert await rig.ledger.expire_leases() == 1
        heir = await rig.claim_one(worker="heir")

        async def late() -> None:
            async with rig.db.transaction() as tx:
                await rig.ledger.enqueue(tx, [effect])
                await rig.ledger.finish(tx, zombie)

        for ending in (
            late(),
            rig.ledger.retry(zombie, FAILURE, after=timedelta(0)),
            rig.ledger.snooze(zombie, after=timedelta(0), why="away"),
            rig.ledger.bury(None, zombie, FAILURE),
            rig.ledger.keep_answer(zombie, {"facts": []}, spent=Spent()),
        ):
            with pytest.raises(errors.LeaseLost):
                await ending

        assert await rig.ledger.job(effect.id) is None
        await rig.finish(heir)

    async def test_of_several_jobs_those_that_are_still_held_are_finished(self, rig: Rig) -> None:
        lost, held = job(), job()
        await rig.put(lost)
        zombie = await rig.claim_one()
        await rig.pass_time(LEASE + timedelta(seconds=1))
        await rig.ledger.expire_leases()
        await rig.claim()
        await rig.put(held)
        lease = await rig.claim_one()

        async with rig.db.transaction() as tx:
            assert await rig.ledger.finish_all(tx, [zombie, lease]) == {held.id}

        assert await rig.state(held.id) is JobState.DONE
        assert await rig.state(lost.id) is JobState.RUNNING

    async def test_a_heartbeat_keeps_a_lease_and_tells_of_a_lost_one(self, rig: Rig) -> None:
        await rig.put(job(), job(user="bob"))
        first, second = await rig.claim()
        await rig.pass_time(timedelta(seconds=20))

        assert await rig.ledger.heartbeat([first], for_=LEASE) == {first.token}
        await rig.pass_time(timedelta(seconds=20))
        assert await rig.ledger.expire_leases() == 1

        assert await rig.ledger.heartbeat([first, second], for_=LEASE) == {first.token}

    async def test_a_failed_attempt_comes_back_after_its_wait_with_its_cost_kept(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        spent = Spent(model="m", tokens_in=10, tokens_out=3, cost_usd=0.5)

        await rig.ledger.retry(await rig.claim_one(), FAILURE, after=timedelta(seconds=60), spent=spent)
        assert await rig.state(wanted.id) is JobState.RETRYING
        assert await rig.claim() == []
        await rig.pass_time(timedelta(seconds=61))

        assert (await rig.claim_one()).job.attempts == 2
        first, second = await rig.ledger.attempts(wanted.id)
        assert (first.outcome, first.error_class, first.error) == ("failed", "BadModelAnswer", "no JSON")
        assert (first.model, first.tokens_in, first.tokens_out, first.cost_usd) == ("m", 10, 3, 0.5)
        assert (second.number, second.outcome) == (2, None)

    async def test_an_outage_gives_the_attempt_back(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)

        for _ in range(3):
            await rig.ledger.snooze(await rig.claim_one(), after=timedelta(seconds=60), why="openai is away")
            assert await rig.claim() == []
            await rig.pass_time(timedelta(seconds=61))

        assert (await rig.claim_one()).job.attempts == 1

    async def test_a_dead_letter_is_kept_whole_and_never_claimed(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)

        await rig.ledger.bury(None, await rig.claim_one(), FAILURE, spent=Spent(model="m"))

        assert await rig.claim() == []
        letter = await rig.ledger.job(wanted.id)
        assert letter is not None
        assert (letter.state, letter.payload) == (JobState.DEAD, {"episodes": ["e1"]})
        assert (letter.reason_code, letter.error, letter.fingerprint) == ("llm_bad_answer", "no JSON", "f1")
        assert (await rig.ledger.attempts(wanted.id))[0].outcome == "dead"

    async def test_a_burial_is_part_of_the_callers_transaction(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        lease = await rig.claim_one()

        await rig.undone(lambda tx: rig.ledger.bury(tx, lease, FAILURE))

        assert await rig.state(wanted.id) is JobState.RUNNING

    async def test_a_models_answer_is_kept_until_the_job_is_done(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        await rig.ledger.keep_answer(await rig.claim_one(), {"facts": [1]}, spent=Spent(model="m", tokens_in=7))
        await rig.pass_time(LEASE + timedelta(seconds=1))
        await rig.ledger.expire_leases()

        again = await rig.claim_one()

        assert again.job.answer == {"facts": [1]}
        assert (await rig.ledger.attempts(wanted.id))[0].tokens_in == 7
        await rig.finish(again)
        done = await rig.ledger.job(wanted.id)
        assert done is not None
        assert done.answer is None

    async def test_what_models_cost_is_counted_by_job_day_owner_kind_and_model(self, rig: Rig) -> None:
        first, second = job(), job()
        await rig.put(first, second)
        one, two = sorted(await rig.claim(), key=lambda lease: lease.job.id != first.id)
        shared = Spent(model="m", calls=1, tokens_in=10, tokens_out=3, cost_usd=0.5, latency_ms=20.0)

        await rig.ledger.spend([(one, shared), (two, Spent(model="m", tokens_in=5))])
        await rig.ledger.keep_answer(one, {"facts": []}, spent=shared)

        [row] = await rig.ledger.spending(one.job.scope.namespace, since=date(2000, 1, 1))
        assert (row.owner, row.kind) == (one.job.scope.owner, one.job.kind)
        assert row.spent == Spent(model="m", calls=2, tokens_in=25, tokens_out=6, cost_usd=1.0, latency_ms=40.0)
        [of_one] = await rig.ledger.attempts(one.job.id)
        [of_two] = await rig.ledger.attempts(two.job.id)
        assert (of_one.calls, of_one.tokens_in, of_one.cost_usd, of_one.latency_ms) == (2, 20, 1.0, 40.0)
        assert (of_two.calls, of_two.tokens_in) == (0, 5)

    # poison

    async def test_a_job_that_lost_a_lease_comes_alone(self, rig: Rig) -> None:
        poison, *others = job(), job(), job()
        await rig.put(poison)
        await rig.claim_one()
        await rig.pass_time(LEASE + timedelta(seconds=1))
        await rig.ledger.expire_leases()
        await rig.put(*others)

        batches = [ids_of(await rig.claim()) for _ in range(3)]

        assert [poison.id] in batches
        assert sorted(each for batch in batches for each in batch) == sorted([poison.id, *(each.id for each in others)])

    async def test_a_job_that_took_three_workers_with_it_is_a_dead_letter(self, rig: Rig) -> None:
        poison = job()
        await rig.put(poison)

        for lost in range(3):
            assert (await rig.claim_one()).job.lost_leases == lost
            await rig.pass_time(LEASE + timedelta(seconds=1))
            assert await rig.ledger.expire_leases() == 1

        assert await rig.claim() == []
        letter = await rig.ledger.job(poison.id)
        assert letter is not None
        assert (letter.state, letter.reason_code, letter.payload) == (
            JobState.DEAD,
            "worker_lost",
            {"episodes": ["e1"]},
        )
        assert [attempt.outcome for attempt in await rig.ledger.attempts(poison.id)] == ["lost"] * 3

    async def test_a_pending_turn_is_parked_whole_unless_it_was_stored(self, rig: Rig) -> None:
        parked, stored = turn_of("alice", "one"), turn_of("alice", "two")
        owner = Scope(user_id="alice")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [stored])

        async with rig.db.transaction() as tx:
            assert await rig.ledger.bury_turn(tx, parked.job_id, owner, b"\x00\xffbytes", FAILURE, attempts=3)
            assert not await rig.ledger.bury_turn(tx, stored.job_id, owner, b"bytes", FAILURE)

        letter = await rig.ledger.job(parked.job_id)
        assert letter is not None
        assert (letter.kind, letter.state, letter.raw, letter.attempts) == (
            JobKind.STORE,
            JobState.DEAD,
            b"\x00\xffbytes",
            3,
        )
        assert await rig.state(stored.job_id) is JobState.DONE

    # looking

    async def test_the_backlog_counts_what_may_run_runs_waits_and_is_dead(self, rig: Rig) -> None:
        await rig.put(*(job() for _ in range(4)), job(run_in=timedelta(minutes=5)))
        first, _ = await rig.claim(limit=2)
        await rig.ledger.bury(None, first, FAILURE)

        backlog = await rig.backlog(JobKind.EMBED)

        assert (backlog.runnable, backlog.running, backlog.waiting, backlog.dead) == (2, 1, 1, 1)
        assert backlog.oldest_runnable_at is not None
        assert (await rig.backlog(JobKind.EXTRACT)).runnable == 0

    async def test_a_receipt_sees_where_the_follow_up_work_of_its_turn_stands(self, rig: Rig) -> None:
        turn, other = turn_of("alice", "one"), turn_of("alice", "two")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [turn, other])
            await rig.ledger.enqueue(tx, [job(follows=[turn.job_id])])
        await rig.push(job(JobKind.EXTRACT, key="s1", follows=[turn.job_id]))
        await rig.push(job(JobKind.EXTRACT, key="s1", follows=[other.job_id]))
        await rig.claim_one()

        assert await rig.ledger.episode_states(turn.job_id) == {
            JobKind.STORE: JobState.DONE,
            JobKind.EMBED: JobState.RUNNING,
            JobKind.EXTRACT: JobState.QUEUED,
        }
        assert await rig.ledger.episode_states(other.job_id) == {
            JobKind.STORE: JobState.DONE,
            JobKind.EXTRACT: JobState.QUEUED,
        }

    async def test_jobs_are_listed_by_owner_state_and_kind(self, rig: Rig) -> None:
        mine, theirs, other_kind = job(), job(user="bob"), job(JobKind.FORGET)
        await rig.put(mine)
        await rig.put(theirs)
        await rig.put(other_kind)

        owned = await rig.ledger.jobs(owner=Scope(user_id="alice"))
        queued = await rig.ledger.jobs(states=[JobState.QUEUED], kinds=[JobKind.EMBED])

        assert [each.id for each in owned] == [other_kind.id, mine.id]
        assert [each.id for each in queued] == [theirs.id, mine.id]
        assert await rig.ledger.jobs(states=[JobState.DEAD]) == []
        assert await rig.ledger.jobs(owner=Scope(namespace="other", user_id="alice")) == []

    async def test_old_jobs_that_are_done_are_pruned_and_dead_letters_never(self, rig: Rig) -> None:
        done, dead, waiting = job(), job(user="bob"), job(run_in=timedelta(days=90))
        await rig.put(done, dead, waiting)
        for lease in await rig.claim():
            if lease.job.id == done.id:
                await rig.finish(lease)
            else:
                await rig.ledger.bury(None, lease, FAILURE)

        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 0
        await rig.pass_time(timedelta(days=31))
        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 1

        assert await rig.ledger.job(done.id) is None
        assert await rig.state(dead.id) is JobState.DEAD
        assert await rig.state(waiting.id) is JobState.QUEUED

    @pytest.mark.parametrize("odd", ["o'); DROP TABLE x; --", "%_*?[", "ü" * 256, "\u202e\U0001f600", "\x01"])
    async def test_odd_ids_are_ids_like_any_other(self, rig: Rig, odd: str) -> None:
        wanted = job(user=odd, session=odd, namespace=odd, key=odd)
        await rig.put(wanted, job(user="plain"))

        found = await rig.ledger.jobs(owner=Scope(namespace=odd, user_id=odd))

        assert [each.scope for each in found] == [Scope(namespace=odd, user_id=odd, session_id=odd)]
        assert wanted.id in ids_of(await rig.claim())
