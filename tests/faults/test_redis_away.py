"""Redis frozen, refusing, restarted, wiped: the answer is not delayed, and no turn is lost or doubled."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from aftermind import errors
from aftermind.types import LeaseToken, Scope
from tests.support.loop_clock import loop_clock
from tests.support.proxy import proxy_to
from tests.support.turns import Agent, agent_on, texts_of, turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("impatient_with_redis")]
ALICE = Scope(user_id="alice")


async def spooled(agent: Agent, text: str, user: str = "alice") -> bool:
    turn = turn_of(user, text, base=agent.publisher.positions.take(1))
    return (await agent.publisher.send(turn)).spooled


async def test_a_frozen_redis_costs_the_budget_once_and_nothing_after(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, remember_budget_seconds=3.0) as agent, loop_clock() as clock:
        await agent.remember("alice", "before")
        took = []
        with valkey.frozen():
            for i in range(5):
                started = clock.seconds
                assert await spooled(agent, f"m{i}")
                took.append(clock.seconds - started)
            assert texts_of(await agent.publisher.pending(ALICE)) == [f"m{i}" for i in range(5)]

        await agent.publisher.drained()

        assert took[0] < 3.3
        assert max(took[1:]) < 0.2
        assert await agent.seen() == ["before", "m0", "m1", "m2", "m3", "m4"]
        assert await agent.publisher.pending(ALICE) == ()
        assert list((tmp_path / "spool").iterdir()) == []


async def test_a_turn_that_a_frozen_redis_takes_at_its_thaw_counts_from_when_it_was_said(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("alice", "before")
        with valkey.frozen():
            said_at = datetime.now(UTC)
            assert await spooled(agent, "during")
            await asyncio.sleep(2.0)
        await agent.publisher.drained()
        await agent.remember("alice", "after")

        claimed = await agent.pending.claim(
            worker="w", token=LeaseToken(uuid4()), for_=timedelta(minutes=1), turns=9, size_bytes=10**6, max_lost=3
        )

    said = {turn.messages[0].content: turn.remembered_at for turn in (each.turn() for each in claimed)}
    assert abs(said["during"] - said_at) < timedelta(seconds=1)
    assert said["before"] < said["during"] < said["after"] - timedelta(seconds=1)


async def test_those_who_wait_together_for_a_frozen_redis_wait_one_budget(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, remember_budget_seconds=3.0) as agent, loop_clock() as clock:
        await agent.remember("alice", "before")

        async def one(i: int) -> float:
            await asyncio.sleep(i * 0.002)
            started = clock.seconds
            await agent.remember(f"u{i}", "x")
            return clock.seconds - started

        with valkey.frozen():
            took = await asyncio.gather(*(one(i) for i in range(100)))

        assert max(took) < 3.8
        await agent.publisher.drained()
        assert [await agent.seen(f"u{i}") for i in range(100)] == [["x"]] * 100


async def test_a_redis_that_is_not_there_spools_at_once(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent, loop_clock() as clock:
        valkey.stop()

        started = clock.seconds
        assert await spooled(agent, "m0")
        assert clock.seconds - started < 0.3

        valkey.start()
        assert await agent.all_seen(1) == ["m0"]


async def test_a_restarted_redis_gets_the_spool_in_order_and_once(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("alice", "m0")
        valkey.kill()
        for i in range(1, 30):
            assert await spooled(agent, f"m{i}")

        valkey.start()

        assert await agent.all_seen(30) == [f"m{i}" for i in range(30)]
        await agent.publisher.drained()
        assert (await agent.pending.backlog()).turns == 30


async def test_a_redis_that_syncs_each_second_keeps_what_is_older_than_two(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        with valkey.client() as admin:
            admin.config_set("appendfsync", "everysec")
            await agent.remember("alice", "before")
            # A write waits for a sync that is under way, two seconds at most, also one of a disk that is slow.
            await asyncio.sleep(2.0)
            await wait_until(
                lambda: admin.info("persistence")["aof_pending_bio_fsync"] == 0, description="it is synced"
            )
        valkey.kill()
        valkey.start()

        assert await agent.all_seen(1) == ["before"]


async def test_new_turns_of_a_session_go_behind_its_spooled_ones(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        valkey.kill()
        for i in range(200):
            await spooled(agent, f"m{i}")
        valkey.start()
        for i in range(200, 400):
            await spooled(agent, f"m{i}")

        assert await agent.all_seen(400) == [f"m{i}" for i in range(400)]


async def test_a_call_whose_answer_was_lost_is_sent_again_without_effect(valkey: Valkey, tmp_path: Path) -> None:
    async with (
        proxy_to(valkey.url) as proxy,
        agent_on(proxy.url(valkey.url), tmp_path, remember_budget_seconds=2.0) as agent,
    ):
        await agent.remember("alice", "before")
        # The command arrives, its answer does not: the proxy delays beyond the budget, and then the cut answer is gone.
        proxy.delay(1.6)
        assert await spooled(agent, "in doubt")
        proxy.let_pass()
        await agent.publisher.drained()

        assert await agent.seen() == ["before", "in doubt"]
        assert (await agent.pending.backlog()).turns == 2


@pytest.mark.parametrize("refusal", ["full", "read only", "no rights"])
async def test_a_redis_that_refuses_to_write_spools_until_it_takes_turns_again(
    valkey: Valkey, tmp_path: Path, refusal: str
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("alice", "before")
        with valkey.client() as admin:
            break_it, mend_it = {
                "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
                "read only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
                "no rights": (("ACL", "SETUSER", "default", "-hset"), ("ACL", "SETUSER", "default", "+hset")),
            }[refusal]
            admin.execute_command(*break_it)

            async with loop_clock() as clock:
                assert await spooled(agent, "m1")
                assert await spooled(agent, "m2")
            assert clock.seconds < 0.4

            admin.execute_command(*mend_it)
        assert await agent.all_seen(3) == ["before", "m1", "m2"]


async def test_a_redis_busy_with_somebodys_script_is_away(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("alice", "m0")
        with valkey.client() as admin, valkey.client() as hog:
            admin.config_set("busy-reply-threshold", 50)

            def spin() -> None:
                with pytest.raises(redis.ResponseError, match="killed"):
                    hog.eval("while true do end", 0)

            spinning = asyncio.create_task(asyncio.to_thread(spin))
            await wait_until(lambda: is_busy(admin), description="the script runs")
            await wait_until(lambda: spooled(agent, "m1"), description="a turn is spooled")
            admin.script_kill()
            await spinning

        await agent.publisher.drained()
        assert (await agent.seen())[0] == "m0"
        assert set(await agent.seen()) == {"m0", "m1"}


def is_busy(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError as exc:
        return "BUSY" in str(exc)
    return False


async def test_a_wiped_redis_takes_new_turns_and_tells_that_it_is_another_one(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("alice", "lost with its disk")
        valkey.wipe()

        await agent.remember("alice", "after")

        assert await agent.all_seen(1) == ["after"]
        assert (await agent.pending.read(ALICE, limit=1)).epoch is None


async def test_a_full_spool_refuses_and_drops_nothing(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, spool_max_bytes=2_000) as agent:
        valkey.kill()
        taken: list[str] = []

        async def fill() -> None:
            for i in range(100):
                await spooled(agent, f"m{i} " + "x" * 200)
                taken.append(f"m{i}")

        with pytest.raises(errors.SpoolFull) as caught:
            await fill()

        assert 1 <= len(taken) <= 6
        assert caught.value.limit_bytes == 2_000
        valkey.start()
        assert [text.split()[0] for text in await agent.all_seen(len(taken))] == taken


async def test_without_a_spool_the_caller_hears_that_redis_is_away(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, spool_max_bytes=0) as agent:
        valkey.kill()

        with pytest.raises(errors.RedisUnavailable):
            await agent.remember()

        valkey.start()

        async def taken() -> bool:
            try:
                await agent.remember("alice", "after")
            except errors.RedisUnavailable:
                return False
            return True

        await wait_until(taken, description="Redis takes turns again")


async def test_a_disk_that_takes_nothing_is_told_as_such(valkey: Valkey, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "spool").write_text("a file where the folder should be")
    async with agent_on(valkey.url, state) as agent:
        valkey.kill()

        with pytest.raises(errors.SpoolUnavailable):
            await agent.remember()
