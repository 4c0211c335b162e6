"""LlamaIndex: the memory block and the memory, with the framework's own queue and agent."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory as ChatMemory

from aftermind import Memory, Settings
from aftermind.integrations.conversations import NOTE
from aftermind.integrations.llama_index import AftermindMemory, AftermindMemoryBlock
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.support.servers import Database

SYSTEM = ChatMessage(role="system", content="Be brief.")


def memory_of(memory: Memory, session_id: str = "s1", **options: Any) -> AftermindMemory:
    block = AftermindMemoryBlock(memory=memory, **options)
    return AftermindMemory.from_defaults(session_id=session_id, memory_blocks=[block], tokenizer_fn=str.split)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


async def test_a_message_is_recalled_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        return (await memory.recall("Where do I live?", user_id="alice")).text
    """
    async with standing_replica(database):
        await memory_of(memory, user_id="alice").aput(user("I live in Oslo."))
        elsewhere = await read_elsewhere(settings, code)

    assert "I live in Oslo." in str(elsewhere)


async def test_messages_survive_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    chat = memory_of(memory, user_id="alice")

    def write() -> Awaitable[None]:
        return chat.aput(user("I live in Oslo."))

    said = await stored_after_a_kill(memory, settings, tmp_path, write, user_id="alice")

    assert said == ["I live in Oslo."]


async def test_another_session_recalls_before_the_queue_is_full(memory: Memory) -> None:
    await memory_of(memory, "s1", user_id="alice").aput_messages(
        [user("I live in Oslo."), ChatMessage(role="assistant", content="Noted.")]
    )
    chat = memory_of(memory, "s2", user_id="alice")
    await chat.aput(SYSTEM)
    await chat.aput(user("Where do I live?"))

    system, question = await chat.aget()

    assert system.content == "Be brief."
    assert question.role == "user"
    assert NOTE.strip() in str(question.content)
    assert "I live in Oslo." in str(question.content)
    assert str(question.content).endswith("Where do I live?")
    assert str(question.content).count("Where do I live?") == 1  # the queue has it
    assert [each.content for each in await memory.history(user_id="alice", session_id="s1")] == [
        "I live in Oslo.",
        "Noted.",
    ]
    other = memory_of(memory, "s3", user_id="bob")
    await other.aput(user("Where do I live?"))
    assert "Oslo" not in str(await other.aget())


@pytest.mark.parametrize("make", [AftermindMemory, AftermindMemory.from_defaults])
async def test_what_is_recalled_is_not_in_the_system_message_however_the_memory_is_made(
    memory: Memory, make: Callable[..., AftermindMemory]
) -> None:
    await memory.remember({"role": "user", "content": "I live in Oslo."}, user_id="alice")
    block = AftermindMemoryBlock(memory=memory, user_id="alice")
    limits = {"token_limit": 1_000, "token_flush_size": 500}
    chat = make(session_id="s1", memory_blocks=[block], tokenizer_fn=str.split, **limits)
    await chat.aput(user("Where do I live?"))

    (question,) = await chat.aget()

    assert question.role == "user"
    assert "I live in Oslo." in str(question.content)


async def test_a_message_that_leaves_the_queue_is_not_remembered_twice(memory: Memory) -> None:
    chat = memory_of(memory, user_id="alice")
    chat.token_limit, chat.token_flush_size = 20, 5
    texts = [f"Message number {number} of a long conversation." for number in range(6)]

    for text in texts:
        await chat.aput(user(text))

    assert [each.content for each in await memory.history(user_id="alice")] == texts


async def test_a_block_of_a_plain_memory_gets_what_leaves_the_queue(memory: Memory) -> None:
    block = AftermindMemoryBlock(memory=memory, user_id="alice")
    chat = ChatMemory.from_defaults(
        session_id="s1", token_limit=20, token_flush_size=5, memory_blocks=[block], tokenizer_fn=str.split
    )
    for number in range(6):
        await chat.aput(user(f"Message number {number} of a long conversation."))

    said = await memory.history(user_id="alice", session_id="s1")
    assert said[0].content == "Message number 0 of a long conversation."
    assert 0 < len(said) < 6


async def test_messages_are_returned_although_nothing_can_be_recalled(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    chat = memory_of(memory, "s" * 600, user_id="alice")
    await chat.aput(user("Do you hear me?"))

    assert [each.content for each in await chat.aget()] == ["Do you hear me?"]
    assert "nothing was recalled" in caplog.text


async def test_attacks_reach_the_model_as_data_only(memory: Memory) -> None:
    async def ask(who: str, question: str) -> tuple[str, str]:
        chat = memory_of(memory, user_id=who, options={"mode": "recency"})
        await chat.aput(SYSTEM)
        await chat.sql_store.add_messages("s1", [user(question)])
        system, prompt = (await chat.aget())[0], (await chat.aget())[-1]
        inner = str(prompt.content)
        return str(system.content), inner[inner.index(NOTE.strip()) :]

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("llama-index.md", tmp_path)

    assert "I live in Oslo." in shown
