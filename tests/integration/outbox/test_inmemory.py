"""A store of one process: its turns are worked off here, in order, by the same handlers as workers run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aftermind import Memory, Settings, errors
from aftermind.receipt import StepState


def memory_in(state_dir: Path, **changed: Any) -> Memory:  # Any: settings by name
    named: dict[str, Any] = {"state_dir": state_dir, "extract_quiet_seconds": 0.1, "embedder": "hash", **changed}
    return Memory("inmemory", settings=Settings(**named))


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Memory]:
    async with memory_in(tmp_path) as made:
        yield made


async def test_a_turn_is_stored_embedded_and_mined_without_workers(memory: Memory) -> None:
    receipt = await memory.remember("I moved to Oslo.", user_id="alice", session_id="s1")

    await receipt.stored(timeout=180)
    await receipt.embedded(timeout=10)
    await receipt.extracted(timeout=180)

    assert [episode.content for episode in await memory.history(user_id="alice")] == ["I moved to Oslo."]
    assert (await receipt.status()).stored is StepState.DONE


async def test_a_turn_is_recalled_at_once_also_before_it_is_stored(memory: Memory) -> None:
    await memory.remember("My dog is called Pixel.", user_id="alice")

    assert "Pixel" in (await memory.recall("What is my dog called?", user_id="alice")).text


async def test_a_session_keeps_its_order_and_each_turn_is_there_once(memory: Memory) -> None:
    receipts = [await memory.remember(f"m{i}", user_id="alice", session_id="s1") for i in range(50)]
    await receipts[-1].stored(timeout=180)
    for receipt in receipts:
        await receipt.stored(timeout=180)

    said = [episode.content for episode in await memory.history(user_id="alice", session_id="s1", limit=100)]

    assert said == [f"m{i}" for i in range(50)]


async def test_the_same_key_is_the_same_turn(memory: Memory) -> None:
    first = await memory.remember("once", user_id="alice", idempotency_key="k")
    await first.stored(timeout=180)
    again = await memory.remember("once", user_id="alice", idempotency_key="k")
    await again.stored(timeout=180)

    assert len(await memory.history(user_id="alice")) == 1


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    async with memory_in(tmp_path, pending_max_turns=3) as memory:

        async def flood() -> None:
            await asyncio.gather(*(memory.remember(f"m{i}", user_id="alice") for i in range(50)))

        with pytest.raises(errors.QueueFull, match="pending turns"):
            await flood()


async def test_closing_finishes_what_can_run(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    receipts = [await memory.remember(f"m{i}", user_id="alice") for i in range(20)]

    await memory.close()

    assert {(await receipt.status()).stored for receipt in receipts} == {StepState.DONE}


async def test_it_works_from_one_event_loop_after_another(tmp_path: Path) -> None:
    async with memory_in(tmp_path) as memory:

        def in_a_loop_of_its_own(text: str) -> None:
            async def one() -> None:
                await (await memory.remember(text, user_id="alice")).stored(timeout=180)

            asyncio.run(one())

        for text in ("a", "b", "c"):
            await asyncio.to_thread(in_a_loop_of_its_own, text)

        assert [episode.content for episode in await memory.history(user_id="alice")] == ["a", "b", "c"]


async def test_nothing_is_written_to_disk(tmp_path: Path) -> None:
    async with memory_in(tmp_path / "state") as memory:
        await (await memory.remember("x", user_id="alice")).stored(timeout=180)

    assert not (tmp_path / "state").is_dir()
