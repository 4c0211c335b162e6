"""Pydantic AI: the capability, in runs of the framework's own agent with a scripted model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.profiles import ModelProfile

from aftermind import Memory, Settings, errors
from aftermind.integrations.conversations import NOTE
from aftermind.integrations.pydantic_ai import AftermindMemory
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.support.servers import Database


class Scripted:
    """A model that gives these answers, and keeps what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.seen = list(answers), []  # type: ignore[var-annotated]

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(messages)
        answer = self.answers.pop(0) if self.answers else "Fine."
        if isinstance(answer, Exception):
            raise answer
        return ModelResponse(parts=[TextPart(answer) if isinstance(answer, str) else answer])

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer)

    def prompts(self, call: int = -1) -> list[str]:
        """The texts of the user's role."""
        requests = [each for each in self.seen[call] if isinstance(each, ModelRequest)]
        return [str(part.content) for each in requests for part in each.parts if isinstance(part, UserPromptPart)]


def agent_of(memory: Memory, script: Scripted, **options: Any) -> Agent[str | None, str]:
    return Agent(
        script.model, instructions="Be brief.", deps_type=str, capabilities=[AftermindMemory(memory, **options)]
    )


async def test_a_run_is_recalled_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        return (await memory.recall("Where do I live?", user_id="alice")).text
    """
    async with standing_replica(database):
        await agent_of(memory, Scripted("Noted."), user_id="alice").run("I live in Oslo.")
        elsewhere = await read_elsewhere(settings, code)

    assert "I live in Oslo." in str(elsewhere)


async def test_a_run_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    agent = agent_of(memory, Scripted("Noted."), user_id="alice")

    said = await stored_after_a_kill(memory, settings, tmp_path, lambda: agent.run("I live in Oslo."), user_id="alice")

    assert said == ["I live in Oslo.", "Noted."]


async def test_what_is_recalled_is_data_of_the_user_and_not_in_the_history(memory: Memory) -> None:
    script = Scripted("Noted.", ToolCallPart("look", {}, tool_call_id="c1"), "In Oslo.")
    agent = agent_of(memory, script, user_id=lambda ctx: ctx.deps)

    @agent.tool
    def look(ctx: RunContext[str | None]) -> str:
        return "nothing"

    await agent.run("I live in Oslo.", deps="alice")
    result = await agent.run("Where do I live?", deps="alice")

    for call in (1, 2):  # before and after the tool
        note, question = script.prompts(call)
        assert note.startswith(NOTE)
        assert "I live in Oslo." in note
        assert question == "Where do I live?"
    assert all(each.instructions in (None, "Be brief.") for each in script.seen[-1] if isinstance(each, ModelRequest))
    assert NOTE not in str(result.all_messages())
    said = [each.content for each in await memory.history(user_id="alice")]
    assert said == ["I live in Oslo.", "Noted.", "Where do I live?", "In Oslo."]


async def test_one_agent_serves_users_who_do_not_see_each_other(memory: Memory) -> None:
    script = Scripted()
    agent = agent_of(memory, script, user_id=lambda ctx: ctx.deps)
    await agent.run("I live in Oslo.", deps="alice")

    await agent.run("Where do I live?", deps="bob")

    assert script.prompts() == ["Where do I live?"]


async def test_a_conversation_is_a_session_and_only_its_new_messages_are_remembered(memory: Memory) -> None:
    script = Scripted("One.", "Two.")
    agent = agent_of(memory, script, user_id="alice")

    first = await agent.run("I live in Oslo.", conversation_id="s1")
    await agent.run("And you?", message_history=first.all_messages(), conversation_id="s1")

    said = [each.content for each in await memory.history(user_id="alice", session_id="s1")]
    assert said == ["I live in Oslo.", "One.", "And you?", "Two."]
    assert script.prompts() == ["I live in Oslo.", "And you?"]  # what the history has is not recalled


async def test_a_run_that_fails_or_is_cancelled_is_remembered(memory: Memory) -> None:
    with pytest.raises(RuntimeError):
        await agent_of(memory, Scripted(RuntimeError("no model")), user_id="alice").run("I live in Oslo.")
    started = asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    agent = Agent(FunctionModel(slow), capabilities=[AftermindMemory(memory, user_id="alice")])
    run = asyncio.create_task(agent.run("I like tea."))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo.", "I like tea."]


async def test_an_answer_is_given_although_the_run_cannot_be_remembered(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*args: Any, **kwargs: Any) -> None:
        raise errors.QueueFull("store", 1, 1)

    monkeypatch.setattr(memory, "remember", refuse)

    result = await agent_of(memory, Scripted("Yes."), user_id="alice").run("Do you hear me?")

    assert result.output == "Yes."
    assert "not remembered" in caplog.text


async def test_a_structured_answer_is_remembered_as_json(memory: Memory) -> None:
    class Home(BaseModel):
        city: str

    def name(city: str) -> str:
        return f"You live in {city}."

    call = {"city": "Oslo"}
    outputs: list[tuple[Any, list[Any]]] = [
        (Home, [ToolCallPart("final_result", call)]),
        (name, [ToolCallPart("final_result", call)]),
        (NativeOutput(Home), ['{"city": "Oslo"}']),
        ([Home, str], ["In Oslo."]),
    ]
    for number, (output, answers) in enumerate(outputs):
        model = FunctionModel(Scripted(*answers).answer, profile=ModelProfile(supports_json_schema_output=True))
        memories = AftermindMemory(memory, user_id=f"user {number}")
        await Agent(model, output_type=output, capabilities=[memories]).run("Where do I live?")

    said = [[each.content for each in await memory.history(user_id=f"user {number}")] for number in range(4)]
    assert [answer for _, answer in said] == [
        '{"city":"Oslo"}',
        "You live in Oslo.",
        '{"city": "Oslo"}',
        "In Oslo.",
    ]


async def test_an_answer_is_given_although_nothing_can_be_recalled(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    result = await agent_of(memory, Scripted("Yes."), user_id="x" * 600).run("Do you hear me?")

    assert result.output == "Yes."
    assert "nothing was recalled" in caplog.text


async def test_attacks_reach_the_model_as_data_only(memory: Memory) -> None:
    script = Scripted()
    agent = agent_of(memory, script, user_id=lambda ctx: ctx.deps, options={"mode": "recency"})

    async def ask(user: str, question: str) -> tuple[str, str]:
        await agent.run(question, deps=user)
        # Pydantic AI puts a warning of its own before a user's text that has `<system>` in it, escaped or not.
        prompts = [each for each in script.prompts() if "looks like an application frame" not in each]
        return str(script.seen[-1][-1].instructions), "\n".join(prompts)

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("pydantic-ai.md", tmp_path)

    assert "I live in Oslo." in shown
