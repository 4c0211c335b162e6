"""The OpenAI Agents SDK: the session and the recall filter, in runs of the SDK's own runner."""

import asyncio
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session, SessionSettings
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from aftermind import Memory, Settings, errors
from aftermind.integrations.openai_agents import AftermindSession, recall_callback, recall_filter
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database

set_tracing_disabled(True)

ITEMS: list[Any] = [
    {"role": "user", "content": "What is the weather in Oslo? \U0001f327"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}', "id": "f1"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain\n" * 4_000},
    {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "x" * 40_000},
    {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Rain.", "annotations": [], "logprobs": []}],
    },
    {"role": "user", "content": [{"type": "input_image", "image_url": "https://x.example/1.png", "detail": "auto"}]},
    {"role": "developer", "content": ""},
]


class Scripted(Model):
    """A model that gives these answers, and keeps what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.inputs = list(answers), []  # type: ignore[var-annotated]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        self.inputs.append((system_instructions, input))
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def said(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[part])


@pytest.fixture
def session(memory: Memory) -> AftermindSession:
    return AftermindSession("s1", memory, user_id="alice")


async def test_an_undone_item_is_not_read_back() -> None:
    async with memory_of_one_process() as memory:
        session = AftermindSession("s1", memory, user_id="alice")
        await session.add_items([ITEMS[0], ITEMS[4]])
        await undo_oldest(memory, user_id="alice")

        assert await session.get_items() == await session.get_items(limit=2) == [ITEMS[4]]


async def test_items_come_back_as_they_were_in_another_process_while_the_replica_stands_still(
    session: AftermindSession, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.openai_agents import AftermindSession
        return await AftermindSession("s1", memory, user_id="alice").get_items()
    """
    async with standing_replica(database):
        await session.add_items(ITEMS[:3])
        await session.add_items(ITEMS[3:])
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == ITEMS
    assert await session.get_items() == ITEMS
    assert await session.get_items(limit=2) == ITEMS[-2:]
    assert await session.get_items(limit=0) == []
    assert isinstance(session, Session)
    expected = get_type_hints(Session, localns={"SessionSettings": SessionSettings})
    assert {name: get_type_hints(AftermindSession)[name] for name in expected} == expected  # as a type checker does


async def test_items_survive_a_killed_worker(
    session: AftermindSession, memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    stored = await stored_after_a_kill(
        memory, settings, tmp_path, lambda: session.add_items([ITEMS[0], ITEMS[4]]), user_id="alice"
    )

    assert stored == [ITEMS[0]["content"], "Rain."]


async def test_a_limit_of_the_settings_holds_where_the_call_has_none(memory: Memory) -> None:
    session = AftermindSession("s1", memory, session_settings=SessionSettings(limit=1))
    await session.add_items(ITEMS[:2])

    assert await session.get_items() == ITEMS[1:2]
    assert await session.get_items(limit=5) == ITEMS[:2]


async def test_items_are_popped_from_the_newest_until_none_is_left(session: AftermindSession) -> None:
    await session.add_items(ITEMS[:3])

    assert [await session.pop_item() for _ in range(4)] == [ITEMS[2], ITEMS[1], ITEMS[0], None]
    assert await session.get_items() == []
    await session.add_items(ITEMS[:1])
    assert await session.get_items() == ITEMS[:1]


async def test_a_cleared_session_is_empty_and_others_are_not(memory: Memory, session: AftermindSession) -> None:
    other, of_bob = AftermindSession("s2", memory, user_id="alice"), AftermindSession("s1", memory, user_id="bob")
    for each in (session, other, of_bob):
        await each.add_items(ITEMS[:1])

    await session.clear_session()

    assert [await each.get_items() for each in (session, other, of_bob)] == [[], ITEMS[:1], ITEMS[:1]]


async def test_a_batch_that_was_added_in_part_is_completed_by_a_repeated_call(
    session: AftermindSession, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[Any] = [{"role": "user", "content": f"{number} " * 100_000} for number in range(8)]
    real, calls = memory.remember, 0

    async def fail_once(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise errors.QueueFull("store", 1, 1)
        return await real(*args, **kwargs)

    monkeypatch.setattr(memory, "remember", fail_once)
    with pytest.raises(errors.QueueFull):
        await session.add_items(items)
    assert 0 < len(await session.get_items()) < 8
    await session.add_items(items)
    assert await session.get_items() == items

    await session.add_items(items[:1])
    await session.add_items(items[:1])

    assert await session.get_items() == [*items, items[0], items[0]]


async def test_a_batch_with_an_item_that_is_too_large_is_not_added_at_all(session: AftermindSession) -> None:
    with pytest.raises(errors.MessageTooLarge):
        await session.add_items([ITEMS[0], {"type": "function_call_output", "call_id": "c", "output": "x" * 300_000}])

    assert await session.get_items() == []


async def test_concurrent_batches_stay_whole(session: AftermindSession) -> None:
    await asyncio.gather(
        *(session.add_items([{"role": "user", "content": f"{n} {part}"} for part in range(3)]) for n in range(10))
    )

    texts = [item["content"].split() for item in await session.get_items()]  # type: ignore[union-attr,index]
    assert [part for _, part in texts] == ["0", "1", "2"] * 10
    assert all(len({n for n, _ in texts[at : at + 3]}) == 1 for at in range(0, 30, 3))


async def test_a_run_continues_the_session_with_its_tool_calls(session: AftermindSession) -> None:
    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    asked = ResponseFunctionToolCall(call_id="c1", name="weather", arguments='{"city": "Oslo"}', type="function_call")
    model = Scripted(asked, said("Take an umbrella."), said("You asked about Oslo."))
    agent = Agent(name="a", model=model, tools=[weather])

    await Runner.run(agent, "What is the weather in Oslo?", session=session)
    await Runner.run(agent, "What did I ask?", session=session)

    _, seen = model.inputs[-1]
    assert [each.get("type", each.get("role")) for each in seen] == [
        "user",
        "function_call",
        "function_call_output",
        "message",
        "user",
    ]
    assert seen[2]["output"] == "rain in Oslo"
    assert len(await session.get_items()) == 6


@pytest.mark.parametrize(
    ("parameter", "recalling"),
    [("session_input_callback", recall_callback), ("call_model_input_filter", recall_filter)],
)
async def test_recall_is_added_as_data_and_not_saved(
    memory: Memory, session: AftermindSession, parameter: str, recalling: Any
) -> None:
    await memory.remember("I live in Oslo.", user_id="alice", session_id="earlier")
    await memory.remember("I live in Bergen.", user_id="bob")
    model = Scripted(said("In Oslo."))
    config = RunConfig(**{parameter: recalling(memory, user_id="alice", session_id="s1")})

    await Runner.run(
        Agent(name="a", instructions="Be brief.", model=model), "Where do I live?", session=session, run_config=config
    )

    instructions, (added, question) = model.inputs[0]
    assert instructions == "Be brief."
    assert added["role"] == "user"
    assert "I live in Oslo." in added["content"]
    assert "Bergen" not in added["content"]
    assert question["content"] == "Where do I live?"
    saved = await session.get_items()
    assert len(saved) == 2
    assert not any("<memory" in str(each) for each in saved)


async def test_recall_is_added_once_a_run_before_the_new_input(memory: Memory, session: AftermindSession) -> None:
    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    asked = ResponseFunctionToolCall(call_id="c1", name="weather", arguments='{"city": "Oslo"}', type="function_call")
    model = Scripted(said("Noted."), asked, said("Rain."), said("Yes."))
    config = RunConfig(session_input_callback=recall_callback(memory, user_id="alice"))
    agent = Agent(name="a", model=model, tools=[weather])
    await memory.remember("Oslo is where I live and work.", user_id="alice", session_id="earlier")

    for question in ("I live in Oslo.", "Does it rain where I live?"):
        await Runner.run(agent, question, session=session, run_config=config)

    _, seen = model.inputs[-1]
    assert ["<memory" in str(each) for each in seen] == [False, False, True, False, False, False]
    assert "Oslo is where I live and work." in seen[2]["content"]
    assert seen[3]["content"] == "Does it rain where I live?"
    assert not any("<memory" in str(each) for each in await session.get_items())

    await Runner.run(agent, "Is there rain in Oslo?", session=session, run_config=config)
    [added] = [each for each in model.inputs[-1][1] if "<memory" in str(each)]
    assert "rain in Oslo" not in added["content"], "the model has the result of the tool"


@pytest.mark.parametrize(
    ("parameter", "recalling"),
    [("session_input_callback", recall_callback), ("call_model_input_filter", recall_filter)],
)
async def test_recall_repeats_no_message_that_the_model_is_given_anyway(
    memory: Memory, session: AftermindSession, parameter: str, recalling: Any
) -> None:
    model = Scripted(said("Oslo is a fine place to live."), said("In Oslo."))
    config = RunConfig(**{parameter: recalling(memory, user_id="alice", session_id="s1")})
    await memory.remember("I live at the harbour.", user_id="alice", session_id="earlier")

    for question in ("I live in Oslo.", "Where do I live?"):
        await Runner.run(Agent(name="a", model=model), question, session=session, run_config=config)

    _, seen = model.inputs[-1]
    together = "\n".join(str(each["content"]) for each in seen)
    assert together.count("I live at the harbour.") == 1
    assert together.count("I live in Oslo.") == 1
    assert together.count("Oslo is a fine place to live.") == 1


@pytest.mark.parametrize(
    ("parameter", "recalling"),
    [("session_input_callback", recall_callback), ("call_model_input_filter", recall_filter)],
)
async def test_attacks_reach_the_model_as_data_only(memory: Memory, parameter: str, recalling: Any) -> None:
    async def ask(user: str, question: str) -> tuple[str, str]:
        model = Scripted(said("Fine."))
        config = RunConfig(**{parameter: recalling(memory, user_id=user, mode="recency")})
        agent, session = Agent(name="a", instructions="Be brief.", model=model), SQLiteSession("s1")
        await Runner.run(agent, question, session=session, run_config=config)
        ((instructions, items),) = model.inputs
        assert {each["role"] for each in items} == {"user"}
        return instructions, "\n".join(each["content"] for each in items)

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("openai-agents.md", tmp_path)

    assert "I live in Oslo." in shown
