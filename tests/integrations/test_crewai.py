"""CrewAI: the storage backend, behind the framework's own memory."""

import asyncio
import re
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, BaseLLM
from crewai.memory.storage.backend import EmbeddingDimensionMismatchError, StorageBackend
from crewai.memory.types import MemoryRecord
from crewai.memory.unified_memory import Memory as CrewMemory

import aftermind.sync
from aftermind import Memory, Message, Settings
from aftermind.integrations.crewai import AftermindMemory, AftermindStorage
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica
from tests.support.servers import Database

VECTORS = {"tea": [1.0, 0.0, 0.0], "coffee": [0.0, 1.0, 0.0], "drinks": [0.7, 0.7, 0.0]}
START = datetime(2026, 1, 1)  # noqa: DTZ001  # as CrewAI's own times


def record(text: str, scope: str = "/", **fields: Any) -> MemoryRecord:
    return MemoryRecord(content=text, scope=scope, embedding=VECTORS.get(text, [0.0, 0.0, 1.0]), **fields)


@pytest.fixture
def storage(memory: Memory) -> AftermindStorage:
    return AftermindStorage(memory, user_id="alice")


async def test_a_save_is_found_by_another_process_while_the_replica_replays_nothing(
    storage: AftermindStorage, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.crewai import AftermindStorage
        found = await AftermindStorage(memory, user_id="alice").asearch([1.0, 0.0, 0.0])
        return [each.content for each, score in found]
    """
    async with standing_replica(database):
        await storage.asave([record("tea"), record("coffee")])
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == ["tea", "coffee"]


async def test_vectors_of_another_dimension_are_refused_until_the_store_is_empty(storage: AftermindStorage) -> None:
    other = MemoryRecord(content="another embedder's", scope="/b", embedding=[0.1] * 8)
    with pytest.raises(EmbeddingDimensionMismatchError):
        await storage.asave([record("coffee"), other])
    await storage.asave([record("tea", "/a")])

    with pytest.raises(EmbeddingDimensionMismatchError, match="3-dimensional"):
        await storage.asave([other])
    with pytest.raises(EmbeddingDimensionMismatchError, match="8-dimensional"):
        await storage.asearch([0.1] * 8)

    assert [each.content for each, _ in await storage.asearch(VECTORS["tea"])] == ["tea"]
    await storage.adelete()
    await storage.asave([other])
    assert [each.content for each, _ in await storage.asearch([0.1] * 8)] == ["another embedder's"]


async def test_a_search_ranks_by_similarity_and_filters(storage: AftermindStorage) -> None:
    given = [
        record("tea", "/team/a", categories=["hot"], metadata={"n": 1}),
        record("coffee", "/team/b", categories=["hot"], metadata={"n": 2}),
        record("drinks", "/teams", categories=["all"]),
    ]
    await storage.asave(given)

    found = await storage.asearch(VECTORS["tea"])

    ranked = [(each.content, round(score, 2)) for each, score in found]
    assert ranked == [("tea", 1.0), ("drinks", 0.71), ("coffee", 0.0)]
    assert found[0][0].model_dump() == given[0].model_dump()
    assert found[0][0].embedding == given[0].embedding
    assert [each.content for each, _ in await storage.asearch(VECTORS["tea"], "/team")] == ["tea", "coffee"]
    assert [each.content for each, _ in await storage.asearch(VECTORS["tea"], min_score=0.5, limit=1)] == ["tea"]
    assert [each.content for each, _ in await storage.asearch(VECTORS["tea"], categories=["all"])] == ["drinks"]
    assert [each.content for each, _ in await storage.asearch(VECTORS["tea"], metadata_filter={"n": 2})] == ["coffee"]
    assert await AftermindStorage(storage.memory, user_id="bob").asearch(VECTORS["tea"]) == []


def test_scopes_categories_and_records_are_listed_counted_and_deleted() -> None:
    with aftermind.sync.Memory("inmemory") as memory:
        storage = AftermindStorage(memory)
        given = [
            record(text, scope, categories=[text], created_at=START + timedelta(days=day))
            for day, (text, scope) in enumerate([("tea", "/team/a"), ("coffee", "/team/b"), ("drinks", "/other")])
        ]
        storage.save(given)

        assert isinstance(storage, StorageBackend)
        assert [each.content for each in storage.list_records()] == ["drinks", "coffee", "tea"]
        assert [each.content for each in storage.list_records("/team", limit=1, offset=1)] == ["tea"]
        assert storage.list_scopes() == ["/other", "/team"]
        assert storage.list_scopes("/team") == ["/team/a", "/team/b"]
        assert storage.list_categories("/team") == {"tea": 1, "coffee": 1}
        assert (storage.count(), storage.count("/team")) == (3, 2)
        info = storage.get_scope_info("/team")
        assert (info.record_count, info.categories, info.child_scopes) == (2, ["coffee", "tea"], ["/team/a", "/team/b"])
        assert (info.oldest_record, info.newest_record) == (START, START + timedelta(days=1))

        moved = given[0].model_copy(update={"scope": "/other", "content": "green tea"})
        storage.update(moved)
        assert storage.get_record(moved.id) == moved
        assert storage.list_scopes("/team") == ["/team/b"]
        storage.touch_records([moved.id, "unknown"])
        touched = storage.get_record(moved.id)
        assert touched is not None
        assert touched.last_accessed > moved.last_accessed

        assert storage.delete(record_ids=[given[1].id, "unknown"]) == 1
        assert storage.get_record(given[1].id) is None
        assert storage.delete(older_than=START + timedelta(days=1)) == 1
        assert storage.count() == 1
        storage.reset("/other")
        assert storage.count() == 0
        assert memory.items.paths() == []


def test_the_memory_of_crewai_remembers_recalls_and_forgets() -> None:
    with aftermind.sync.Memory("inmemory") as memory:
        crew = CrewMemory(
            storage=AftermindStorage(memory, user_id="alice"),
            embedder=lambda texts: [VECTORS.get(text, [0.0, 0.0, 1.0]) for text in texts],
            llm="gpt-4o-mini",  # not called: scope, categories and importance are given
        )
        for text in ("tea", "coffee"):
            crew.remember(text, scope="/likes", categories=["drink"], importance=0.5)
        crew.drain_writes()

        found = crew.recall("tea", scope="/likes", depth="shallow")

        assert found[0].record.content == "tea"
        assert crew.info("/likes").record_count == 2
        assert crew.forget(scope="/likes") == 2
        assert crew.list_records() == []
        crew.close()


def test_a_recall_undoes_neither_a_deletion_nor_an_edit_in_between() -> None:
    with aftermind.sync.Memory("inmemory") as memory:
        storage = AftermindStorage(memory, user_id="alice")
        pin, drink = record("My PIN is 1234."), record("tea")
        storage.save([pin, drink])
        crew = CrewMemory(storage=storage, embedder=constant, llm="gpt-4o-mini")
        items, real = storage.memory.items, storage.memory.items.write

        async def write(writes: Any, **options: Any) -> None:
            items.write = real  # type: ignore[method-assign]
            await storage.adelete(record_ids=[pin.id])
            await storage.asave([drink.model_copy(update={"content": "green tea"})])
            await real(writes, **options)

        items.write = write  # type: ignore[method-assign]
        found = crew.recall("anything", depth="shallow")

        assert {each.record.content for each in found} == {"My PIN is 1234.", "tea"}
        assert items.write == real
        assert [each.content for each in storage.list_records()] == ["green tea"]
        crew.close()


async def test_touched_records_are_read_at_once_and_show_when(storage: AftermindStorage) -> None:
    given = [record("tea", f"/team/{number}") for number in range(10)]
    await storage.asave(given)
    items, calls = storage.memory.items, 0
    real = items.get

    async def get(*names: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return await real(*names, **options)

    items.get = get  # type: ignore[method-assign]
    storage.touch_records([each.id for each in given])
    items.get = real  # type: ignore[method-assign]

    assert calls == 1
    found = [each for each, _ in await storage.asearch(VECTORS["tea"])]
    for each in (*found, *storage.list_records()):
        assert each.last_accessed > given[-1].last_accessed
    assert len(found) == 10


async def test_calls_in_a_running_loop_wait_in_a_thread(storage: AftermindStorage) -> None:
    storage.save([record("tea")])

    assert [each.content for each, _ in storage.search(VECTORS["tea"])] == ["tea"]


class Sees(BaseLLM):
    """A model that answers "Fine.", and keeps what it was sent."""

    def call(self, messages: Any, *args: Any, **options: Any) -> str:
        self.__dict__["seen"] = messages
        return "Final Answer: Fine."


MATCH = re.compile(r"^- <memory>([^<>\n]*)</memory>$", re.MULTILINE)


def split_matches(prompt: str) -> tuple[str, str]:
    return MATCH.sub("[match]", prompt), unescape("\n".join(MATCH.findall(prompt)))


async def test_attacks_stay_in_the_element_of_their_match(memory: Memory) -> None:
    async def tell(user: str, message: Message) -> None:
        await AftermindStorage(memory, user_id=user).asave(
            [record(message.content, metadata={"said": message.content})]
        )

    async def ask(user: str, question: str) -> tuple[str, str]:
        model = Sees(model="fake")
        crew = AftermindMemory(storage=AftermindStorage(memory, user_id=user), embedder=constant, llm=model)
        agent = Agent(role="Helper", goal="Help.", backstory="Brief.", llm=model, memory=crew)
        await asyncio.to_thread(agent.kickoff, question)
        (system, *others) = model.seen
        assert system["role"] == "system"
        return system["content"], "\n".join(f"{each['role']}: {each['content']}" for each in others)

    await assert_attacks_stay_data(memory, ask, tell=tell, split=split_matches)


def constant(texts: list[str]) -> list[list[float]]:
    return [[0.0, 0.0, 1.0]] * len(texts)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("crewai.md", tmp_path)

    assert "I live in Oslo." in shown
