"""Microsoft Agent Framework: the context provider, in runs of the framework's own agent with a scripted client."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Message

from aftermind import Memory, Settings
from aftermind.integrations.agent_framework import AftermindProvider
from aftermind.integrations.conversations import NOTE
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.support.servers import Database


class Scripted(BaseChatClient):
    """A client that gives these answers, and keeps what it was sent."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers, self.seen = list(answers), []  # type: ignore[var-annotated]

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        async def answer() -> ChatResponse:
            self.seen.append((str(options.get("instructions")), [(each.role, each.text) for each in messages]))
            text = self.answers.pop(0) if self.answers else "Fine."
            return ChatResponse(messages=[Message("assistant", [text])], response_id="r")

        return answer()


def agent_of(memory: Memory, client: Scripted, **options: Any) -> Agent:
    return Agent(client, instructions="Be brief.", context_providers=[AftermindProvider(memory, **options)])


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


async def test_what_is_recalled_is_a_message_of_the_user_that_is_not_remembered(memory: Memory) -> None:
    client = Scripted("Noted.", "In Oslo.")
    agent = agent_of(memory, client, user_id=lambda session: session.state["user"])
    first, second = agent.create_session(session_id="s1"), agent.create_session(session_id="s2")
    first.state["user"] = second.state["user"] = "alice"

    await agent.run("I live in Oslo.", session=first)
    await agent.run("Where do I live?", session=second)

    instructions, messages = client.seen[-1]
    ((role, note),) = [each for each in messages if each[1].startswith(NOTE)]
    assert role == "user"
    assert "I live in Oslo." in note
    assert messages[-1] == ("user", "Where do I live?")
    assert NOTE not in instructions
    assert [each.content for each in await memory.history(user_id="alice", session_id="s2")] == [
        "Where do I live?",
        "In Oslo.",
    ]
    restored = type(second).from_dict(second.to_dict())
    assert restored.session_id == "s2"


async def test_one_agent_serves_users_who_do_not_see_each_other(memory: Memory) -> None:
    client = Scripted()
    agent = agent_of(memory, client, user_id=lambda session: session.state["user"])
    for user, text in (("alice", "I live in Oslo."), ("bob", "Where do I live?")):
        session = agent.create_session()
        session.state["user"] = user
        await agent.run(text, session=session)

    assert "Oslo" not in str(client.seen[-1])


@pytest.mark.parametrize(("session_id", "text"), [("s" * 600, "Hello."), ("s1", "word " * 250_000)])
async def test_an_answer_is_given_although_nothing_can_be_recalled(
    memory: Memory, caplog: pytest.LogCaptureFixture, session_id: str, text: str
) -> None:
    agent = agent_of(memory, Scripted("Yes."), user_id="alice")

    response = await agent.run(text, session=agent.create_session(session_id=session_id))

    assert response.text == "Yes."
    assert "nothing was recalled" in caplog.text


async def test_attacks_reach_the_model_as_data_only(memory: Memory) -> None:
    client = Scripted()
    agent = agent_of(memory, client, user_id=lambda session: session.state["user"], mode="recency")

    async def ask(user: str, question: str) -> tuple[str, str]:
        session = agent.create_session()
        session.state["user"] = user
        await agent.run(question, session=session)
        instructions, messages = client.seen[-1]
        system = [text for role, text in messages if role == "system"]
        return f"{instructions} {system}", "\n".join(text for role, text in messages if role != "system")

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("agent-framework.md", tmp_path)

    assert "I live in Oslo." in shown
