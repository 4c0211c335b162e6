"""The drop-in for TFrameX's memory stores: what its documentation shows, with TFrameX's own agent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tframex import BaseLLMWrapper, BaseMemoryStore, TFrameXApp
from tframex.models.primitives import FunctionCall, Message, ToolCall

import aftermind
from aftermind import Memory, Settings, errors
from aftermind.integrations.tframex import AftermindMemoryStore
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS, wait_until

CALL = ToolCall(id="c1", function=FunctionCall(name="look", arguments="{}"))
MESSAGES = [
    Message(role="user", content="What is in it?"),
    Message(role="assistant", content=None, tool_calls=[CALL]),
    Message(role="tool", content="A cat.", tool_call_id="c1", name="look"),
    Message(role="assistant", content="A cat."),
]


@pytest.fixture
def store(memory: Memory) -> AftermindMemoryStore:
    return AftermindMemoryStore(memory, session_id="s1", user_id="alice")


async def fill(store: AftermindMemoryStore, *texts: str) -> None:
    for text in texts:
        await store.add_message(Message(role="user", content=text))


async def texts(store: AftermindMemoryStore, **options: Any) -> list[str | None]:
    return [each.content for each in await store.get_history(**options)]


async def test_messages_come_back_as_they_were_in_another_process(
    store: AftermindMemoryStore, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.tframex import AftermindMemoryStore
        store = AftermindMemoryStore(memory, session_id="s1", user_id="alice")
        return [each.model_dump(mode="json") for each in await store.get_history()]
    """
    async with standing_replica(database):
        for message in MESSAGES:
            await store.add_message(message)
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == [each.model_dump(mode="json") for each in MESSAGES]
    assert await store.get_history() == MESSAGES
    assert isinstance(store, BaseMemoryStore)


async def test_messages_survive_a_killed_worker(
    store: AftermindMemoryStore, memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    said = await stored_after_a_kill(memory, settings, tmp_path, lambda: fill(store, "one", "two"), user_id="alice")

    assert said == ["one", "two"]


async def test_a_history_has_the_newest_messages_and_begins_with_no_lone_tool_result(
    store: AftermindMemoryStore,
) -> None:
    for message in MESSAGES:
        await store.add_message(message)

    assert await store.get_history(limit=1) == MESSAGES[-1:]
    assert await store.get_history(limit=2) == MESSAGES[-1:]
    assert await store.get_history(limit=2, offset=2) == MESSAGES[:2]
    assert await store.get_history(roles=["tool"]) == MESSAGES[2:3]
    await store.clear()
    assert await store.get_history() == []


async def test_a_window_of_tokens_has_tool_results_with_their_calls(memory: Memory) -> None:
    long = ToolCall(id="c2", function=FunctionCall(name="look", arguments=json.dumps({"at": "x" * 3_000})))
    result = Message(role="tool", content="A dog.", tool_call_id="c2", name="look")
    said = [*MESSAGES, Message(role="assistant", content=None, tool_calls=[long]), result]
    store = AftermindMemoryStore(memory, session_id="s1", user_id="alice", max_tokens=100_000)
    for message in said:
        await store.add_message(message)

    assert await store.get_history() == said


async def test_a_large_message_is_cut_and_keeps_its_call(store: AftermindMemoryStore) -> None:
    for content in ("x" * 300_000, "A cat."):
        await store.add_message(MESSAGES[2].model_copy(update={"content": content}))

    large, small = await store.get_history(roles=["tool"])
    assert (large.tool_call_id, small) == ("c1", MESSAGES[2])
    assert re.fullmatch(r"x{262000,}\n\[cut: 300,000 bytes, sha256 \w{64}\]", str(large.content))


async def test_metadata_of_the_store_changes_no_message(memory: Memory) -> None:
    store = AftermindMemoryStore(memory, session_id="s1", user_id="alice", metadata={"record": "medical"})
    await fill(store, "I live in Oslo.")

    assert await texts(store) == ["I live in Oslo."]
    reserved = AftermindMemoryStore(memory, session_id="s1", metadata={"aftermind.record": "medical"})
    with pytest.raises(errors.InvalidMessage, match="reserved"):
        await fill(reserved, "I live in Oslo.")


async def test_an_undone_message_is_not_in_the_history() -> None:
    async with memory_of_one_process() as memory:
        store = AftermindMemoryStore(memory, session_id="s1", user_id="alice")
        await fill(store, "I live in Oslo.", "I like tea.")
        await undo_oldest(memory, user_id="alice")

        assert await texts(store) == ["I like tea."]
        assert [each.content for each in await store.search()] == ["I like tea."]
        await fill(store, "I like jazz.")
        await memory.drain(user_id="alice")
        newest = (await memory.history(user_id="alice"))[-1]
        await memory.undo(newest.id, user_id="alice")
        assert [each.content for each in await store.search(limit=1)] == ["I like tea."]


async def test_windows_tokens_scopes_and_filters(store: AftermindMemoryStore, memory: Memory) -> None:
    await fill(store, *(f"Message {number} about tea." for number in range(6)))
    window = AftermindMemoryStore(memory, session_id="s1", user_id="alice", window_size=2)
    tokens = AftermindMemoryStore(memory, session_id="s1", user_id="alice", max_tokens=20)
    noted = AftermindMemoryStore(memory, session_id="s2", user_id="alice", metadata={"topic": "home"})
    await fill(noted, "I live in Oslo.")

    assert await texts(window) == ["Message 4 about tea.", "Message 5 about tea."]
    assert 0 < len(await texts(tokens)) < 6
    assert await texts(tokens) == (await texts(store))[-len(await texts(tokens)) :]
    assert await texts(store.scoped(user_id="bob")) == []
    found = await store.search("Where do I live?", all_sessions=True, metadata={"topic": "home"})
    assert [each.content for each in found] == ["I live in Oslo."]
    assert [each.content for each in await store.search(limit=1)] == ["Message 5 about tea."]
    with pytest.raises(errors.InvalidQuery, match="window_size"):
        AftermindMemoryStore(memory, session_id="s1", window_size=0)


class Echo(BaseLLMWrapper):
    """A model that keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(model_id="echo")
        self.seen: list[list[Message]] = []

    async def chat_completion(self, messages: Any, stream: bool = False, **kwargs: Any) -> Any:
        self.seen.append(list(messages))
        return Message(role="assistant", content="Fine.")

    async def close(self) -> None: ...


async def test_an_agent_of_tframex_continues_in_another_run(store: AftermindMemoryStore) -> None:
    llm = Echo()
    app = TFrameXApp(default_llm=llm)
    app.agent(name="a", system_prompt="Be brief.", memory_store=store)(lambda: None)
    for text in (f"Message {number}." for number in range(8)):
        async with app.run_context() as running:
            await running.call_agent("a", Message(role="user", content=text))

    last = llm.seen[-1]
    assert last[-1].content == "Message 7."  # the newest is among the 10 that the agent asks for
    assert [each.content for each in last[1:]][-3:] == ["Message 6.", "Fine.", "Message 7."]


def split_history(prompt: str) -> tuple[str, str]:
    """All but the text of the first message of a history, and that text."""
    (role, said), *rest = json.loads(prompt)
    return json.dumps([role, *rest]), said


async def test_attacks_are_messages_of_the_users_role() -> None:
    async def tell(user: str, message: aftermind.Message) -> None:
        store = AftermindMemoryStore(memory, session_id="s1", user_id=user)
        await store.add_message(Message(role="user", content=message.content))

    async def ask(user: str, question: str) -> tuple[str, str]:
        llm = Echo()
        app = TFrameXApp(default_llm=llm)
        store = AftermindMemoryStore(memory, session_id="s1", user_id=user)
        app.agent(name="a", system_prompt="Be brief.", memory_store=store)(lambda: None)
        async with app.run_context() as running:
            await running.call_agent("a", Message(role="user", content=question))
        system, *history = llm.seen[-1]
        assert system.role == "system"
        return str(system.content), json.dumps([(each.role, each.content) for each in history])

    async with Memory("inmemory") as memory:
        await assert_attacks_stay_data(memory, ask, tell=tell, split=split_history)


async def test_a_summary_is_data_of_a_message_of_the_user() -> None:
    waits = {f"summary_{wait}_seconds": 0.0 for wait in ("quiet", "max_wait")}
    async with Memory("inmemory", settings=Settings(summary_turns=1, **waits)) as memory:
        store = AftermindMemoryStore(memory, session_id="s1", user_id="alice", window_size=1, summary=True)
        await fill(store, "I live in Oslo & like tea.", "I like jazz & rain.")

        async def is_summarised() -> bool:
            return await memory.summary(user_id="alice", session_id="s1") is not None

        await wait_until(is_summarised, description="the session has a summary", timeout=PATIENCE_SECONDS)
        summary, newest = await store.get_history()

    assert (summary.role, newest.content) == ("user", "I like jazz & rain.")
    assert re.fullmatch(r"Summary of the conversation so far:\n<summary>\n[^<>]*\n</summary>", str(summary.content))
    assert "jazz &amp; rain" in str(summary.content)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("tframex.md", tmp_path)

    assert "I live in Oslo." in shown
