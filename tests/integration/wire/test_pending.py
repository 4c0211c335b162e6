"""Turns in Redis between remember() and the store's commit."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from aftermind.types import JobId, LeaseToken, Scope, Turn, Watermark
from aftermind.types.tombstone import Tombstone
from aftermind.wire import pending as pending_module
from aftermind.wire.pending import SCRIPT_TURNS, Accepted, Pending, PendingLimit, PendingLimits
from aftermind.wire.queues import STORE
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.turns import ROOMY, claim, lose, offer, texts_of, turn_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio
ALICE = Scope(user_id="alice")


async def accept(
    pending: Pending, *turns: Turn, limits: PendingLimits = ROOMY, spooled: bool = False
) -> list[Accepted]:
    return await pending.accept([offer(turn, is_spooled=spooled) for turn in turns], limits=limits)


async def seen(pending: Pending, owner: Scope = ALICE, limit: int = 100) -> list[str]:
    return texts_of((await pending.read(owner, limit=limit)).turns)


async def test_an_accepted_turn_reads_back_as_it_was_with_no_worker_alive(pending: Pending) -> None:
    turn = turn_of("alice", "I moved to Oslo.", "Noted.")

    await accept(pending, turn)

    read = await pending.read(ALICE, limit=10)
    assert read.turns == (replace(turn, counted_from=turn.base),)
    assert read.total == 1


async def test_only_the_newest_are_read_and_all_are_counted(pending: Pending) -> None:
    await accept(pending, *(turn_of("alice", f"m{i}") for i in range(5)))

    read = await pending.read(ALICE, limit=2)

    assert texts_of(read.turns) == ["m3", "m4"]
    assert read.total == 5


async def test_users_with_odd_ids_never_see_each_other(pending: Pending) -> None:
    users = [None, "@", "%40", "a", "a/b", "a%2Fb", "*", "a*", "[a]", "'; --", "ß", "ü" * 256, " ", "a\nb", "a:b"]
    await accept(pending, *(turn_of(user, f"of {user!r}") for user in users))
    await accept(pending, turn_of("b", "other tenant", namespace="a"), turn_of(None, "nobody", namespace="a/b"))

    for user in users:
        assert await seen(pending, Scope(user_id=user)) == [f"of {user!r}"]
    assert await seen(pending, Scope(namespace="a", user_id="b")) == ["other tenant"]


async def test_a_known_job_id_changes_nothing(pending: Pending) -> None:
    turn = turn_of("alice", "once")
    [first] = await accept(pending, turn)

    again = await accept(pending, turn, replace(turn, base=turn.base + 10**9))

    assert [(one.known, one.base) for one in again] == [(True, first.base)] * 2
    assert await seen(pending) == ["once"]
    assert (await pending.backlog()).size_bytes == len(offer(turn).payload)


async def test_a_known_job_id_changes_nothing_while_a_worker_holds_it(pending: Pending) -> None:
    turn = turn_of("alice", "once")
    await accept(pending, turn)
    held = await claim(pending)

    [again] = await accept(pending, turn)

    assert again.known
    assert await claim(pending) == []
    assert (await pending.settle([held[0].job_id], watermark=None)).runnable == 0


async def test_a_sessions_order_is_that_of_acceptance_whatever_the_clocks_say(pending: Pending) -> None:
    ahead, behind = turn_of("alice", "first", "x", base=2_000), turn_of("alice", "second", base=1_000)
    other = turn_of("alice", "other session", session="s2", base=500)

    bases = [(await accept(pending, turn))[0].base for turn in (ahead, behind, other)]

    assert bases == [2_000, 2_002, 500]
    assert await seen(pending) == ["other session", "first", "second"]


async def test_a_spooled_turn_follows_what_came_before_it_whatever_its_clock_said(pending: Pending) -> None:
    await accept(pending, turn_of("alice", "of a host ahead", base=2_000))

    [placed] = await accept(pending, turn_of("alice", "spooled", base=1_000), spooled=True)

    assert placed.base == 2_001
    assert await seen(pending) == ["of a host ahead", "spooled"]


async def test_a_turn_carries_the_last_generation_that_redis_or_its_agent_has_heard_of(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    other = Pending(link, keys)
    await accept(pending, turn_of("alice", "before anybody told"))
    await pending.raise_generation(5, begun=5)
    await accept(other, turn_of("alice", "told by Redis"))
    other.generation.learn(9)
    await accept(other, turn_of("alice", "told by the agent"))
    await accept(pending, replace(turn_of("alice", "spooled long ago"), generation=2), spooled=True)

    read = await pending.read(ALICE, limit=10)

    assert [turn.generation for turn in read.turns] == [5, 5, 9, 2]
    assert pending.generation.known == other.generation.known == 9
    assert [one.generation for one in await claim(pending)] == [5, 5, 9, 2]
    assert await pending.raise_generation() == (9, 5)


async def test_an_erasure_removes_what_came_before_it_and_nothing_that_came_after(pending: Pending) -> None:
    await accept(pending, turn_of("alice", "before anybody told"))
    await pending.raise_generation(5, begun=5)
    await accept(pending, turn_of("alice", "under 5"))
    await pending.raise_generation(6)
    await accept(pending, turn_of("alice", "under 6"), turn_of("alice", "in another session", session="s2"))

    removed = await pending.forget(Tombstone(owner=ALICE, generation=6, session_id="s1"))

    assert len(removed) == 2
    assert await seen(pending) == ["under 6", "in another session"]
    assert await pending.forget(Tombstone(owner=ALICE, generation=7, session_id="s2")) != []
    assert await seen(pending) == ["under 6"]


@pytest.mark.parametrize(("recalled", "is_removed"), [(4, True), (5, True), (6, False), (10**17, False)])
async def test_a_turn_from_a_recall_is_accepted_under_its_erasure_or_the_last_if_that_is_lower(
    pending: Pending, recalled: int, is_removed: bool
) -> None:
    await pending.raise_generation(6, begun=1)
    turn = replace(turn_of("alice", "an answer"), recalled=recalled, content_hash="one")
    await accept(pending, turn)

    [read] = (await pending.read(ALICE, limit=10)).turns
    assert read.generation == min(recalled, 6)
    assert bool(await pending.forget(Tombstone(owner=ALICE, generation=6))) is is_removed
    assert bool(await pending.forget(Tombstone(owner=ALICE, generation=7))) is not is_removed


async def test_the_key_of_a_turn_from_an_old_recall_is_compared_after_it_was_stored(pending: Pending) -> None:
    await pending.raise_generation(6, begun=1)
    first = replace(turn_of("alice", "I like tea."), content_hash="one", recalled=4)
    await accept(pending, first)
    await claim(pending)
    await pending.settle([first.job_id], watermark=None)

    other = replace(turn_of("alice", "I like milk."), job_id=first.job_id, content_hash="other", recalled=4)
    [conflict] = await accept(pending, other)

    assert conflict.conflict


async def test_a_key_that_comes_with_another_hash_is_a_conflict(pending: Pending) -> None:
    first = replace(turn_of("alice", "I like tea."), content_hash="one")
    other = replace(turn_of("alice", "I like milk."), job_id=first.job_id, content_hash="other")
    await accept(pending, first)

    [again], [conflict] = await accept(pending, first), await accept(pending, other)

    assert (again.known, again.conflict) == (True, False)
    assert conflict.conflict
    assert await seen(pending) == ["I like tea."]


async def test_a_key_that_was_stored_a_moment_ago_is_a_conflict_until_it_is_forgotten(pending: Pending) -> None:
    """A caller may have asked the database before the first turn was there, and ask Redis after it has left."""
    first = replace(turn_of("alice", "I like tea."), content_hash="one")
    other = replace(turn_of("alice", "I like milk."), job_id=first.job_id, content_hash="other")
    await accept(pending, first)
    await claim(pending)
    await pending.settle([first.job_id], watermark=None)

    [conflict] = await accept(pending, other)
    _, of_postgres = await pending.reserve([other])
    seen_then = await seen(pending)
    [again] = await accept(pending, first)
    await pending.raise_generation(5, begun=1)
    await pending.forget(Tombstone(owner=ALICE, generation=5))
    [later] = await accept(pending, other)

    assert conflict.conflict
    assert of_postgres == {other.job_id}
    assert seen_then == []
    assert not again.conflict
    assert (later.conflict, later.known) == (False, False)
    assert await seen(pending) == ["I like milk."]


async def test_positions_beyond_what_a_short_float_prints_survive(pending: Pending) -> None:
    base = 1_790_000_000_123_457

    [placed] = await accept(pending, turn_of("alice", "hi", base=base))

    assert placed.base == base
    assert (await pending.read(ALICE, limit=1)).turns[0].base == base
    assert (await claim(pending))[0].base == base


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (replace(ROOMY, turns=2), PendingLimit.TURNS),
        (replace(ROOMY, size_bytes=800), PendingLimit.BYTES),
        (replace(ROOMY, turns_of_user=2), PendingLimit.USER),
    ],
)
async def test_each_limit_refuses_the_turn_that_is_too_many_and_no_other(
    pending: Pending, limits: PendingLimits, refusal: PendingLimit
) -> None:
    answers = await accept(pending, *(turn_of("alice", "x" * 100) for _ in range(3)), limits=limits)

    assert [answer.refusal for answer in answers] == [None, None, refusal]
    assert answers[2].value > 0
    assert len(await seen(pending)) == 2


async def test_one_full_user_does_not_shut_out_another(pending: Pending) -> None:
    limits = replace(ROOMY, turns_of_user=1)

    answers = await accept(pending, turn_of("alice"), turn_of("alice"), turn_of("bob"), limits=limits)

    assert [answer.refusal for answer in answers] == [None, PendingLimit.USER, None]


async def test_a_backlog_that_is_too_old_refuses(pending: Pending) -> None:
    await accept(pending, turn_of("alice"))
    limits = replace(ROOMY, age=timedelta(milliseconds=20))

    async def refused() -> bool:
        [answer] = await accept(pending, turn_of("bob"), limits=limits)
        return answer.refusal is PendingLimit.AGE and 0.02 <= answer.value < 5

    await wait_until(refused, description="the oldest turn is too old")


async def test_bells_do_not_pile_up_beyond_their_number(pending: Pending, link: RedisLink, keys: Keys) -> None:
    turns = [turn_of("alice", str(i)) for i in range(6)]

    await pending.accept([offer(turn) for turn in turns], limits=ROOMY, bells=[b"a", b"b", b"c", b"d"], most_bells=3)

    assert await link.call("LRANGE", keys.queue(STORE), 0, -1) == [b"c", b"b", b"a"]


async def test_known_turns_ring_no_bell_and_a_new_one_always_does(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    known, new = turn_of("alice"), turn_of("alice")
    await accept(pending, known)

    await pending.accept([offer(known)], limits=ROOMY, bells=[b"a"])
    nothing = await link.call("LLEN", keys.queue(STORE))
    await pending.accept([offer(known), offer(new)], limits=ROOMY, bells=[b"a"])

    assert nothing == 0
    assert await link.call("LLEN", keys.queue(STORE)) == 1


async def test_a_flood_of_one_user_delays_another_by_one_turn_not_by_the_flood(pending: Pending) -> None:
    await accept(pending, *(turn_of("flood", str(i)) for i in range(50)))
    await claim(pending, turns=10)
    await accept(pending, turn_of("alice", "hello"), turn_of("bob", "hi"))

    owners = [held.owner.user_id for held in await claim(pending, turns=4)]

    assert owners.index("alice") <= 2
    assert owners.index("bob") <= 2


async def test_a_namespace_with_a_thousand_users_delays_another_by_one_turn_too(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", namespace="crowd") for i in range(1_000)))
    await claim(pending, turns=100)
    await accept(pending, *(turn_of("alice", f"m{i}", namespace="small") for i in range(3)))

    namespaces = [held.owner.namespace for held in await claim(pending, turns=8)]

    assert namespaces.count("small") == 3
    assert namespaces.index("small") <= 1


LARGE = "x" * 200_000


async def test_a_namespace_with_large_turns_pays_for_their_size(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", LARGE, namespace="large") for i in range(3)))
    await claim(pending)
    await accept(pending, *(turn_of("alice", f"m{i}", namespace="small") for i in range(12)))

    namespaces = [held.owner.namespace for held in await claim(pending)]

    assert namespaces == ["small"] * 12


async def test_a_namespace_owes_its_share_also_after_it_had_nothing_pending(pending: Pending) -> None:
    await accept(pending, turn_of("u0", LARGE, namespace="large"))
    await claim(pending)
    await accept(pending, turn_of("u1", LARGE, namespace="large"))
    await accept(pending, *(turn_of("alice", f"m{i}", namespace="small") for i in range(5)))

    first, second = await claim(pending), await claim(pending)

    assert {held.owner.namespace for held in first} == {"small"}
    assert len(first) == 5
    assert [held.owner.namespace for held in second] == ["large"]


async def test_a_large_turn_is_claimed_alone(pending: Pending) -> None:
    await accept(pending, turn_of("bob", LARGE), *(turn_of("alice", f"m{i}") for i in range(3)))

    claims = [[held.owner.user_id for held in await claim(pending)] for _ in range(3)]

    assert [users for users in claims if "bob" in users] == [["bob"]]
    assert sum(users.count("alice") for users in claims) == 3


async def test_a_claim_without_large_turns_gets_the_small_ones_behind_them(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", LARGE, namespace="large") for i in range(3)))
    await accept(pending, turn_of("carol", LARGE), turn_of("alice", "hello"))

    users = [held.owner.user_id for held in await claim(pending, large=False)]

    assert users == ["alice"]
    assert await claim(pending, large=False) == []
    assert [len(await claim(pending)) for _ in range(5)] == [1, 1, 1, 1, 0]


async def test_a_claim_passes_over_namespaces_that_have_their_share(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", namespace="loud & large") for i in range(3)))
    await accept(pending, turn_of("alice", namespace="quiet"), turn_of("bob", namespace="calm"))

    assert {held.owner.user_id for held in await claim(pending, except_namespaces=["loud & large"])} == {"alice", "bob"}
    assert await claim(pending, except_namespaces=["loud & large"]) == []
    assert len(await claim(pending)) == 3


async def test_every_user_of_a_namespace_has_its_turn_before_anybody_has_two(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", namespace=f"n{i % 2}") for i in range(10) for _ in range(3)))

    first, second = await claim(pending, turns=10), await claim(pending, turns=10)

    assert len({held.owner for held in first}) == len({held.owner for held in second}) == 10


async def test_a_user_who_comes_again_and_again_does_not_starve_the_flood_either(pending: Pending) -> None:
    await accept(pending, *(turn_of("flood", str(i)) for i in range(10)))
    served = []

    for _ in range(10):
        await accept(pending, turn_of("alice"), turn_of("bob"))
        served += [held.owner.user_id for held in await claim(pending, turns=3)]

    assert served.count("flood") >= 9


async def test_a_claim_takes_no_more_bytes_than_it_may_but_always_one_turn(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i}", "x" * 1_000) for i in range(3)))

    assert len(await claim(pending, size_bytes=10)) == 1
    assert len(await claim(pending, size_bytes=10_000)) == 2


async def test_many_turns_are_claimed_by_several_scripts_as_by_one(pending: Pending) -> None:
    await accept(pending, turn_of("zoe"))
    [lost] = await claim(pending, lease=0.01)
    await accept(pending, *(turn_of(f"u{i:02}", "x" * 1_000) for i in range(SCRIPT_TURNS)))

    async def expired() -> bool:
        return (await pending.backlog()).runnable == SCRIPT_TURNS + 1

    await wait_until(expired, description="the lease has run out")
    held = await claim(pending)
    assert len(held) == SCRIPT_TURNS  # a script of its own would have taken the lost one beside them
    assert [each.job_id for each in await claim(pending)] == [lost.job_id]


@pytest.mark.parametrize("room", [SCRIPT_TURNS, SCRIPT_TURNS + 2])
async def test_bytes_are_counted_over_all_scripts_of_a_claim(pending: Pending, room: int) -> None:
    turns = [turn_of(f"u{i:02}", "x" * 1_000) for i in range(2 * SCRIPT_TURNS)]
    await accept(pending, *turns)
    size = len(offer(turns[0]).payload)

    assert len(await claim(pending, size_bytes=room * size + size // 2)) == room
    assert len(await claim(pending, turns=2 * SCRIPT_TURNS - room - 1)) == 2 * SCRIPT_TURNS - room - 1


async def test_within_an_owner_the_oldest_is_claimed_first(pending: Pending) -> None:
    await accept(pending, *(turn_of("alice", f"m{i}") for i in range(4)))

    assert [held.turn().messages[0].content for held in await claim(pending, turns=3)] == ["m0", "m1", "m2"]


async def test_two_workers_never_hold_the_same_turn(pending: Pending) -> None:
    await accept(pending, *(turn_of(f"u{i % 3}") for i in range(20)))

    claims = [held.job_id for _ in range(4) for held in await claim(pending, turns=7)]

    assert len(claims) == len(set(claims)) == 20


async def test_turns_whose_lease_ran_out_come_few_at_once_and_the_last_time_alone(pending: Pending) -> None:
    """Any of them may be what took the worker away, and the others must not be worked off one by one."""
    await accept(pending, *(turn_of(f"u{i}") for i in range(4)))
    await claim(pending, lease=0.01)

    async def expired() -> bool:
        return (await pending.backlog()).runnable == 4

    await wait_until(expired, description="the leases have run out")
    await accept(pending, turn_of("u9"))
    batches = [await claim(pending, turns=16, lease=0.5) for _ in range(3)]
    assert sorted([turn.lost_leases for turn in batch] for batch in batches) == [[0], [1, 1], [1, 1]]
    assert {turn.attempts for batch in batches for turn in batch if turn.lost_leases} == {2}
    await pending.settle([turn.job_id for batch in batches for turn in batch if not turn.lost_leases], watermark=None)
    await wait_until(expired, description="the leases have run out again")
    alone = [await claim(pending, turns=16) for _ in range(4)]
    assert [[(turn.lost_leases, turn.poison) for turn in batch] for batch in alone] == [[(2, False)]] * 4


async def test_any_number_of_skipped_namespaces_hides_no_turn_of_others(pending: Pending) -> None:
    paused = [f"paused {number}" for number in range(100)]
    await accept(pending, *(turn_of("alice", namespace=each) for each in paused))
    await accept(pending, turn_of("bob", namespace="unpaused"))  # served after the others

    assert [turn.owner.namespace for turn in await claim(pending, except_namespaces=paused)] == ["unpaused"]


async def test_a_turn_on_its_last_chance_comes_only_to_who_runs_nothing_beside_it(pending: Pending) -> None:
    turn = turn_of("alice")
    assert not await pending.last_chance_is_next(max_lost=3)
    await accept(pending, turn)
    assert not await pending.last_chance_is_next(max_lost=3)
    await lose(pending, 2)

    assert await claim(pending, alone=False) == []
    assert await pending.last_chance_is_next(max_lost=3)
    assert not await pending.last_chance_is_next(max_lost=3, except_namespaces=["default"])
    assert [(each.job_id, each.lost_leases) for each in await claim(pending)] == [(turn.job_id, 2)]
    assert not await pending.last_chance_is_next(max_lost=3)


async def test_a_turn_that_took_three_workers_comes_as_poison_with_its_payload_whole(pending: Pending) -> None:
    turn = turn_of("alice", "boom")
    kept = replace(turn, counted_from=turn.base)
    await accept(pending, turn)

    async def is_poison() -> bool:
        held = await claim(pending, lease=0.005)
        return bool(held) and held[0].poison and held[0].lost_leases == 3 and held[0].turn() == kept

    await wait_until(is_poison, description="the turn has lost three leases")


async def test_a_heartbeat_keeps_a_lease_and_a_lost_one_is_told(pending: Pending) -> None:
    await accept(pending, turn_of("alice"), turn_of("bob"))
    [first] = await claim(pending, turns=1, lease=0.01)
    [second] = await claim(pending, turns=1, lease=30)

    async def expired() -> bool:
        return (await pending.backlog()).runnable == 1

    await wait_until(expired, description="the first lease has run out")
    long = timedelta(seconds=30)
    assert await pending.heartbeat([first.job_id], token=first.token, for_=long) == frozenset()
    assert await pending.heartbeat([second.job_id], token=second.token, for_=long) == {second.job_id}


async def test_what_is_released_is_as_if_it_had_never_been_claimed(pending: Pending) -> None:
    await accept(pending, turn_of("alice"))
    [held] = await claim(pending)

    assert await pending.release([held.job_id], token=held.token) == 1

    [again] = await claim(pending)
    assert (again.attempts, again.lost_leases) == (1, 0)


async def test_a_failed_try_counts_and_waits(pending: Pending) -> None:
    await accept(pending, turn_of("alice"))
    [held] = await claim(pending)

    await pending.release([held.job_id], token=held.token, after=timedelta(milliseconds=50), counts=True)

    assert await claim(pending) == []
    [again] = await wait_until(lambda: claim(pending), description="the wait is over")
    assert (again.attempts, again.lost_leases) == (2, 0)


async def test_a_zombie_cannot_give_back_what_another_holds(pending: Pending) -> None:
    await accept(pending, turn_of("alice"))
    [zombie] = await claim(pending, lease=0.01)
    [held] = await wait_until(lambda: claim(pending), description="somebody else holds it")

    assert await pending.release([zombie.job_id], token=zombie.token) == 0

    assert await claim(pending) == []
    assert await pending.heartbeat([held.job_id], token=held.token, for_=timedelta(seconds=30)) == {held.job_id}


async def test_settling_raises_the_watermark_and_leaves_nothing_behind(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    turns = [turn_of("alice", "a"), turn_of("alice", "b"), turn_of("bob", "c")]
    await accept(pending, *turns)
    held = await claim(pending, turns=2)
    mark = Watermark(system=7, timeline=1, lsn=2**63 + 1)

    settled = await pending.settle([one.job_id for one in held], watermark=mark)
    rest = await pending.settle([turn.job_id for turn in turns], watermark=mark)

    assert (settled.removed, settled.runnable) == (2, 1)
    assert (rest.removed, rest.runnable) == (1, 0)
    assert (await pending.read(ALICE, limit=10)).watermark == mark
    left = {key.decode() for key in await link.call("KEYS", "*")}
    lasting = (
        {keys.count(), keys.served()}
        | {keys.high(one.scope) for one in turns}
        | {keys.counted_from(one.scope) for one in turns}
        | {keys.watermark(one.scope) for one in turns}
    )
    assert left == lasting
    assert await link.call("HGET", keys.count(), "bytes") == b"0"


async def test_every_key_that_outlives_its_turn_has_a_time_to_live(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    await accept(pending, replace(turn_of("alice"), content_hash="one"))
    [held] = await claim(pending)
    await pending.settle([held.job_id], watermark=Watermark(system=1, timeline=1, lsn=1))

    for key in await link.call("KEYS", "*"):
        assert key.decode() in (keys.count(), keys.served()) or await link.call("TTL", key) > 0


async def test_a_turn_that_is_forgotten_leaves_no_trace_even_while_a_worker_holds_it(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    kept, gone = turn_of("alice", "keep"), turn_of("alice", "secret", session="s2")
    await accept(pending, kept, gone)
    await claim(pending)

    removed = await pending.forget(Tombstone(owner=ALICE, generation=9, session_id="s2"))

    assert removed == [gone.job_id]
    assert await seen(pending) == ["keep"]
    assert await link.call("EXISTS", keys.turn(gone.job_id)) == 0


async def test_a_user_with_many_turns_is_forgotten_page_by_page(
    pending: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "PAGE_TURNS", 10)
    turns = [turn_of("alice", f"keep {i}" if i % 3 else f"secret {i}") for i in range(50)]
    await accept(pending, *turns)
    secret = frozenset(id_ for i, turn in enumerate(turns) if not i % 3 for id_ in turn.episode_ids)

    removed = await pending.forget(Tombstone(owner=ALICE, generation=9, ids=secret))

    assert len(removed) == 17
    assert await seen(pending) == [f"keep {i}" for i in range(50) if i % 3]


async def test_nobody_can_forget_another_owners_turn(pending: Pending) -> None:
    await accept(pending, turn_of("bob", "mine"))

    await pending.forget(Tombstone(owner=ALICE, generation=9))

    assert await seen(pending, Scope(user_id="bob")) == ["mine"]


async def test_unknown_and_garbage_ids_do_nothing(pending: Pending) -> None:
    nobody = [JobId(uuid4())]
    token = LeaseToken(uuid4())

    assert (await pending.settle(nobody, watermark=None)).removed == 0
    assert await pending.release(nobody, token=token) == 0
    assert await pending.heartbeat(nobody, token=token, for_=timedelta(seconds=1)) == frozenset()


async def test_a_turn_whose_hash_was_deleted_by_hand_blocks_nobody(
    pending: Pending, link: RedisLink, keys: Keys
) -> None:
    torn, whole = turn_of("alice", "torn"), turn_of("alice", "whole")
    await accept(pending, torn, whole)
    await link.call("DEL", keys.turn(torn.job_id))

    assert [held.job_id for held in await claim(pending)] == [whole.job_id]
    assert await seen(pending) == ["whole"]


async def test_a_later_releases_turn_is_counted_not_shown_and_claimed_whole(pending: Pending) -> None:
    turn = turn_of("alice", "from the future")
    payload = b'{"v":99,"whatever":1}'
    await pending.accept([replace(offer(turn), payload=payload)], limits=ROOMY)

    read = await pending.read(ALICE, limit=10)
    [held] = await claim(pending)

    assert (read.turns, read.unreadable, read.total) == ((), 1, 1)
    assert held.payload == payload
