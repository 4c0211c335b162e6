"""kill -9 of the agent's process: what it spooled is sent by the next one, once."""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aftermind.outbox.spool import Spool
from aftermind.types import Scope
from aftermind.wire.turn_encoding import encode_turn
from tests.support.faults import kill
from tests.support.fork_server import run_module
from tests.support.servers import Database
from tests.support.turns import agent_on, texts_of, turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until, wait_until_sync
from tests.support.workers import environment

pytestmark = pytest.mark.asyncio
ALICE = Scope(user_id="alice")

AGENT = """
import asyncio, json, sys
from pathlib import Path
from tests.support.turns import agent_on

async def main(url, state, count, prefix):
    async with agent_on(url, Path(state)) as agent:
        for i in range(count):
            await agent.remember("alice", f"{prefix}{i}")
            print(json.dumps(i), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
"""


def start_agent(url: str, state: Path, count: int, prefix: str = "m") -> "subprocess.Popen[bytes]":
    """A process that hands turns over and then sits there."""
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-c", AGENT, url, str(state), str(count), prefix]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})


def acknowledged(process: "subprocess.Popen[bytes]", count: int) -> None:
    assert process.stdout is not None
    for i in range(count):
        assert json.loads(process.stdout.readline()) == i


async def spool_and_die(valkey: Valkey, state: Path) -> None:
    """An agent spools five turns while Redis is away, and is killed; Redis returns."""
    process = start_agent(valkey.url, state, 5)
    await asyncio.to_thread(acknowledged, process, 5)
    kill(process.pid)
    process.communicate()
    valkey.start()


async def test_what_a_killed_agent_spooled_is_sent_by_the_next_that_starts(valkey: Valkey, tmp_path: Path) -> None:
    valkey.stop()
    await spool_and_die(valkey, tmp_path)

    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("bob", "anything")
        await agent.all_seen(5)
        await agent.publisher.drained()

        assert await agent.seen() == [f"m{i}" for i in range(5)]
        assert list((tmp_path / "spool").iterdir()) == []


async def test_what_a_killed_agent_spooled_is_sent_by_a_process_that_only_reads(valkey: Valkey, tmp_path: Path) -> None:
    valkey.stop()
    async with agent_on(valkey.url, tmp_path) as reader:
        assert await reader.publisher.pending(ALICE) == ()
        await spool_and_die(valkey, tmp_path)

        assert await reader.all_seen(5) == [f"m{i}" for i in range(5)]
        await reader.publisher.drained()
        assert list((tmp_path / "spool").iterdir()) == []


async def test_what_a_killed_agent_spooled_is_sent_by_a_command(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    valkey.stop()
    await spool_and_die(valkey, tmp_path)

    env = {**environment(database.relay_url, valkey.url), "AFTERMIND_STATE_DIR": str(tmp_path)}
    done = await asyncio.to_thread(run_module, ["aftermind.cli", "remember", "Hello.", "--user", "bob"], env=env)

    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "spool").iterdir()) == []
    async with agent_on(valkey.url, tmp_path) as agent:
        assert await agent.all_seen(5) == [f"m{i}" for i in range(5)]


async def test_an_agent_killed_in_the_middle_of_draining_leaves_each_turn_once(valkey: Valkey, tmp_path: Path) -> None:
    valkey.stop()
    process = start_agent(valkey.url, tmp_path, 300)
    await asyncio.to_thread(acknowledged, process, 300)
    valkey.start()

    def some_sent() -> bool:
        with valkey.client() as client:
            return int(client.zcard("aftermind:index")) > 0

    await asyncio.to_thread(wait_until_sync, some_sent, description="the drain has begun")
    kill(process.pid)
    process.communicate()

    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("bob", "anything")

        assert await agent.all_seen(300) == [f"m{i}" for i in range(300)]
        await agent.publisher.drained()
        assert (await agent.pending.backlog()).turns == 301


async def test_a_living_agents_spool_is_not_taken_from_it(valkey: Valkey, tmp_path: Path) -> None:
    valkey.stop()
    process = start_agent(valkey.url, tmp_path, 3)
    try:
        await asyncio.to_thread(acknowledged, process, 3)
        process.send_signal(signal.SIGSTOP)
        spool = Spool(tmp_path / "spool", max_bytes=10**6)

        taken = await spool.take_over()

        assert taken == 0
        assert texts_of(await spool.pending(ALICE)) == ["m0", "m1", "m2"]  # seen by every process of the host
        spool.close()
    finally:
        kill(process.pid)
        process.communicate()


async def test_of_several_that_start_at_once_one_sends_the_orphans(valkey: Valkey, tmp_path: Path) -> None:
    orphan = Spool(tmp_path / "spool", max_bytes=10**6)
    for i in range(100):
        turn = turn_of("alice", f"m{i}")
        await orphan.append(turn, encode_turn(turn))
    orphan.close()
    spools = [Spool(tmp_path / "spool", max_bytes=10**6) for _ in range(4)]

    taken = await asyncio.gather(*(spool.take_over() for spool in spools))

    assert sorted(taken) == [0, 0, 0, 100]
    for spool in spools:
        spool.close()


async def test_a_fork_neither_keeps_nor_frees_its_parents_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=10**6)
    turn = turn_of("alice", "mine")
    await spool.append(turn, encode_turn(turn))
    other = Spool(tmp_path / "spool", max_bytes=10**6)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=signal.pause)
    child.start()
    try:
        assert await other.take_over() == 0  # the fork did not free it

        spool.close()

        await wait_until(other.take_over, description="nor does it hold it, once it runs")
    finally:
        child.kill()
        child.join()
        other.close()
