"""Turns larger than the limit: `remember` refuses them, and whatever makes turns itself splits them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aftermind import Agent, Memory, Settings, errors
from aftermind.cli import importers, ingest
from aftermind.integrations.conversations import remember_run
from aftermind.testing import ScriptedChatModel

LIMIT = 1_000
TEXTS = [letter * 400 for letter in "abcd"]


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    settings = Settings(turn_max_bytes=LIMIT, extract_quiet_seconds=0.0, extract_max_wait_seconds=0.0)
    async with Memory("inmemory", settings=settings, extractor="rules", embedder="hash") as opened:
        yield opened


async def answer_an_agent(memory: Memory, folder: Path) -> None:
    *given, answer = TEXTS
    agent = Agent(model=ScriptedChatModel(answer), memory=memory)
    await agent.arun(messages=given, user_id="ann", session_id="s")


async def end_a_run(memory: Memory, folder: Path) -> None:
    await remember_run(memory, [("user", text) for text in TEXTS], user_id="ann", session_id="s")


async def ingest_a_file_twice(memory: Memory, folder: Path) -> None:
    path = folder / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": text} for text in TEXTS]}) + "\n")
    found = list(importers.read(path, user="ann", session="s"))
    for known in (0, len(TEXTS)):
        done = await ingest.play(memory, found, wait=False)
        assert not done.bad
        assert (done.messages, done.known) == (len(TEXTS), known)


@pytest.mark.parametrize("hand_over", [answer_an_agent, end_a_run, ingest_a_file_twice])
async def test_messages_larger_than_a_turn_are_all_remembered_once_and_in_order(
    memory: Memory, tmp_path: Path, hand_over: Callable[[Memory, Path], Awaitable[None]]
) -> None:
    await hand_over(memory, tmp_path)

    assert [each.content for each in await memory.history(user_id="ann", session_id="s")] == TEXTS


async def test_a_turn_over_the_limit_is_refused_before_anything_is_handed_over(memory: Memory) -> None:
    with pytest.raises(errors.InvalidMessage, match="AFTERMIND_TURN_MAX_BYTES"):
        await memory.remember(TEXTS, user_id="ann", session_id="s")

    assert await memory.history(user_id="ann", session_id="s") == []
