"""Google ADK: the memory service, in runs of the framework's own runner with a scripted model."""

from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.memory._utils import format_timestamp
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools import load_memory
from google.genai import types

from aftermind import Memory, Settings, errors
from aftermind.integrations.google_adk import AftermindMemoryService
from aftermind.types.validation import clean_text
from tests.attacks.corpus import attacks
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
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


async def test_an_event_with_a_large_image_stops_no_later_one(memory: Memory) -> None:
    service, sessions = AftermindMemoryService(memory), InMemorySessionService()
    session = await sessions.create_session(session_id="s1", **APP)
    image = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"x" * 300_000))
    looked = types.FunctionResponse(name="look", response={"city": "Oslo"}, parts=[image_of_tool(b"y" * 300_000)])
    for parts in ([types.Part(text="Look."), image], [types.Part(function_response=looked)], [types.Part(text="Hi.")]):
        content = types.Content(role="user", parts=parts)
        await sessions.append_event(session, Event(author="user", content=content))
    again = await sessions.get_session(session_id="s1", **APP)
    assert again is not None

    for _ in range(2):
        await service.add_session_to_memory(again)

    said = await memory.history(session_id="s1", **WHOSE)
    assert [each.role.value for each in said] == ["user", "tool", "user"]
    found = {str(each.content.parts) for each in (await service.search_memory(query="Look, Oslo.", **APP)).memories}
    assert len(found) == 3
    assert any("Look." in each and "image/png" in each and "sha256" in each for each in found)
    assert any("'city': 'Oslo'" in each for each in found)


def image_of_tool(data: bytes) -> types.FunctionResponsePart:
    return types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(mime_type="image/png", data=data))


async def test_an_event_that_is_refused_is_named_once_the_others_are_stored(memory: Memory) -> None:
    service = AftermindMemoryService(memory)
    later = datetime.now(UTC) + timedelta(days=400)
    session = session_of(event("I live in Oslo.", timestamp=later.timestamp()), event("I like tea."))

    with pytest.raises(errors.InvalidMessage, match="future"):
        await service.add_session_to_memory(session)

    assert [each.content for each in await memory.history(session_id="s1", **WHOSE)] == ["I like tea."]


async def test_metadata_beside_a_long_record_is_kept(memory: Memory) -> None:
    service, call = AftermindMemoryService(memory), types.FunctionCall(name="look", args={"text": "x" * 9_000})
    said = Event(
        author="agent",
        content=types.Content(role="model", parts=[types.Part(text="I look."), types.Part(function_call=call)]),
    )
    await service.add_events_to_memory(events=[said], custom_metadata={"note": "n" * 9_000}, **APP)

    (found,) = (await service.search_memory(query="look", **APP)).memories
    assert (found.content, found.custom_metadata) == (said.content, {"note": "n" * 9_000})


async def test_a_memory_keeps_its_time(memory: Memory) -> None:
    service, moment = AftermindMemoryService(memory), datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    content = types.Content(role="user", parts=[types.Part(text="I live in Bonn.")])
    for timestamp in (moment.isoformat(), format_timestamp(moment.timestamp()), None):
        await service.add_memory(memories=[MemoryEntry(content=content, timestamp=timestamp)], **APP)

    *timed, other = [each.occurred_at for each in await memory.history(**WHOSE)]
    assert timed == [moment, moment]
    assert other.year > 2020
    with pytest.raises(errors.InvalidMessage, match="yesterday"):
        await service.add_memory(memories=[MemoryEntry(content=content, timestamp="yesterday")], **APP)


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


@pytest.mark.parametrize("half", [0, 1])  # of the corpus: a recall reads at most 200 pending turns
async def test_attacks_reach_the_model_as_results_of_a_tool_only(memory: Memory, half: int) -> None:
    service, model, given = AftermindMemoryService(memory, limit=200), Scripted(seen=[]), attacks()[half::2]
    await service.add_session_to_memory(session_of(*(event(each.text) for each in given)))
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
    result = second.contents[-1].parts[-1].function_response  # type: ignore[index]
    found = set(texts_of(result.model_dump(mode="json")))  # type: ignore[union-attr]
    others = "\n".join(part.text or "" for each in second.contents for part in each.parts or ())
    assert [each.text for each in given if clean_text(each.text) not in found] == []
    assert [each.text for each in given if each.text in others] == []


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("google-adk.md", tmp_path)

    assert "I live in Oslo." in shown
