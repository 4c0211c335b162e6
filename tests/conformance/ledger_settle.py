"""What every ledger promises of jobs that end, well or not, and of those that take workers with them."""

from datetime import UTC, date, datetime, timedelta

import pytest

from aftermind import errors
from aftermind.ledger.protocol import ModelUsage, Tried
from aftermind.types import JobKind, JobState, Scope
from tests.conformance.ledger_fixtures import FAILURE, LEASE, Rig, ids_of, job
from tests.support.turns import turn_of


class EndingContract:
    """Subclasses give the fixture `rig`."""

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
        assert (await rig.ledger.expire_leases()).total() == 1
        heir = await rig.claim_one(worker="heir")

        async def late() -> None:
            async with rig.db.transaction() as tx:
                await rig.ledger.enqueue(tx, [effect])
                await rig.ledger.finish(tx, zombie)

        for ending in (
            late(),
            rig.ledger.retry(zombie, FAILURE, after=timedelta(0)),
            rig.ledger.snooze(zombie, after=timedelta(0), why="away"),
            rig.ledger.mark_dead(None, zombie, FAILURE),
            rig.ledger.save_answer(zombie, {"facts": []}, spent=ModelUsage()),
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
        assert (await rig.ledger.expire_leases()).total() == 1

        assert await rig.ledger.heartbeat([first, second], for_=LEASE) == {first.token}

    async def test_a_failed_attempt_comes_back_after_its_wait_with_its_cost_kept(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        spent = ModelUsage(model="m", tokens_in=10, tokens_out=3, cost_usd=0.5)

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

        await rig.ledger.mark_dead(None, await rig.claim_one(), FAILURE, spent=ModelUsage(model="m"))

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

        await rig.undone(lambda tx: rig.ledger.mark_dead(tx, lease, FAILURE))

        assert await rig.state(wanted.id) is JobState.RUNNING

    async def test_an_attempt_has_the_model_of_its_first_call_and_the_tokens_of_all(self, rig: Rig) -> None:
        await rig.put(job())
        lease = await rig.claim_one()
        for model in ("serves", "standby"):
            await rig.ledger.spend([(lease, ModelUsage(model=model, calls=1, tokens_in=5))])

        (attempt,) = await rig.ledger.attempts(lease.job.id)

        assert (attempt.model, attempt.calls, attempt.tokens_in) == ("serves", 2, 10)

    async def test_a_models_answer_is_kept_until_the_job_is_done(self, rig: Rig) -> None:
        wanted = job()
        await rig.put(wanted)
        await rig.ledger.save_answer(await rig.claim_one(), {"facts": [1]}, spent=ModelUsage(model="m", tokens_in=7))
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
        shared = ModelUsage(model="m", calls=1, tokens_in=10, tokens_out=3, cost_usd=0.5, latency_ms=20.0)

        await rig.ledger.spend([(one, shared), (two, ModelUsage(model="m", tokens_in=5))])
        await rig.ledger.save_answer(one, {"facts": []}, spent=shared)

        [row] = await rig.ledger.spending(one.job.scope.namespace, since=date(2000, 1, 1))
        assert (row.owner, row.kind) == (one.job.scope.owner, one.job.kind)
        assert row.spent == ModelUsage(model="m", calls=2, tokens_in=25, tokens_out=6, cost_usd=1.0, latency_ms=40.0)
        [of_one] = await rig.ledger.attempts(one.job.id)
        [of_two] = await rig.ledger.attempts(two.job.id)
        assert (of_one.calls, of_one.tokens_in, of_one.cost_usd, of_one.latency_ms) == (2, 20, 1.0, 40.0)
        assert (of_two.calls, of_two.tokens_in) == (0, 5)

    async def test_jobs_that_lost_a_lease_come_few_at_once_and_the_last_time_alone(self, rig: Rig) -> None:
        """Any of them may be what took the worker away, and the others must not be worked off one by one."""
        lost, fresh = [job() for _ in range(4)], [job() for _ in range(3)]
        await rig.put(*lost)
        await rig.claim()
        await rig.pass_time(LEASE + timedelta(seconds=1))
        await rig.ledger.expire_leases()
        await rig.put(*fresh)

        batches = [await rig.claim(limit=16) for _ in range(3)]  # an eighth of 16 is two

        assert sorted(len(batch) for batch in batches) == [2, 2, 3]
        assert all(len({lease.job.lost_leases for lease in batch}) == 1 for batch in batches)
        taken = [each for batch in batches for each in ids_of(batch)]
        assert sorted(taken) == sorted(each.id for each in [*lost, *fresh])
        for lease in (lease for batch in batches for lease in batch if not lease.job.lost_leases):
            await rig.finish(lease)
        await rig.pass_time(LEASE + timedelta(seconds=1))
        await rig.ledger.expire_leases()
        alone = [await rig.claim(limit=16) for _ in range(4)]
        assert [[lease.job.lost_leases for lease in batch] for batch in alone] == [[2]] * 4

    @pytest.mark.parametrize("kind", [JobKind.EMBED, JobKind.EXTRACT])
    async def test_a_job_on_its_last_chance_comes_only_to_who_runs_nothing_beside_it(
        self, rig: Rig, kind: JobKind
    ) -> None:
        suspect, later = job(kind), job(kind, user="bob")
        await rig.put(suspect)
        for lost in range(2):
            assert not await rig.ledger.last_chance_is_next(kind)
            assert [lease.job.lost_leases for lease in await rig.claim(kind, alone=False)] == [lost]
            await rig.pass_time(LEASE + timedelta(seconds=1))
            await rig.ledger.expire_leases()
        assert await rig.claim(kind, alone=False) == []
        await rig.put(later)

        assert await rig.ledger.last_chance_is_next(kind)
        assert not await rig.ledger.last_chance_is_next(kind, replays=True)
        assert not await rig.ledger.last_chance_is_next(kind, except_namespaces=[suspect.scope.namespace])
        assert await rig.ledger.last_chance_is_next(kind, except_namespaces=["other"])
        assert await rig.claim(kind, alone=False) == []
        assert ids_of(await rig.claim(kind)) == [suspect.id]
        assert not await rig.ledger.last_chance_is_next(kind)
        assert ids_of(await rig.claim(kind, alone=False)) == [later.id]

    async def test_a_job_that_took_three_workers_with_it_is_a_dead_letter(self, rig: Rig) -> None:
        poison = job()
        await rig.put(poison)

        for lost in range(3):
            assert (await rig.claim_one()).job.lost_leases == lost
            await rig.pass_time(LEASE + timedelta(seconds=1))
            assert (await rig.ledger.expire_leases()).total() == 1

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

        tried = Tried(attempts=3, lost_leases=1, worker="w", since=datetime.now(UTC))
        async with rig.db.transaction() as tx:
            assert await rig.ledger.dead_letter_turn(tx, parked.job_id, owner, b"\x00\xffbytes", FAILURE, tried=tried)
            assert not await rig.ledger.dead_letter_turn(tx, stored.job_id, owner, b"bytes", FAILURE)

        letter = await rig.ledger.job(parked.job_id)
        assert letter is not None
        assert (letter.kind, letter.state, letter.raw, letter.attempts) == (
            JobKind.STORE,
            JobState.DEAD,
            b"\x00\xffbytes",
            3,
        )
        tries = [(each.number, each.outcome, each.error) for each in await rig.ledger.attempts(parked.job_id)]
        assert tries == [(1, "lost", None), (2, "failed", None), (3, "dead", FAILURE.error)]
        assert await rig.state(stored.job_id) is JobState.DONE

    async def test_a_stored_turn_has_the_leases_that_workers_lost_with_it(self, rig: Rig) -> None:
        turn, untouched = turn_of("alice", "one"), turn_of("alice", "two")
        async with rig.db.transaction() as tx:
            await rig.ledger.record_stored(tx, [turn, untouched])
        tried = Tried(attempts=3, lost_leases=2, worker="host:17", since=datetime.now(UTC))

        async with rig.db.transaction() as tx:
            await rig.ledger.note_lost_leases(tx, {turn.job_id: tried})

        job, other = await rig.ledger.job(turn.job_id), await rig.ledger.job(untouched.job_id)
        assert job is not None
        assert other is not None
        assert (job.state, job.lost_leases, job.attempts, other.lost_leases) == (JobState.DONE, 2, 3, 0)
        tries = [(each.number, each.outcome, each.worker) for each in await rig.ledger.attempts(turn.job_id)]
        assert tries == [(1, "lost", ""), (2, "lost", "host:17")]
