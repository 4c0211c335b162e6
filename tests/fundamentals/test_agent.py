"""An agent with memory around it. The model is scripted; everything else is as users have it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aftermind import (
    Agent,
    AgentResult,
    Memory,
    Message,
    Role,
    Settings,
    Tool,
    block_tools,
    errors,
    get_run_context,
    sync,
)
from aftermind.agent import TextDelta, ToolCalled, ToolReturned
from aftermind.events.types import MemoryRecallCompleted
from aftermind.llm.protocols import ChatReply, ToolCall
from aftermind.testing import ScriptedChatModel
from tests.support.servers import Servers

Dicts = Sequence[Mapping[str, Any]]  # Any: chat messages


async def test_an_agent_remembers_what_was_said_and_recalls_it_in_another_session(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Noted.", "You prefer dark mode.")
    agent = Agent("You are helpful.", model=model, memory=memory)

    await agent.arun("I prefer dark mode.", user_id=user, session_id="monday")
    result = await agent.arun("Which mode do I prefer?", user_id=user, session_id="tuesday")

    assert result.text == "You prefer dark mode."
    assert model.calls[1][0]["content"].startswith("You are helpful.\n\n<memory")
    assert "I prefer dark mode." in model.calls[1][0]["content"]
    assert result.memory is not None


async def test_the_session_so_far_is_told_as_messages(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Hello Ann.", "Ann.")
    agent = Agent(model=model, memory=memory)

    await agent.arun("I am Ann.", user_id=user, session_id="s1")
    await agent.arun("Who am I?", user_id=user, session_id="s1")

    assert [message["content"] for message in model.calls[1][1:]] == ["I am Ann.", "Hello Ann.", "Who am I?"]


async def test_a_message_that_was_undone_is_in_no_later_prompt(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Hello Ann.", "I do not know.")
    agent = Agent(model=model, memory=memory)
    await agent.arun("I am Ann.", user_id=user, session_id="s1")
    await memory.drain(user_id=user)
    first, _ = await memory.history(user_id=user, session_id="s1")

    await memory.undo(first.id, user_id=user)
    await agent.arun("Who am I?", user_id=user, session_id="s1")

    assert [message["content"] for message in model.calls[1][1:]] == ["Hello Ann.", "Who am I?"]


async def test_a_message_of_the_session_is_in_the_prompt_once(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Noted.", "You prefer dark mode.")
    agent = Agent(model=model, memory=memory)
    await memory.remember("I prefer tea.", user_id=user, session_id="earlier")

    await agent.arun("I prefer dark mode.", user_id=user, session_id="s1")
    result = await agent.arun("Which mode do I prefer?", user_id=user, session_id="s1")

    prompt = " ".join(message["content"] for message in model.calls[1])
    assert prompt.count("I prefer dark mode.") == 1
    assert "I prefer tea." in model.calls[1][0]["content"], "what is of other sessions stays in the block"
    assert result.memory is not None
    assert len(result.memory.matches) <= result.memory.chunks_included


@pytest.mark.parametrize("key", [None, "order-17"])
@pytest.mark.parametrize("session", [None, "s1"])
async def test_a_run_leaves_nothing_of_what_is_forgotten_before_it_ends(
    memory: Memory, user: str, key: str | None, session: str | None
) -> None:
    class Waiting(ScriptedChatModel):
        async def stream(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> AsyncIterator[str | ChatReply]:
            asked.set()
            await forgotten.wait()
            async for piece in super().stream(messages, tools):
                yield piece

    asked, forgotten = asyncio.Event(), asyncio.Event()
    agent = Agent(model=Waiting("Your PIN is 4711."), memory=memory)
    await memory.remember("My PIN is 4711.", user_id=user, session_id="s1")
    await memory.remember("I live in Oslo.", user_id=user, session_id="other")

    run = asyncio.create_task(agent.arun("What is my PIN?", user_id=user, session_id="s1", idempotency_key=key))
    await asked.wait()
    await memory.forget(user_id=user, session_id=session)
    forgotten.set()
    receipt = (await run).receipt
    assert receipt is not None
    with pytest.raises(errors.Forgotten):
        await receipt.stored(timeout=30)
    kept = [] if session is None else ["I live in Oslo."]
    assert [each.content for each in await memory.history(user_id=user)] == kept

    await agent.arun("I moved to Bergen.", user_id=user, session_id="s1", idempotency_key="order-18")
    await memory.drain(user_id=user)
    assert [each.content for each in await memory.history(user_id=user)][len(kept)] == "I moved to Bergen."


async def test_a_turn_from_a_block_is_dropped_if_its_user_was_forgotten_since(memory: Memory, user: str) -> None:
    await memory.remember("My PIN is 4711.", user_id=user)
    block = await memory.recall("What is my PIN?", user_id=user)
    await memory.forget(user_id="another user")

    kept = await memory.remember("Thanks.", user_id=user, recalled=block)
    await kept.stored(timeout=30)
    await memory.forget(user_id=user)
    dropped = await memory.remember([Message.assistant("It is 4711.")], user_id=user, recalled=block.last_erasure)

    with pytest.raises(errors.Forgotten):
        await dropped.stored(timeout=30)
    assert await memory.history(user_id=user) == []
    with pytest.raises(errors.InvalidQuery, match="`last_erasure`"):
        await memory.remember("Hello.", user_id=user, recalled=block.text)  # type: ignore[arg-type]


async def test_a_turn_from_a_block_is_dropped_where_redis_has_lost_the_number_of_the_last_erasure(
    settings: Settings, servers: Servers, user: str
) -> None:
    alone = settings.model_copy(update={"redis_prefix": f"{user}:"})  # without workers nothing gives Redis the number
    for _ in range(2):
        async with Memory(settings=alone) as memory:
            await memory.remember("My PIN is 4711.", user_id=user)
            block = await memory.recall("What is my PIN?", user_id=user)
            await memory.remember("Thanks.", user_id=user, recalled=block)
            assert [each.content for each in await memory.history(user_id=user)] == ["My PIN is 4711.", "Thanks."]

            await memory.forget(user_id=user)
            await memory.remember([Message.assistant("It is 4711.")], user_id=user, recalled=block)
            assert await memory.history(user_id=user) == []
        async with Redis.from_url(servers.redis_url) as redis:
            await redis.delete(*[key async for key in redis.scan_iter(f"{user}:*")])


async def test_the_receipt_of_a_run_with_a_key_is_of_prompt_and_answer(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel("Noted."), memory=memory)
    result = await agent.arun("I live in Oslo.", user_id=user, session_id="s1", idempotency_key="order-17")
    assert result.receipt is not None

    await result.receipt.extracted(timeout=60)

    assert tuple(each.id for each in await memory.history(user_id=user)) == result.receipt.episode_ids
    status = await result.receipt.status()
    assert (status.stored, status.why) == ("done", None)
    undone = await memory.undo(*result.receipt.episode_ids, user_id=user)
    assert [fact.object for fact in undone.retracted] == ["Oslo"]


async def test_a_tool_knows_who_it_works_for(memory: Memory, user: str) -> None:
    def whoami(greeting: str) -> str:
        """Tell who is asking."""
        run = get_run_context()
        assert run is not None
        assert run.memory_context is not None
        return f"{greeting} {run.user_id} in {run.session_id}"

    model = ScriptedChatModel(ToolCall(id="1", name="whoami", arguments='{"greeting": "Hi"}'), "Done.")
    agent = Agent(model=model, memory=memory, tools=[whoami])

    await agent.arun("Who am I?", user_id=user, session_id="s1")

    assert model.calls[1][-1] == {"role": "tool", "tool_call_id": "1", "content": f"Hi {user} in s1"}
    assert model.tools[0][0]["function"]["parameters"]["properties"]["greeting"]["type"] == "string"
    assert get_run_context() is None


async def test_an_agent_edits_the_blocks_of_its_user_and_sees_them_in_the_next_run(memory: Memory, user: str) -> None:
    def call(name: str, arguments: str) -> ToolCall:
        return ToolCall(id="1", name=name, arguments=arguments)

    model = ScriptedChatModel(
        call("append_to_block", '{"name": "todo", "line": "buy tea"}'),
        call("append_to_block", '{"name": "todo", "line": "call mum"}'),
        call("replace_in_block", '{"name": "todo", "old": "tea", "new": "coffee"}'),
        call("replace_in_block", '{"name": "todo", "old": "milk", "new": "water"}'),
        "Done.",
        call("list_blocks", "{}"),
        call("delete_block", '{"name": "todo"}'),
        "Gone.",
    )
    agent = Agent(model=model, memory=memory, tools=block_tools(memory), save={"facts"})

    await agent.arun("Note what I have to do.", user_id=user)

    block = await memory.blocks.get("todo", user_id=user)
    assert block is not None
    assert block.content == "buy coffee\ncall mum"
    assert "error" in model.calls[4][-1]["content"], "the model hears what it got wrong"
    assert await memory.blocks.list(user_id=f"not {user}") == []

    await agent.arun("What do I have to do?", user_id=user)

    assert "buy coffee" in model.calls[5][0]["content"], "blocks are loaded, whatever is saved"
    assert "call mum" in model.calls[6][-1]["content"]
    assert await memory.blocks.list(user_id=user) == []


def test_block_tools_are_for_a_memory_without_await_too() -> None:
    call = ToolCall(id="1", name="write_block", arguments='{"name": "todo", "content": "buy tea"}')
    with sync.Memory("inmemory") as memory:
        model = ScriptedChatModel(call, "Done.")
        sync.Agent(model=model, memory=memory, tools=block_tools(memory)).run("Note it.", user_id="ann")

        block = memory.blocks.get("todo", user_id="ann")
        assert block is not None
        assert block.content == "buy tea"


async def test_a_block_tool_outside_of_a_run_knows_nobody(memory: Memory) -> None:
    answer, failed = await block_tools(memory)[0].run("{}")

    assert failed
    assert "no run here" in answer


async def test_a_stream_tells_recall_tools_text_and_the_turn_in_their_order(memory: Memory, user: str) -> None:
    async def add(left: int, right: int) -> int:
        return left + right

    model = ScriptedChatModel(ToolCall(id="1", name="add", arguments='{"left": 2, "right": 3}'), "It is five.")
    agent = Agent(model=model, memory=memory, tools=[add])

    events = [event async for event in agent.arun_stream("What is 2 + 3?", user_id=user)]

    kinds = [type(event).__name__ for event in events if not isinstance(event, TextDelta)]
    assert kinds == [
        "MemoryRecallStarted",
        "MemoryRecallCompleted",
        "ToolCalled",
        "ToolReturned",
        "MemoryUpdateQueued",
        "AgentResult",
    ]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is five."


async def test_only_a_trusted_tool_teaches_facts(memory: Memory, user: str) -> None:
    def crm() -> str:
        return "I live in Bergen."

    for trusted, learnt in ((False, []), (True, ["user"])):
        model = ScriptedChatModel(ToolCall(id="1", name="crm", arguments="{}"), "Thanks.")
        agent = Agent(model=model, memory=memory, tools=[Tool.of(crm, trusted=trusted)])
        someone = f"{user}-{trusted}"
        await agent.arun("Look me up.", user_id=someone, session_id="s1")
        await memory.drain(user_id=someone)
        facts = await memory.facts.query(user_id=someone, predicate="lives_in")
        assert [fact.subject for fact in facts] == learnt


@pytest.mark.parametrize("arguments", ['{"number": "many"}', "{", "[]", "{}"])
async def test_a_call_that_is_wrong_is_told_to_the_model(arguments: str) -> None:
    def double(number: int) -> int:
        return 2 * number

    model = ScriptedChatModel(ToolCall(id="1", name="double", arguments=arguments), "Sorry.")

    events = [event async for event in Agent(model=model, tools=[double]).arun_stream("Double many.")]

    (returned,) = [event for event in events if isinstance(event, ToolReturned)]
    assert returned.failed
    assert returned.content.startswith("error: ")
    assert events[-1].text == "Sorry."  # type: ignore[union-attr]


async def test_a_model_that_never_stops_calling_tools_is_made_to_answer() -> None:
    model = ScriptedChatModel(ToolCall(id="1", name="again", arguments="{}"))

    events = [event async for event in Agent(model=model, tools=[again], max_steps=3).arun_stream("Go.")]

    assert sum(isinstance(event, ToolCalled) for event in events) == 3
    assert model.tools[-1] == [], "no tools are offered any more"
    assert events[-1].finish_reason == "max_steps"  # type: ignore[union-attr]


async def test_a_memory_that_fails_as_a_whole_does_not_fail_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(model=ScriptedChatModel("Hello."), memory=_nowhere(tmp_path))

    events = [event async for event in agent.arun_stream("Hi", user_id="u", session_id="s")]
    again = await agent.arun("Hi", user_id="u", session_id="s")

    assert isinstance(events[-1], AgentResult)
    assert events[-1].text == again.text == "Hello."
    assert again.memory
    assert again.memory.degraded, "a block without text is not false: it has the reason"
    assert [type(event).__name__ for event in events].count("MemoryUpdateFailed") == 1, "of the turn alone"
    assert caplog.text.count("memory fails, the agent answers without it (step=history, reason=") == 1


async def test_a_stream_reports_a_turn_as_saved_although_the_history_cannot_be_read(tmp_path: Path) -> None:
    agent = Agent(model=ScriptedChatModel("Hello."), memory=_nowhere(tmp_path, spool_max_bytes=1_000_000))

    events = [event async for event in agent.arun_stream("Hi", user_id="u", session_id="s")]

    kinds = [type(event).__name__ for event in events if not isinstance(event, TextDelta)]
    assert kinds == ["MemoryRecallStarted", "MemoryRecallCompleted", "MemoryUpdateQueued", "AgentResult"]
    (recalled,) = [event for event in events if isinstance(event, MemoryRecallCompleted)]
    assert "StoreUnavailable" in (recalled.degraded or "")


@pytest.mark.parametrize("session_id", ["s", None])
async def test_a_strict_agent_raises_what_its_memory_raises(tmp_path: Path, session_id: str | None) -> None:
    agent = Agent(model=ScriptedChatModel("Hello."), memory=_nowhere(tmp_path), strict=True)

    with pytest.raises(errors.Unavailable):
        await agent.arun("Hi", user_id="u", session_id=session_id)


async def test_a_strict_agent_names_the_remedy_of_its_own_store() -> None:
    agent = Agent(model=ScriptedChatModel("Hello."), memory="sqlite:/proc/nowhere/memory.db", strict=True)

    with pytest.raises(errors.StoreUnavailable, match="Choose a file") as failed:
        await agent.arun("Hi", user_id="u")

    assert "Postgres" not in str(failed.value)


async def test_what_the_model_raises_is_raised(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel(errors.ModelUnavailable("test", "down")), memory=memory)

    with pytest.raises(errors.ModelUnavailable):
        await agent.arun("Hi", user_id=user)


async def test_what_the_user_said_is_remembered_although_the_model_fails(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel(errors.ModelUnavailable("test", "down")), memory=memory)

    with pytest.raises(errors.ModelUnavailable):
        await agent.arun("I live in Bergen.", user_id=user, session_id="s1")

    assert [each.content for each in await memory.history(user_id=user, session_id="s1")] == ["I live in Bergen."]


class OwnModel:
    """A model of a user: pieces of text, and a reply without usage, an error or nothing at the end."""

    name = "own-1"

    def __init__(self, end: ChatReply | Exception | None) -> None:
        self._end = end

    async def stream(self, messages: Dicts, tools: Dicts = ()) -> AsyncIterator[str | ChatReply]:
        yield "You live in "
        if isinstance(self._end, Exception):
            raise self._end
        if self._end is not None:
            yield self._end


async def test_the_usage_of_an_own_model_has_its_name() -> None:
    result = await Agent(model=OwnModel(ChatReply(content="You live in Oslo."))).arun("Where do I live?")

    assert [each.model for each in result.usage] == ["own-1"]


async def test_an_own_model_without_a_reply_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(errors.BadModelAnswer, match=r"own-1 .* without a `ChatReply`"):
        await Agent(model=OwnModel(None)).arun("Where do I live?")


async def test_a_model_that_fails_after_some_text_leaves_the_users_message_alone_to_a_run(
    memory: Memory, user: str
) -> None:
    agent = Agent(model=OwnModel(errors.ModelUnavailable("own-1", "down")), memory=memory)

    with pytest.raises(errors.ModelUnavailable):
        await agent.arun("I live in Bergen.", user_id=user, session_id="s1")

    assert [each.content for each in await memory.history(user_id=user, session_id="s1")] == ["I live in Bergen."]


async def test_a_run_that_is_sent_again_with_its_key_is_one_turn(memory: Memory, user: str) -> None:
    failing = Agent(model=ScriptedChatModel(errors.ModelUnavailable("test", "down")), memory=memory)
    with pytest.raises(errors.ModelUnavailable):
        await failing.arun("I live in Bergen.", user_id=user, session_id="s1", idempotency_key="order-17")
    for _ in range(2):
        agent = Agent(model=ScriptedChatModel("Noted."), memory=memory)
        await agent.arun("I live in Bergen.", user_id=user, session_id="s1", idempotency_key="order-17")

    said = await memory.history(user_id=user, session_id="s1")
    assert [each.content for each in said] == ["I live in Bergen.", "Noted."]


class BreakingModel(ScriptedChatModel):
    """It fails after its last word."""

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),  # Any: of chat messages and tools
    ) -> AsyncIterator[str | ChatReply]:
        async for piece in super().stream(messages, tools):
            if isinstance(piece, ChatReply):
                raise errors.ModelUnavailable("test", "down")
            yield piece


async def test_a_stream_that_is_closed_early_ends_the_request_of_the_model(user: str) -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Words without end, until the client leaves."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        word = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        word["choices"] = [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"data: " + json.dumps(word).encode() + b"\n\n")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(65_536), timeout=0.05)
        ended.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        asked = Settings(embedder="hash", extractor="rules", openai_api_key="k", openai_base_url=url)
        async with Memory("inmemory", settings=asked) as memory:
            stream = Agent(model="any", memory=memory).arun_stream("Hi", user_id=user, session_id="s1")
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
            await stream.aclose()

            await asyncio.wait_for(ended.wait(), timeout=10)
            said = await memory.history(user_id=user)
    assert [(each.content, each.metadata.get("interrupted")) for each in said] == [("Hi", None), ("word ", True)]


@pytest.mark.parametrize("finish_reason", [None, "length", "error"])
async def test_an_answer_that_was_cut_off_is_recognised(user: str, finish_reason: str | None) -> None:
    """By a gateway that ends the response in good form, by the model's limit of tokens, or by an event of an error."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for word, reason in (("I hear ", None), ("you: ", finish_reason)):
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            chunk["choices"] = [{"index": 0, "delta": {"content": word}, "finish_reason": reason}]
            writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if finish_reason == "error":
            writer.write(b'data: {"error": {"message": "upstream died", "type": "server_error", "code": 500}}\n\n')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        asked = Settings(embedder="hash", extractor="rules", openai_api_key="k", openai_base_url=url)
        async with Memory("inmemory", settings=asked) as memory:
            named = {"user_id": user, "session_id": "s1", "idempotency_key": "q1"}
            if finish_reason != "length":
                with pytest.raises(errors.ModelUnavailable, match=r"without a finish_reason|it answered 500"):
                    [each async for each in Agent(model="any", memory=memory).arun_stream("It is blue.", **named)]
                await Agent(model=ScriptedChatModel("I hear you: blue."), memory=memory).arun("It is blue.", **named)
            else:
                assert (await Agent(model="any", memory=memory).arun("It is blue.", **named)).finish_reason == "length"
            said = await memory.history(user_id=user)
    cut = [("I hear you: ", True), ("I hear you: blue.", None)]
    answers = [(each.content, each.metadata.get("interrupted")) for each in said[1:]]
    assert answers == ([("I hear you: ", None)] if finish_reason == "length" else cut)


@pytest.mark.parametrize("wrong", ["search", 5, {"name": "search"}])
def test_what_is_no_tool_is_refused_when_the_agent_is_made(wrong: Any) -> None:  # Any: as a user may give it
    with pytest.raises(errors.InvalidSettings, match="a tool is a function"):
        Agent(model=ScriptedChatModel("Hi."), tools=[wrong])


async def test_a_misspelt_kind_to_save_is_refused_before_anything_runs() -> None:
    for wrong in ({"histroy"}, "history"):
        with pytest.raises(errors.InvalidSettings, match="save"):
            Agent(model=ScriptedChatModel("Hi."), memory="inmemory", save=wrong)  # type: ignore[arg-type]


async def test_a_retry_of_a_stream_whose_model_failed_adds_the_whole_answer(memory: Memory, user: str) -> None:
    async def run(model: ScriptedChatModel) -> None:
        agent = Agent(model=model, memory=memory)
        stream = agent.arun_stream("I live in Bergen.", user_id=user, session_id="s1", idempotency_key="order-17")
        _ = [each async for each in stream]

    with pytest.raises(errors.ModelUnavailable):
        await run(BreakingModel("Noted, Ber"))
    await run(ScriptedChatModel("Noted, Bergen."))
    await run(ScriptedChatModel("Noted again."))

    said = await memory.history(user_id=user, session_id="s1")
    assert [each.content for each in said] == ["I live in Bergen.", "Noted, Ber", "Noted, Bergen."]
    assert [each.metadata.get("interrupted") for each in said] == [None, True, None]


async def test_a_retry_that_gets_another_answer_is_the_turn_of_the_first_run(
    memory: Memory, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(model=ScriptedChatModel("Noted.", "I will.", "I did."), memory=memory, strict=True)
    runs = [
        await agent.arun("I live in Bergen.", user_id=user, session_id="s1", idempotency_key="order-17")
        for _ in range(3)
    ]

    assert all(run.receipt is not None for run in runs)
    assert [each.content for each in await memory.history(user_id=user, session_id="s1")] == [
        "I live in Bergen.",
        "Noted.",
    ]
    assert not caplog.records


async def test_a_retry_whose_answer_is_too_large_for_one_turn_is_the_turn_of_the_first_run() -> None:
    settings = Settings(message_max_bytes=4_000, turn_max_bytes=5_000)
    async with Memory("inmemory", settings=settings) as memory:
        agent = Agent(model=ScriptedChatModel("a" * 3_000, "b" * 3_000), memory=memory, strict=True)
        for _ in range(2):
            run = await agent.arun(
                "I live in Bergen. " * 150, user_id="ann", session_id="s", idempotency_key="order-17"
            )
            assert run.receipt is not None

        said = await memory.history(user_id="ann", session_id="s")
        assert [each.content[:1] for each in said] == ["I", "a"]


async def test_a_key_of_another_prompt_is_a_conflict_that_takes_no_answer_away(
    memory: Memory, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    for prompt, is_stored in (("I live in Bergen.", True), ("I live in Oslo.", False)):
        agent = Agent(model=ScriptedChatModel("Noted."), memory=memory)
        result = await agent.arun(prompt, user_id=user, session_id="s1", idempotency_key="order-17")
        assert (result.text, result.receipt is not None) == ("Noted.", is_stored)

    (record,) = caplog.records
    assert "idempotency_key='order-17'" in str(record.__dict__["reason"])
    assert record.exc_info is None
    with pytest.raises(errors.IdempotencyConflict):
        await Agent(model=ScriptedChatModel("Noted."), memory=memory, strict=True).arun(
            "I live in Oslo.", user_id=user, session_id="s1", idempotency_key="order-17"
        )


async def test_the_key_of_a_prompt_does_not_ask_for_the_metadata_of_a_retry(memory: Memory, user: str) -> None:
    failing = Agent(model=ScriptedChatModel(errors.ModelUnavailable("test", "down")), memory=memory)
    agent = Agent(model=ScriptedChatModel("Noted."), memory=memory)
    owner = {"user_id": user, "session_id": "s1"}
    with pytest.raises(errors.ModelUnavailable):
        await failing.arun("I live in Bergen.", idempotency_key="order-18", metadata={"attempt": 1}, **owner)

    result = await agent.arun("I live in Bergen.", idempotency_key="order-18", metadata={"attempt": 2}, **owner)

    assert result.receipt is not None
    await result.receipt.stored(timeout=30)
    stored = [(each.content, each.metadata.get("attempt")) for each in await memory.history(**owner)]
    assert stored == [("I live in Bergen.", 1), ("Noted.", 2)]


async def test_a_prompt_with_another_attachment_is_another_prompt(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel("A cat.", "A dog."), memory=memory, strict=True)

    def prompt(name: str) -> list[Message]:
        return [Message.user("What is this?", metadata={"attachments": [{"name": name}]})]

    await agent.arun(messages=prompt("cat.png"), user_id=user, idempotency_key="k")
    with pytest.raises(errors.IdempotencyConflict):
        await agent.arun(messages=prompt("dog.png"), user_id=user, idempotency_key="k")


async def test_tool_calls_and_their_results_are_fed_to_the_next_run_if_wanted(user: str) -> None:
    async def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    call = ToolCall(id="c1", name="weather", arguments='{"city": "Bergen"}')
    model = ScriptedChatModel(call, "It rains.", "As I said, rain.")
    agent = Agent(model=model, memory="inmemory", tools=[weather], feed_tool_call_results=True)
    await agent.arun("What is the weather in Bergen?", user_id=user, session_id="s1")
    await agent.arun("And now?", user_id=user, session_id="s1")

    fed = model.calls[2][1:]
    assert [message["role"] for message in fed] == ["user", "assistant", "tool", "assistant", "user"]
    assert (fed[1]["tool_calls"][0]["id"], fed[2]["tool_call_id"], fed[2]["content"]) == ("c1", "c1", "rain in Bergen")
    assert "rain in Bergen" not in model.calls[2][0]["content"], "each message is in the prompt once"
    assert agent.memory is not None
    block = await agent.memory.recall("weather in Bergen", user_id=user, session_id="s1")
    assert "rain in Bergen" in block.text
    assert not [line for line in block.text.splitlines() if line.rstrip().endswith(":")], "a tool call has no words"
    assert agent.memory is not None
    await agent.memory.close()


async def test_a_conversation_that_the_caller_keeps_takes_the_place_of_the_history(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Hello Ann.", "Ann.", "In Bergen.")
    agent = Agent("You are helpful.", model=model, memory=memory)
    talk: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for said in ("I am Ann.", "Who am I?", "I live in Bergen. Where do I live?"):
        talk.append({"role": "user", "content": said})
        answer = await agent.arun(messages=talk, user_id=user, session_id="s1")
        talk.append({"role": "assistant", "content": answer.text})

    assert [message["content"] for message in model.calls[2][1:]] == [each["content"] for each in talk[:-1]]
    prompt = " ".join(message["content"] for message in model.calls[2])
    assert prompt.count("I am Ann.") == 1, "neither the history nor the block repeats it"
    stored = [each.content for each in await memory.history(user_id=user, session_id="s1")]
    assert stored == [each["content"] for each in talk[1:]], "each message is remembered once, without instructions"


async def test_the_model_gets_a_given_conversation_with_its_tool_results_images_and_names(
    memory: Memory, user: str
) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "price", "arguments": "{}"}}]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000}}
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "How much is a cap?", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "12 EUR"},
        {"role": "assistant", "content": "12 EUR."},
        {"role": "user", "content": [{"type": "text", "text": "And this one?"}, picture]},
    ]
    model = ScriptedChatModel("20 EUR.")

    await Agent(model=model, memory=memory).arun(messages=talk, user_id=user)

    assert model.calls[0][1:] == [talk[0], {**talk[1], "content": ""}, *talk[2:]]
    (question, _) = await memory.history(user_id=user)
    assert question.content == "And this one?"
    assert "sha256" in str(question.metadata["attachments"])


async def test_messages_that_are_none_are_a_named_error(memory: Memory) -> None:
    with pytest.raises(errors.InvalidMessage):
        await Agent(model=ScriptedChatModel("Hello."), memory=memory).arun(messages=5)  # type: ignore[arg-type]


def test_an_agent_without_await_is_the_one_for_a_memory_without_await() -> None:
    with sync.Memory("inmemory") as memory:
        with pytest.raises(errors.InvalidSettings, match=r"aftermind\.sync\.Agent"):
            Agent(model=ScriptedChatModel("Hello."), memory=memory)  # type: ignore[arg-type]
        sync.Agent(model=ScriptedChatModel("Hello."), memory=memory).run("I like tea.", user_id="ann")
        assert len(memory.history(user_id="ann")) == 2
    with pytest.raises(errors.InvalidSettings, match=r"aftermind\.sync\.Memory"):
        sync.Agent(model=ScriptedChatModel("Hello."), memory=Memory("inmemory"))  # type: ignore[arg-type]


async def test_messages_of_a_run_are_several_or_typed_and_metadata_is_remembered(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel("Noted."), memory=memory)
    messages = [Message.assistant("Hi."), Message.user("I am Ann."), Message(role=Role.USER, content="I like tea.")]

    result = await agent.arun(messages=messages, user_id=user, session_id="s1", metadata={"channel": "mail"})

    said = await memory.history(user_id=user, session_id="s1")
    assert [each.content for each in said] == ["I am Ann.", "I like tea.", "Noted."]
    assert all(each.metadata == {"channel": "mail"} for each in said)
    assert [message.content for message in result.messages] == ["I am Ann.", "I like tea.", "Noted."]


async def test_metadata_of_a_run_makes_no_tool_trusted(memory: Memory, user: str) -> None:
    def crm() -> str:
        return "I live in Bergen."

    model = ScriptedChatModel(ToolCall(id="1", name="crm", arguments="{}"), "Thanks.")
    agent = Agent(model=model, memory=memory, tools=[crm])

    await agent.arun("Look me up.", user_id=user, session_id="s1", metadata={"trusted": True})
    await memory.drain(user_id=user)

    assert await memory.facts.query(user_id=user, predicate="lives_in") == []


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "Hi", "messages": ["Hi"]},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "Hi."}]},
        {"messages": [{"role": "nobody", "content": "Hi."}]},
        {"prompt": "Hi", "metadata": {"n": float("nan")}},
    ],
)
async def test_a_run_without_a_question_of_the_user_is_refused(memory: Memory, user: str, given: Any) -> None:
    model = ScriptedChatModel("Hello.")

    with pytest.raises(errors.InvalidMessage):
        await Agent(model=model, memory=memory).arun(**given, user_id=user)

    assert model.calls == [], "nothing was asked, so nothing was paid"


async def test_a_memory_can_be_given_by_its_url() -> None:
    agent = Agent(model=ScriptedChatModel("Noted."), memory="inmemory")

    await agent.arun("I live in Bergen.", user_id="ann")

    assert isinstance(agent.memory, Memory)
    assert len(await agent.memory.history(user_id="ann")) == 2
    await agent.memory.close()


async def test_who_stops_listening_has_heard_a_part_and_that_part_is_remembered(memory: Memory, user: str) -> None:
    agent = Agent(model=ScriptedChatModel("One two three four."), memory=memory)

    stream = agent.arun_stream("Count.", user_id=user, session_id="s1")
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    await stream.aclose()

    said = await memory.history(user_id=user, session_id="s1")
    assert [each.content for each in said] == ["Count.", "One"]
    assert said[1].metadata == {"interrupted": True}


async def test_what_is_saved_and_what_is_loaded_are_apart(memory: Memory, user: str) -> None:
    model = ScriptedChatModel("Noted.", "I do not know.")
    agent = Agent(model=model, memory=memory, load={"summary"})

    await agent.arun("I prefer dark mode.", user_id=user, session_id="s1")
    await agent.arun("Which mode do I prefer?", user_id=user, session_id="s1")

    assert "dark mode" not in str(model.calls[1])
    assert len(await memory.history(user_id=user, session_id="s1")) == 4


def test_an_agent_can_be_run_without_an_event_loop() -> None:
    agent = Agent(model=ScriptedChatModel("Hello."))

    assert agent.run("Hi").text == "Hello."
    assert [event.text for event in agent.run_stream("Hi") if isinstance(event, TextDelta)] == ["Hello."]


def test_the_receipt_of_a_run_without_await_needs_none() -> None:
    with sync.Memory("inmemory") as memory:
        agent = sync.Agent(model=ScriptedChatModel("Noted."), memory=memory)

        whole = agent.run("I live in Oslo.", user_id="ann")
        *_, streamed = agent.run_stream("I live in Bergen.", user_id="ann")

        assert isinstance(streamed, sync.AgentResult)
        for result in (whole, streamed):
            assert isinstance(result, AgentResult)
            assert result.receipt is not None
            result.receipt.extracted(timeout=20)
            assert result.receipt.status().stored == "done"


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_stream_without_await_that_is_closed_early_is_remembered_when_it_is_closed(is_closed: bool) -> None:
    with sync.Memory("inmemory") as memory:
        stream = sync.Agent(model=ScriptedChatModel("One two three four."), memory=memory).run_stream(
            "Count.", user_id="ann", session_id="s1"
        )

        for event in stream:
            if isinstance(event, TextDelta):
                break
        if is_closed:
            stream.close()
        else:
            del stream

        assert [each.content for each in memory.history(user_id="ann")] == ["Count.", "One"]


@pytest.mark.parametrize("has_open_memory", [True, False])
def test_a_stream_that_is_open_when_the_process_ends_is_remembered(tmp_path: Path, has_open_memory: bool) -> None:
    store = f"sqlite:{tmp_path}/bot.db"
    code = f"""
from aftermind import TextDelta
from aftermind.sync import Agent, Memory
from aftermind.testing import ScriptedChatModel

with Memory({store!r}) as memory:
    stream = Agent(model=ScriptedChatModel("One two three."), memory=memory).run_stream("Count.", user_id="ann")
    next(event for event in stream if isinstance(event, TextDelta))
{"memory.history()" if has_open_memory else ""}
"""

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    with sync.Memory(store) as memory:
        assert [each.content for each in memory.history(user_id="ann")] == ["Count.", "One"]


async def test_a_blocking_run_inside_a_loop_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="arun"):
        Agent(model=ScriptedChatModel("Hello.")).run("Hi")


def test_without_a_key_or_a_model_the_error_says_what_to_do() -> None:
    with pytest.raises(errors.InvalidSettings, match="OPENAI_API_KEY"):
        Agent().run("Hi")


@pytest.mark.parametrize("prompt", ["", "   ", None, 7])
async def test_an_empty_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(errors.InvalidMessage):
        await Agent(model=ScriptedChatModel("Hello.")).arun(prompt)


async def test_many_runs_at_once_keep_their_users_apart(memory: Memory, user: str) -> None:
    def whoami() -> str:
        run = get_run_context()
        return str(run.user_id if run else None)

    async def ask(number: int) -> bool:
        model = ScriptedChatModel(ToolCall(id="1", name="whoami", arguments="{}"), "Done.")
        await Agent(model=model, memory=memory, tools=[whoami]).arun("Who?", user_id=f"{user}-{number}")
        return bool(model.calls[1][-1]["content"] == f"{user}-{number}")

    assert all(await asyncio.gather(*(ask(number) for number in range(20))))


def again() -> str:
    return "again"


def _nowhere(folder: Path, *, spool_max_bytes: int = 0) -> Memory:
    """A memory whose servers are not there, and that may not spool either by default."""
    settings = Settings(state_dir=folder, spool_max_bytes=spool_max_bytes)
    return Memory("postgresql://nobody@127.0.0.1:1/none", broker="redis://127.0.0.1:1/0", settings=settings)


@pytest.mark.parametrize("missing", ["name", "stream"])
def test_a_model_that_cannot_be_used_is_refused_when_the_agent_is_made(missing: str) -> None:
    parts = {"name": "mine", "stream": lambda self, messages, tools=(): None}
    model = type("Mine", (), {name: part for name, part in parts.items() if name != missing})()

    with pytest.raises(errors.InvalidSettings, match="an object with `name` and `stream`"):
        Agent(model=model)
