"""What a turn keeps the agent's event loop from: nothing one would notice, whatever Redis does."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cpu_time import callbacks, slowness
from tests.support.rabbitmq import refused_port
from tests.support.turns import Agent, agent_on
from tests.support.valkey import Valkey

MOST_MS = 5.0  # thread CPU time of one callback: what other processes do on this machine does not count
WORDS = ("x" * 200, "y" * 600)


def most_ms() -> float:
    return MOST_MS * slowness()


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
