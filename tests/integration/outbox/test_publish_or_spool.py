"""remember() on its way out, on a real server."""

import asyncio
import base64
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from aftermind import errors
from aftermind.outbox import group_commit, spool_segment
from aftermind.outbox.spool import FIRST_WRITE_SECONDS, WRITE_MARGIN
from aftermind.types import Scope
from aftermind.wire.queues import STORE, TASK
from aftermind.wire.redis_keys import Keys
from tests.support.proxy import proxy_to
from tests.support.turns import agent_on, turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio


def bells(valkey: Valkey) -> list[bytes]:
    with valkey.client() as client:
        waiting = client.lrange(Keys().queue(STORE), 0, -1)
    assert isinstance(waiting, list)
    return waiting


async def test_a_turn_is_seen_by_the_next_read_with_every_worker_down(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        turn = await agent.remember("alice", "I moved to Oslo.", "Noted.")

        assert (await agent.pending.read(Scope(user_id="alice"), limit=1)).turns == (
            replace(turn, counted_from=turn.base),
        )


async def test_the_first_turn_does_not_wait_for_celery_and_is_rung_for_soon_after(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        turn = await agent.remember()

        await wait_until(lambda: bells(valkey), description="the first bell")
        assert str(turn.job_id) in json.loads(bells(valkey)[0])["headers"]["argsrepr"]


async def test_the_bell_is_an_ordinary_celery_message_that_names_the_job_and_nothing_else(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember()
        await wait_until(lambda: bells(valkey), description="the first bell")
        turn = await agent.remember("secret-user", "secret words", session="secret-session")

    raw = bells(valkey)[0]
    message = json.loads(raw)
    assert message["headers"]["task"] == TASK
    assert message["headers"]["id"] == message["properties"]["correlation_id"] == str(turn.job_id)
    assert json.loads(base64.b64decode(message["body"]))[:2] == [[str(turn.job_id)], {}]
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": STORE}
    assert b"secret" not in raw
    assert b"secret" not in base64.b64decode(message["body"])


async def test_every_turn_rings_where_that_is_asked_for(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, ring_every_turn=True) as agent:
        await agent.remember()
        await wait_until(lambda: bells(valkey), description="the first bell")
        await asyncio.gather(*(agent.remember(f"u{i}") for i in range(40)))

    assert len(bells(valkey)) == 41


async def test_concurrent_turns_share_calls_and_each_is_kept(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("warm")
        with valkey.client() as client:
            before = client.info("commandstats")["cmdstat_fcall"]["calls"]
            await asyncio.gather(*(agent.remember(f"u{i}", f"of {i}") for i in range(100)))
            calls = client.info("commandstats")["cmdstat_fcall"]["calls"] - before

        assert calls <= 6
        assert [await agent.seen(f"u{i}") for i in range(100)] == [[f"of {i}"] for i in range(100)]


async def test_waiting_for_others_of_ones_own_process_says_nothing_about_redis(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_commit, "MAX_TURNS", 1)
    async with (
        proxy_to(valkey.url) as proxy,
        agent_on(proxy.url(valkey.url), tmp_path, remember_budget_seconds=2.0) as agent,
    ):
        await agent.remember("warm")
        proxy.delay(0.08)  # so twelve turns a second go out, and those after the first twenty or so are late

        sent = await asyncio.gather(*(agent.publisher.send(turn_of("alice", f"m{i}")) for i in range(80)))

        assert 20 < sum(one.spooled for one in sent) < 80
        assert (await agent.publisher.send(turn_of("bob"))).spooled is False
        proxy.let_pass()
        await agent.publisher.drained()
        assert (await agent.pending.read(Scope(user_id="alice"), limit=0)).total == 80
        assert "turns are spooled" not in caplog.text


async def test_a_caller_that_is_cancelled_takes_nobody_with_it_and_leaves_no_half_turn(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("warm")
        with valkey.frozen():
            tasks = [asyncio.create_task(agent.remember(f"u{i}", "a", "b")) for i in range(30)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
        await agent.publisher.drained()
        for i in range(1, 30, 2):
            assert await agent.seen(f"u{i}") == ["a"]
        for i in range(0, 30, 2):  # taken whole, if it was on its way already, or not at all
            turns = (await agent.pending.read(Scope(user_id=f"u{i}"), limit=5)).turns
            assert [len(turn.messages) for turn in turns] in ([], [2])


async def test_the_same_job_id_sent_again_changes_nothing(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        turn = turn_of("alice", "once")

        first, again = await agent.publisher.send(turn), await agent.publisher.send(turn)

        assert (first.known, again.known) == (False, True)
        assert await agent.seen() == ["once"]


async def test_past_a_limit_the_turn_goes_to_disk_and_is_sent_when_there_is_room(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path, pending_max_turns_per_user=1) as agent:
        first = await agent.remember("alice", "first")
        sent = await agent.publisher.send(turn_of("alice", "second"))
        assert sent.spooled
        assert await agent.seen() == ["first"]

        await agent.pending.settle([first.job_id], watermark=None)

        await wait_until(lambda: agent.seen(), description="the second turn is sent")
        assert await agent.seen() == ["second"]


async def test_past_a_limit_the_caller_is_told_where_that_is_asked_for(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, pending_max_turns=1, when_full="refuse") as agent:
        await agent.remember("alice", "first")

        with pytest.raises(errors.QueueFull) as caught:
            await agent.remember("bob", "second")

        assert (caught.value.what, caught.value.value, caught.value.limit) == ("pending turns", 1, 1)
        assert await agent.seen("bob") == []


async def test_one_publisher_serves_several_loops_one_after_another(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:

        def elsewhere(user: str) -> None:
            async def one() -> None:
                await agent.remember(user, f"of {user}")
                await agent.link.close()

            asyncio.run(one())

        for user in ("a", "b"):
            await asyncio.to_thread(elsewhere, user)
        await agent.remember("c", "of c")

        assert [await agent.seen(user) for user in "abc"] == [["of a"], ["of b"], ["of c"]]


async def test_a_forked_process_uses_no_connection_of_its_parent(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("parent", "before")
        # A fork in the middle of an import leaves its lock held for ever: not ours to mend.
        await wait_until(lambda: bells(valkey), description="Celery is imported")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(20)
                asyncio.events._set_running_loop(None)
                asyncio.run(agent.remember("child", "hello"))
                code = 0
            finally:
                os._exit(code)
        await agent.remember("parent", "after")

        status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status[1]) == 0
        assert await agent.seen("parent") == ["before", "after"]
        assert await agent.seen("child") == ["hello"]


async def test_redis_gets_what_the_spools_last_writes_leave_of_the_budget(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_on(valkey.url, tmp_path, remember_budget_seconds=2.0, redis_timeout_seconds=9.0) as agent:
        assert agent.link.timeout < 2.0 - FIRST_WRITE_SECONDS / 2  # also before a write was measured
        now = [0.0]
        synced = spool_segment._sync

        def slow_disk(fd: int) -> None:
            now[0] += 0.4
            synced(fd)

        monkeypatch.setattr(spool_segment, "_sync", slow_disk)
        monkeypatch.setattr(agent.publisher.spool, "_clock", lambda: now[0])
        valkey.stop()
        await agent.remember("alice", "m0")

        assert agent.link.timeout == pytest.approx(2.0 - 0.4 * WRITE_MARGIN)

        monkeypatch.setattr(spool_segment, "_sync", synced)
        for number in range(1, 60):
            await agent.remember("alice", f"m{number}")
        assert agent.link.timeout > 1.9  # a slow minute is forgotten

        now[0] = 0.0
        monkeypatch.setattr(agent.publisher.spool, "_write_seconds", 60.0)
        await agent.remember("alice", "m60")
        assert agent.link.timeout == 1.0  # at least half
