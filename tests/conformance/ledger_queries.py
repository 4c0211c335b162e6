"""What every ledger tells of its jobs, and how it lets go of them."""

from datetime import timedelta

import pytest

from aftermind.types import JobKind, JobState, Scope
from tests.conformance.ledger_fixtures import FAILURE, Rig, ids_of, job
from tests.support.turns import turn_of


class LookingContract:
    """Subclasses give the fixture `rig`."""

    async def test_the_backlog_counts_what_may_run_runs_waits_and_is_dead(self, rig: Rig) -> None:
        await rig.put(*(job() for _ in range(4)), job(run_in=timedelta(minutes=5)))
        first, _ = await rig.claim(limit=2)
        await rig.ledger.mark_dead(None, first, FAILURE)

        backlog = await rig.backlog(JobKind.EMBED)

        assert (backlog.runnable, backlog.running, backlog.waiting, backlog.dead) == (2, 1, 1, 1)
        assert backlog.oldest_wait is not None
        assert timedelta(0) <= backlog.oldest_wait < timedelta(minutes=1)
        assert (await rig.backlog(JobKind.EXTRACT)).runnable == 0

    async def test_a_receipt_sees_where_the_follow_up_work_of_its_turn_stands(self, rig: Rig) -> None:
        turn, other = turn_of("alice", "one"), turn_of("alice", "two")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [turn, other])
            await rig.ledger.enqueue(tx, [job(follows=[turn.job_id])])
        await rig.push(job(JobKind.EXTRACT, key="s1", follows=[turn.job_id]))
        await rig.push(job(JobKind.EXTRACT, key="s1", follows=[other.job_id]))
        await rig.claim_one()

        following = [await rig.ledger.follow_ups(each.job_id) for each in (turn, other)]
        assert [{kind: each.state for kind, each in found.items()} for found in following] == [
            {JobKind.STORE: JobState.DONE, JobKind.EMBED: JobState.RUNNING, JobKind.EXTRACT: JobState.QUEUED},
            {JobKind.STORE: JobState.DONE, JobKind.EXTRACT: JobState.QUEUED},
        ]

    async def test_a_receipt_sees_why_follow_up_work_is_repeated(self, rig: Rig) -> None:
        turn = turn_of("alice", "one")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [turn])
            await rig.ledger.enqueue(tx, [job(follows=[turn.job_id])])
        lease = await rig.claim_one()
        await rig.ledger.retry(lease, FAILURE, after=timedelta(minutes=1))

        found = (await rig.ledger.follow_ups(turn.job_id))[JobKind.EMBED]

        assert (found.state, found.reason) == (JobState.RETRYING, FAILURE.error)

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
                await rig.ledger.mark_dead(None, lease, FAILURE)

        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 0
        await rig.pass_time(timedelta(days=31))
        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 1

        assert await rig.ledger.job(done.id) is None
        assert await rig.state(dead.id) is JobState.DEAD
        assert await rig.state(waiting.id) is JobState.QUEUED

    async def test_a_stored_turn_that_is_forgotten_keeps_no_older_job_from_being_pruned(self, rig: Rig) -> None:
        first, second = turn_of("alice", "one"), turn_of("bob", "two")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [first, second])
        await rig.pass_time(timedelta(days=31))
        async with rig.db.transaction() as tx:
            await rig.ledger.record_forgotten(tx, first.scope.owner, [first.job_id], closed=True)

        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 1
        assert await rig.state(first.job_id) is JobState.FORGOTTEN
        assert await rig.ledger.job(second.job_id) is None

        await rig.pass_time(timedelta(days=31))
        assert await rig.ledger.prune(older_than=timedelta(days=30), limit=10) == 1
        assert await rig.ledger.job(first.job_id) is None

    @pytest.mark.parametrize("odd", ["o'); DROP TABLE x; --", "%_*?[", "ü" * 256, "\u202e\U0001f600", "\x01"])
    async def test_odd_ids_are_ids_like_any_other(self, rig: Rig, odd: str) -> None:
        wanted = job(user=odd, session=odd, namespace=odd, key=odd)
        await rig.put(wanted, job(user="plain"))

        found = await rig.ledger.jobs(owner=Scope(namespace=odd, user_id=odd))

        assert [each.scope for each in found] == [Scope(namespace=odd, user_id=odd, session_id=odd)]
        assert wanted.id in ids_of(await rig.claim())
