"""What a turn keeps the agent's event loop from: nothing one would notice, whatever Redis does."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from tests.support.rabbitmq import refused_port
from tests.support.turns import Agent, agent_on
from tests.support.valkey import Valkey

MOST_MS = 5.0  # thread CPU time of one callback: what other processes do on this machine does not count
UNIT = 28_000  # squares to add: 1 ms where `MOST_MS` was measured
WORDS = ("x" * 200, "y" * 600)


@contextmanager
def callbacks() -> Iterator[list[float]]:
    """Thread CPU milliseconds of every callback of a loop within the block."""
    taken: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        taken.append((time.thread_time() - started) * 1e3)

    gc.collect()
    gc.freeze()  # a full collection of all that the test suite has loaded takes 70 ms, and is not the turn's
    try:
        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield taken
    finally:
        gc.unfreeze()


@cache
def most_ms() -> float:
    """`MOST_MS` on this machine, by how long it takes for what takes 1 ms on the one where that was measured."""
    taken = []
    for _ in range(20):
        started = time.thread_time()
        sum(number * number for number in range(UNIT))
        taken.append((time.thread_time() - started) * 1e3)
    return MOST_MS * max(1.0, min(taken))


async def busy(agent: Agent, turns: int = 100) -> float:
    """The longest callback while turns are handed over, a few at once, from the very first on."""
    with callbacks() as taken:
        for i in range(0, turns, 4):
            await asyncio.gather(*(agent.remember(f"u{i + j}", *WORDS) for j in range(4)))
    assert len(taken) > turns / 4
    return max(taken)


async def test_a_turn_never_blocks_the_loop(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        assert await busy(agent) < most_ms()


async def test_a_frozen_redis_blocks_no_loop(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, remember_budget_seconds=0.2) as agent:
        await agent.remember("warm")
        with valkey.frozen():
            assert await busy(agent) < most_ms()


@pytest.mark.parametrize("broker", [None, "amqp"])
async def test_a_redis_that_refuses_blocks_no_loop(tmp_path: Path, broker: str | None) -> None:
    nowhere = f"redis://127.0.0.1:{refused_port()}/0"
    amqp = f"amqp://guest:guest@127.0.0.1:{refused_port()}//"
    async with agent_on(nowhere, tmp_path, broker=amqp if broker else None) as agent:
        assert await busy(agent) < most_ms()


async def test_two_hundred_tasks_at_once_block_the_loop_no_longer(valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        await agent.remember("warm")
        with callbacks() as taken:
            await asyncio.gather(*(agent.remember(f"u{i}", *WORDS) for i in range(200)))

        assert max(taken) < 2 * most_ms()  # packing and reading a group of fifty
