"""What every ledger promises of jobs that come and are claimed."""

from datetime import timedelta

import pytest

from aftermind.types import JobId, JobKind, JobState, Scope, Turn
from aftermind.wire.turn_encoding import encode_turn
from tests.conformance.ledger_fixtures import LEASE, QUIET, Rig, ids_of, job
from tests.support.turns import turn_of


class EnteringContract:
    """Subclasses give the fixture `rig`."""

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

    async def test_accepted_turns_are_claimed_up_to_a_size_and_a_larger_one_alone(self, rig: Rig) -> None:
        for size in (3, 4, 5, 20, 1):
            async with rig.db.transaction() as tx:
                assert await rig.ledger.accept(tx, turn_of("alice"), b"x" * size)

        batches = []
        while leases := await rig.ledger.claim(JobKind.STORE, worker="w1", for_=LEASE, limit=100, size_bytes=8):
            batches.append([len(lease.job.raw or b"") for lease in leases])

        assert batches == [[3, 4], [5], [20], [1]]

    async def test_accepted_turns_are_measured_until_they_are_stored(self, rig: Rig) -> None:
        turns = [turn_of("alice", "one"), turn_of("alice", "three"), turn_of("bob", "seven")]
        async with rig.db.transaction() as tx:
            for turn in turns:
                assert await rig.ledger.accept(tx, turn, turn.messages[0].content.encode())
        leases = await rig.claim(JobKind.STORE)
        await rig.finish(next(lease for lease in leases if lease.job.id == turns[0].job_id))

        async with rig.db.transaction() as tx:
            everybody = await rig.ledger.measure_unstored(tx, "default", None, limit=10)
            alice = await rig.ledger.measure_unstored(tx, "default", "alice", limit=10)
            bounded = await rig.ledger.measure_unstored(tx, "default", None, limit=1)
            other = await rig.ledger.measure_unstored(tx, "other", None, limit=10)

        assert (everybody.turns, everybody.size_bytes) == (2, len("three") + len("seven"))
        assert (alice.turns, alice.size_bytes) == (1, len("three"))
        assert timedelta(0) <= everybody.oldest < timedelta(minutes=1)
        assert (bounded.turns, other.turns) == (1, 0)

    async def test_a_transaction_that_fails_leaves_accepted_turns_as_they_were(self, rig: Rig) -> None:
        kept, lost = turn_of("alice", "kept"), turn_of("alice", "lost")
        async with rig.db.transaction() as tx:
            assert await rig.ledger.accept(tx, kept, b"kept")

        async def fail() -> None:
            async with rig.db.transaction() as tx:
                assert await rig.ledger.accept(tx, lost, b"lost")
                await rig.ledger.rewrite_turn(tx, kept.job_id, None)
                raise RuntimeError("it fails")

        with pytest.raises(RuntimeError, match="it fails"):
            await fail()

        async with rig.db.transaction() as tx:
            assert await rig.ledger.unstored(tx, Scope(user_id="alice")) == [b"kept"]
            assert (await rig.ledger.measure_unstored(tx, "default", None, limit=10)).turns == 1

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

    async def test_a_claim_leaves_the_jobs_of_excepted_namespaces(self, rig: Rig) -> None:
        loud = await rig.put(*(job(user=f"u{n}", namespace="loud") for n in range(5)))
        mine = await rig.put(*(job(user=f"u{n}", namespace="quiet") for n in range(3)))

        async def claim(*excepted: str) -> set[JobId]:
            leases = await rig.ledger.claim(
                JobKind.EMBED, worker="w", for_=LEASE, limit=2, alone=True, except_namespaces=excepted
            )
            return set(ids_of(leases))

        first, second = await claim("loud"), await claim("loud")
        assert first | second == set(mine)
        assert (len(first), len(second)) == (2, 1)
        assert await claim("loud") == set()
        assert await claim("loud", "quiet") == set()
        assert await claim() < set(loud)

    async def test_a_claim_with_a_weight_gives_namespaces_equal_shares_of_it(self, rig: Rig) -> None:
        await rig.put(*(job(user=f"u{n}", namespace="loud", weight=10) for n in range(5)))
        await rig.put(*(job(user=f"u{n % 3}", namespace="quiet", weight=1) for n in range(20)))

        async def claim(weight: int | None) -> dict[str, int]:
            leases = await rig.ledger.claim(JobKind.EMBED, worker="w", for_=LEASE, limit=100, weight=weight, alone=True)
            found = {"loud": 0, "quiet": 0}
            for lease in leases:
                found[lease.job.scope.namespace] += lease.weight
            return found

        assert await claim(20) == {"loud": 10, "quiet": 10}
        one = await claim(1)
        assert one in ({"loud": 10, "quiet": 0}, {"loud": 0, "quiet": 1})
        assert await claim(1_000) == {"loud": 40 - one["loud"], "quiet": 10 - one["quiet"]}

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

    async def test_the_order_of_a_session_is_that_of_its_last_turn_that_is_not_stored(self, rig: Rig) -> None:
        first, second = turn_of("alice", "one", base=1), turn_of("alice", "two", "three", base=2)
        elsewhere = [
            turn_of("alice", "x", base=70, namespace="other"),
            turn_of("alice", "x", base=80, session="s2"),
            turn_of("bob", "x", base=90),
        ]

        async def position() -> int | None:
            async with rig.db.transaction(namespace="default") as tx:
                found = await rig.ledger.accepted_order(tx, [first.scope])
            assert found.keys() <= {("alice", "s1")}
            return found["alice", "s1"].position if found else None

        assert await position() is None
        for turn in (*elsewhere, first):
            await accept(rig, turn)
        assert await position() == 1
        await accept(rig, second)
        assert await position() == 3

        leases = await rig.claim(JobKind.STORE)
        for turn, then in ((first, 3), (second, None)):
            await rig.finish(next(lease for lease in leases if lease.job.id == turn.job_id))
            assert await position() == then


async def accept(rig: Rig, turn: Turn) -> None:
    async with rig.db.transaction(namespace=turn.scope.namespace) as tx:
        assert await rig.ledger.accept(tx, turn, encode_turn(turn))
