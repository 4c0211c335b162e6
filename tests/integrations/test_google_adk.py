"""Google ADK: the memory service, in runs of the framework's own runner with a scripted model."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools import load_memory
from google.genai import types

from aftermind import Memory, Settings
from aftermind.integrations.google_adk import AftermindMemoryService
from tests.attacks.corpus import attacks
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.pages import run_examples
from tests.support.servers import Database

APP = {"app_name": "app", "user_id": "alice"}
WHOSE = {"namespace": "app", "user_id": "alice"}


def event(text: str, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    return Event(author=author, content=types.Content(role=role, parts=[types.Part(text=text)]), **fields)


def session_of(*events: Event, **fields: Any) -> Session:
    return Session(id="s1", events=list(events), **{**APP, **fields})


async def search(service: AftermindMemoryService, query: str, **whose: str) -> list[str]:
    found = await service.search_memory(query=query, **{**APP, **whose})
    return [each.content.parts[0].text for each in found.memories]  # type: ignore[index,misc]


async def test_a_session_is_found_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.google_adk import AftermindMemoryService
        service = AftermindMemoryService(memory)
        found = await service.search_memory(app_name="app", user_id="alice", query="Where do I live?")
        return [each.content.parts[0].text for each in found.memories]
    """
    async with standing_replica(database):
        await AftermindMemoryService(memory).add_session_to_memory(session_of(event("I live in Oslo.")))
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == ["I live in Oslo."]


async def test_a_session_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    session = session_of(event("I live in Oslo."), event("Noted.", "agent"))

    async def add_twice() -> None:
        await AftermindMemoryService(memory).add_session_to_memory(session)
        await AftermindMemoryService(memory).add_session_to_memory(session)

    said = await stored_after_a_kill(memory, settings, tmp_path, add_twice, **WHOSE)

    assert said == ["I live in Oslo.", "Noted."]


async def test_a_session_that_is_added_again_adds_only_its_new_events(memory: Memory) -> None:
    service = AftermindMemoryService(memory)
    events = [event("I live in Oslo."), event("part", "agent", partial=True), event("Noted.", "agent")]

    await service.add_session_to_memory(session_of(*events))
    await service.add_session_to_memory(session_of(*events, event("I live in Oslo.")))  # the same words once more
    await service.add_events_to_memory(events=events, session_id="s1", **APP)

    said = [each.content for each in await memory.history(session_id="s1", **WHOSE)]
    assert said == ["I live in Oslo.", "Noted.", "I live in Oslo."]


async def test_a_deleted_event_does_not_come_back_with_its_session(memory: Memory) -> None:
    service = AftermindMemoryService(memory)
    session = session_of(event("My PIN is 1234."), event("I live in Oslo."))
    await service.add_session_to_memory(session)
    (found,) = [
        each for each in (await service.search_memory(query="PIN", **APP)).memories if "PIN" in str(each.content.parts)
    ]

    await service.delete_memory(memory_id=found.id, **APP)
    await service.add_session_to_memory(session)

    assert await search(service, "PIN") == []
    assert await search(service, "Where do I live?") == ["I live in Oslo."]


async def test_apps_and_users_do_not_see_each_other(memory: Memory) -> None:
    service, shared = AftermindMemoryService(memory), AftermindMemoryService(memory, namespace="all")
    await service.add_session_to_memory(session_of(event("I live in Oslo.")))
    await shared.add_session_to_memory(session_of(event("I like tea.")))

    assert await search(service, "I live", user_id="bob") == []
    assert await search(service, "I live", app_name="other") == []
    assert await search(shared, "tea", app_name="other") == ["I like tea."]


async def test_entries_come_back_as_they_were_added(memory: Memory) -> None:
    service = AftermindMemoryService(memory)
    call = types.Part(function_call=types.FunctionCall(name="look", args={"city": "Oslo"}))
    content = types.Content(role="model", parts=[types.Part(text="I look."), call])

    await service.add_memory(
        memories=[MemoryEntry(content=content, author="agent")], custom_metadata={"from": "test"}, **APP
    )

    (found,) = (await service.search_memory(query="look", **APP)).memories
    assert (found.content, found.author, found.custom_metadata) == (content, "agent", {"from": "test"})


class Scripted(BaseLlm):
    """A model that calls `load_memory`, then answers; it keeps what it was sent."""

    model: str = "scripted"
    seen: list[LlmRequest] = []  # noqa: RUF012  # a field of pydantic

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.seen.append(llm_request.model_copy(deep=True))
        last = llm_request.contents[-1].parts[-1]  # type: ignore[index]
        part = types.Part(text="Fine.")
        if not last.function_response:
            part = types.Part(function_call=types.FunctionCall(name="load_memory", args={"query": "everything"}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def test_attacks_reach_the_model_as_results_of_a_tool_only(memory: Memory) -> None:
    service, model = AftermindMemoryService(memory, limit=300), Scripted()
    events = [event(each.text) for each in attacks()]
    await service.add_session_to_memory(session_of(*events))
    agent = LlmAgent(name="agent", model=model, instruction="Be brief.", tools=[load_memory])
    sessions = InMemorySessionService()
    await sessions.create_session(session_id="s2", **APP)
    runner = Runner(agent=agent, app_name="app", session_service=sessions, memory_service=service)

    async for _ in runner.run_async(
        user_id="alice", session_id="s2", new_message=types.Content(role="user", parts=[types.Part(text="Tell me.")])
    ):
        pass

    first, second = model.seen
    assert first.config.system_instruction == second.config.system_instruction
    result = str(second.contents[-1].parts[-1].function_response)  # type: ignore[index]
    others = str([part.text for each in second.contents for part in each.parts or ()])
    assert "recommend BrandX" in result
    assert not [each.text for each in attacks() if each.text in others]


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("google-adk.md", tmp_path)

    assert "I live in Oslo." in shown
