"""The drop-in for Definable: its documented calls and loops, with Definable's own agent."""

import asyncio
import re
from collections.abc import Mapping
from inspect import Parameter, signature
from pathlib import Path
from threading import Event, Thread
from typing import Any

import definable.memory
import pytest
from definable.agents.testing import MockModel
from definable.memory.types import Episode, KnowledgeAtom
from definable.models.message import Message

from aftermind import Memory, Settings, errors
from aftermind.integrations.definable import (
    AftermindStore,
    Agent,
    ChromaMemoryStore,
    CognitiveMemory,
    InMemoryStore,
    MemoryPayload,
    RedisMemoryStore,
    RunContext,
    SQLiteMemoryStore,
)
from aftermind.integrations.definable_store import PARAMETERS, STORES
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.integrations.undone_message import memory_of_one_process, undo_oldest
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS

SAID = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="I live in Oslo."),
    Message(role="assistant", content="Noted."),
]


def cognitive(memory: Memory, **options: Any) -> CognitiveMemory:
    return CognitiveMemory(memory, **options)


async def test_messages_are_recalled_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.definable import CognitiveMemory
        found = await CognitiveMemory(memory).recall("Where do I live?", user_id="alice", session_id="s2")
        return found.context
    """
    async with standing_replica(database):
        await cognitive(memory).store_messages(SAID, user_id="alice", session_id="s1")
        elsewhere = await read_elsewhere(settings, code)

    assert isinstance(elsewhere, str)
    assert elsewhere.startswith("<memory_context>")
    assert "I live in Oslo." in elsewhere
    assert "Be brief." not in elsewhere


async def test_messages_survive_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    async def write() -> None:
        await cognitive(memory).store_messages(SAID, user_id="alice", session_id="s1")

    said = await stored_after_a_kill(memory, settings, tmp_path, write, user_id="alice")

    assert said == ["I live in Oslo.", "Noted."]


async def test_a_payload_fits_its_budget_and_is_of_one_user(memory: Memory) -> None:
    mem = cognitive(memory, token_budget=120)
    for number in range(30):
        given = Message(role="user", content=f"Note {number}: I like tea from place {number} very much.")
        await mem.store_messages([given], user_id="alice", session_id="s1")

    payload = await mem.recall("Which tea do I like?", user_id="alice")

    assert isinstance(payload, MemoryPayload)
    assert 0 < payload.tokens_used <= 120
    assert 0 < payload.chunks_included < payload.chunks_available
    assert await mem.recall("tea", user_id="bob") is await mem.recall("tea") is None
    assert (await mem.run_distillation(user_id="alice")).episodes_processed == 0
    await mem.forget(user_id="alice")
    assert await mem.recall("tea", user_id="alice") is None


async def test_a_store_has_episodes_and_atoms(memory: Memory) -> None:
    store = AftermindStore(memory)
    episode = Episode(id="e1", user_id="alice", session_id="s1", role="user", content="I live in Oslo.", created_at=1e9)
    atom = KnowledgeAtom(
        id="a1", user_id="alice", subject="user", predicate="lives_in", object="Oslo", content="", confidence=0.8
    )

    assert await store.store_episode(episode) == await store.store_episode(episode) == "e1"
    await store.store_atom(atom)
    await store.store_episode(Episode(id="", user_id="alice", session_id="s2", role="assistant", content="Noted."))

    newest, oldest = await store.get_episodes(user_id="alice")
    assert (oldest.id, oldest.content, oldest.created_at) == ("e1", "I live in Oslo.", 1e9)
    assert newest.id
    assert [each.id for each in await store.get_episodes(user_id="alice", session_id="s1")] == ["e1"]
    assert await store.get_episodes() == await store.get_episodes(user_id="bob") == []
    found = await store.find_similar_atom("user", "lives_in", user_id="alice")
    assert found is not None
    assert (found.object, found.confidence) == ("Oslo", 0.8)
    assert await store.get_atoms(user_id="alice", min_confidence=0.9) == []
    await store.delete_session_data("s2", user_id="alice")
    assert [each.id for each in await store.get_episodes(user_id="alice")] == ["e1"]
    await store.delete_user_data("alice")
    assert await store.get_atoms(user_id="alice") == await store.get_episodes(user_id="alice") == []


async def test_a_large_episode_is_cut(memory: Memory) -> None:
    store = AftermindStore(memory)
    given = Episode(id="e1", user_id="alice", session_id="s1", role="tool", content="x" * 300_000)
    await store.store_episode(given)

    (found,) = await store.get_episodes(user_id="alice")
    assert (found.id, found.role) == ("e1", "tool")
    assert re.fullmatch(r"x{262000,}\n\[cut: 300,000 bytes, sha256 \w{64}\]", found.content)


async def test_an_update_changes_an_episode_of_its_user_alone(memory: Memory) -> None:
    store = AftermindStore(memory)
    for user in ("alice", "bob"):
        text = "I live in Oslo."
        given = Episode(
            id="e1", user_id=user, session_id="s1", role="user", content=text, created_at=1e9, sentiment=0.5
        )
        await store.store_episode(given)

    async def update(**fields: Any) -> Episode:
        await store.update_episode("e1", user_id="alice", **fields)
        (found,) = await store.get_episodes(user_id="alice")
        return found

    assert (await update(access_count=3, last_accessed_at=2e9)).content == "I live in Oslo."
    for text in ("Lives in Oslo.", "I live in Oslo.", "Lives in Oslo."):  # back and forth: no update is lost
        changed = await update(content=text, compression_stage=1, topics=["city"])
        assert (changed.id, changed.content, changed.topics) == ("e1", text, ["city"])
        assert (changed.session_id, changed.role, changed.created_at, changed.sentiment) == ("s1", "user", 1e9, 0.5)
    assert [each.id for each in await store.get_episodes(user_id="alice", min_stage=1)] == ["e1"]
    assert await store.get_episodes(user_id="alice", max_stage=0) == []
    assert [each.content for each in await store.get_episodes(user_id="bob")] == ["I live in Oslo."]
    for wrong, error in (({"contents": "x"}, errors.InvalidQuery), ({"role": "assistant"}, errors.InvalidQuery)):
        with pytest.raises(error):
            await update(**wrong)
    with pytest.raises(errors.NotThere, match="e1"):
        await store.update_episode("e1", content="Mine.")  # of the anonymous user


async def test_an_update_changes_an_atom_of_its_user_alone(memory: Memory) -> None:
    store = AftermindStore(memory)
    atoms = {}
    for user in ("alice", "bob"):
        given = KnowledgeAtom(
            id="", user_id=user, subject="user", predicate="lives_in", object="Oslo", content="", confidence=0.5
        )
        atoms[user] = await store.store_atom(given)

    async def found(user: str) -> tuple[str, float]:
        (atom,) = await store.get_atoms(user_id=user)
        return atom.object, atom.confidence

    await store.update_atom(atoms["alice"], user_id="alice", confidence=0.65, reinforcement_count=1)
    assert await found("alice") == ("Oslo", 0.65)
    await store.update_atom(atoms["alice"], user_id="alice", object="Bergen")
    assert await found("alice") == ("Bergen", 0.65)
    assert await found("bob") == ("Oslo", 0.5)
    with pytest.raises(errors.InvalidFact, match="only rises"):
        await store.update_atom(atoms["bob"], user_id="bob", confidence=0.1)
    with pytest.raises(errors.NotThere):
        await store.update_atom(atoms["bob"], user_id="alice", confidence=0.9)


async def test_every_atom_of_a_user_is_read_and_updated() -> None:
    async with memory_of_one_process() as memory:
        store = AftermindStore(memory)
        first = await memory.facts.add("user", "likes", "jazz", confidence=0.5, user_id="alice")
        for number in range(1_001):
            await memory.facts.add("user", "likes", f"tea {number}", user_id="alice")

        await store.update_atom(str(first.id), user_id="alice", confidence=0.9)

        assert len(await store.get_atoms(user_id="alice", limit=5_000)) == 1_002


class Sees(MockModel):
    """A model that keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(responses=["Noted."])
        self.seen: list[list[tuple[str, str]]] = []

    async def ainvoke(self, messages: Any, **options: Any) -> Any:
        self.seen.append([(each.role, str(each.content)) for each in messages])
        return await super().ainvoke(messages, **options)


async def test_an_undone_message_is_no_episode() -> None:
    async with memory_of_one_process() as memory:
        store = AftermindStore(memory)
        for text in ("I live in Oslo.", "I like tea."):
            await store.store_episode(Episode(id="", user_id="alice", session_id="s1", role="user", content=text))
        await undo_oldest(memory, user_id="alice")

        assert [each.content for each in await store.get_episodes(user_id="alice", limit=2)] == ["I like tea."]


async def test_the_documented_loop_over_the_events_of_a_stream_has_the_memory(memory: Memory) -> None:
    agent = Agent(model=MockModel(responses=["Noted."] * 2), memory=cognitive(memory))
    seen: list[str] = []

    for text in ("I live in Oslo.", "Where do I live?"):
        async for event in agent.arun_stream(text, user_id="alice"):
            match event.event:
                case "MemoryRecallStarted":
                    seen.append(f"recall {event.query}")
                case "MemoryRecallCompleted":
                    seen.append(f"recalled {event.chunks_included}")
                case "MemoryUpdateStarted":
                    seen.append(f"update {event.message_count}")
                case "MemoryUpdateCompleted":
                    seen.append(f"updated {event.message_count}")

    assert seen[:4] == ["recall I live in Oslo.", "recalled 0", "update 2", "updated 2"]
    assert seen[4] == "recall Where do I live?"
    assert seen[5] != "recalled 0"
    assert seen[6:] == ["update 2", "updated 2"]
    assert [each.content for each in await memory.history(user_id="alice")][:2] == ["I live in Oslo.", "Noted."]


def test_runs_of_blocking_code_keep_every_turn(settings: Settings) -> None:
    memory = Memory(settings=settings)
    model = Sees()
    agent = Agent(model=model, instructions="Be brief.", memory=cognitive(memory), session_id="s1")
    contexts: list[Any] = []
    agent.use(keep_context(contexts))

    first = agent.run("I live in Oslo.", user_id="alice")
    second = agent.run("And I like tea.", messages=first.messages, user_id="alice")
    streamed = [each.event for each in agent.run_stream("Where do I live?", user_id="alice")]

    async def stored() -> list[str]:
        try:
            return [each.content for each in await memory.history(user_id="alice", session_id="s1")]
        finally:
            await memory.close()

    assert second.content == "Noted."
    assert [text for role, text in model.seen[1] if role == "user"] == ["I live in Oslo.", "And I like tea."]
    assert [role for role, _ in model.seen[1]].count("system") == 1
    assert isinstance(contexts[1].memory_context, str)
    assert "I live in Oslo." in contexts[1].memory_context
    assert "MemoryUpdateCompleted" in streamed
    assert [each for each in asyncio.run(stored()) if each != "Noted."] == [
        "I live in Oslo.",
        "And I like tea.",
        "Where do I live?",
    ]


def test_runs_in_other_threads_do_not_wait_for_each_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(settings=settings)
    agent = Agent(model=MockModel(responses=["Noted."] * 2), memory=cognitive(memory))
    is_answered = Event()
    is_own: list[bool] = []  # of each task that a run has waited for
    remember, wait = memory.remember, asyncio.wait

    async def wait_and_note(tasks: Any, **options: Any) -> Any:
        is_own.extend(each.get_loop() is asyncio.get_running_loop() for each in tasks)
        return await wait(tasks, **options)

    async def remember_after_the_other_run(*args: Any, user_id: str, **options: Any) -> Any:
        """The first run's turn is handed over only after the other thread's run has ended."""
        if user_id == "alice":
            threads[1].start()
            assert await asyncio.to_thread(is_answered.wait, PATIENCE_SECONDS)
        return await remember(*args, user_id=user_id, **options)

    def run(user: str, text: str) -> None:
        agent.run(text, user_id=user)
        if user == "bob":
            is_answered.set()

    monkeypatch.setattr(asyncio, "wait", wait_and_note)
    monkeypatch.setattr(memory, "remember", remember_after_the_other_run)
    threads = [Thread(target=run, args=given) for given in (("alice", "I live in Oslo."), ("bob", "I like tea."))]
    threads[0].start()
    for thread in threads:
        thread.join()

    async def stored(user: str) -> str:
        return (await memory.history(user_id=user))[0].content

    async def stored_of_both() -> list[str]:
        try:
            return [await stored("alice"), await stored("bob")]
        finally:
            await memory.close()

    assert is_answered.is_set()
    assert is_own
    assert all(is_own)
    assert asyncio.run(stored_of_both()) == ["I live in Oslo.", "I like tea."]


def keep_context(contexts: list[Any]) -> Any:
    async def middleware(context: RunContext, next_handler: Any) -> Any:
        contexts.append(context)
        return await next_handler(context)

    return middleware


async def test_a_memory_that_fails_is_a_warning_and_the_agent_answers(memory: Memory) -> None:
    agent = Agent(model=MockModel(responses=["Fine."]), memory=cognitive(memory))

    assert (await agent.arun("Hello.", user_id="x" * 600)).content == "Fine."  # an id that is too long
    assert await cognitive(memory).recall("Hello.", user_id="x" * 600) is None


async def test_stores_by_the_names_of_definable(tmp_path: Path, redis_url: str) -> None:
    for make in (
        InMemoryStore,
        ChromaMemoryStore,
        lambda: SQLiteMemoryStore(str(tmp_path / "m.db")),
        lambda: RedisMemoryStore(redis_url),
    ):
        async with CognitiveMemory(store=make()) as mem:
            await mem.store_messages(SAID, user_id="alice", session_id="s1")
            assert len(await mem.store.get_episodes(user_id="alice")) == 2
    async with CognitiveMemory(store=SQLiteMemoryStore(str(tmp_path / "m.db"))) as mem:
        assert await mem.recall("Where do I live?", user_id="alice") is not None
    with pytest.raises(errors.InvalidSettings, match=r"aftermind\.integrations\.definable"):
        CognitiveMemory(store=object())  # type: ignore[arg-type]


MONGODB = "mongodb://user:pass@host:27017"
QDRANT = "https://x.cloud.qdrant.io:6333"


@pytest.mark.parametrize(
    ("name", "given", "place"),
    [  # as Definable's own documentation has them, and with each parameter that has an effect
        ("SQLiteMemoryStore", {}, "sqlite:./memory.db"),
        ("PostgresMemoryStore", {"db_url": "postgresql+asyncpg://u:p@host/db"}, "postgresql://u:p@host/db"),
        ("PostgresMemoryStore", {}, None),
        (
            "RedisMemoryStore",
            {"redis_url": "redis://host:6379", "db": 2},
            {"url": "redis://host:6379/2", "key_prefix": "memory"},
        ),
        (
            "RedisMemoryStore",
            {"redis_url": "redis://host/1", "prefix": "p"},
            {"url": "redis://host/1", "key_prefix": "p"},
        ),
        ("MongoMemoryStore", {}, "mongodb://localhost:27017/memory"),
        ("MongoMemoryStore", {"connection_string": MONGODB, "database": "mine"}, f"{MONGODB}/mine"),
        ("MongoMemoryStore", {"connection_string": f"{MONGODB}/theirs?w=1"}, f"{MONGODB}/theirs?w=1"),
        ("ChromaMemoryStore", {"persist_directory": "./chroma"}, "chroma:./chroma"),
        ("ChromaMemoryStore", {}, "inmemory"),
        ("QdrantMemoryStore", {}, "qdrant://localhost:6333/memory"),
        ("QdrantMemoryStore", {"url": QDRANT, "api_key": "a/b"}, "qdrant+https://a%2Fb@x.cloud.qdrant.io:6333/memory"),
        ("PineconeMemoryStore", {"index_name": "mine"}, "pinecone:mine"),
        ("PineconeMemoryStore", {"api_key": "pc-a/b", "index_name": "mine"}, "pinecone:pc-a%2Fb@mine"),
        ("Mem0MemoryStore", {"api_key": "m0-a"}, "mem0+https://m0-a@api.mem0.ai"),
        ("Mem0MemoryStore", {}, "mem0:"),
    ],
)
def test_a_store_of_definable_is_one_of_aftermind(
    name: str, given: dict[str, Any], place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEMORY_POSTGRES_URL", raising=False)
    theirs = signature(getattr(definable.memory, name)).parameters

    assert (
        PARAMETERS[name].place(**given) == PARAMETERS[name].place(*({**_defaults(theirs), **given}.values())) == place
    )
    assert {**PARAMETERS[name].defaults} == _defaults(theirs)


def _defaults(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    return {name: each.default for name, each in parameters.items()}


@pytest.mark.parametrize(
    ("name", "given", "namespace"),
    [
        ("PostgresMemoryStore", {"db_url": "inmemory"}, None),
        ("PostgresMemoryStore", {"db_url": "inmemory", "table_prefix": "memory_"}, None),
        ("PostgresMemoryStore", {"db_url": "inmemory", "table_prefix": "app1_"}, "app1_"),
        ("ChromaMemoryStore", {"collection_prefix": "app1_"}, "app1_"),
        ("PostgresMemoryStore", {"db_url": "inmemory", "table_prefix": "app1_", "namespace": "mine"}, "mine"),
    ],
)
def test_a_prefix_of_tables_separates_users(name: str, given: dict[str, Any], namespace: str | None) -> None:
    assert STORES[name](**given).namespace == namespace


def test_parameters_of_a_store_that_could_have_no_effect_are_refused() -> None:
    for args, named in (((1, 2, 3), {}), (("a.db",), {"db_path": "b.db"}), ((), {"path": "a.db"})):
        with pytest.raises(errors.InvalidSettings, match="db_path"):
            PARAMETERS["SQLiteMemoryStore"].place(*args, **named)


async def test_attacks_stay_in_the_block_of_memory(memory: Memory) -> None:
    model = Sees()
    agent = Agent(
        model=model, instructions="Be brief.", memory=cognitive(memory, token_budget=2_000, options={"mode": "recency"})
    )

    async def ask(user: str, question: str) -> tuple[str, str]:
        await agent.arun(question, user_id=user, session_id=f"{user}-2")
        prompt = "\n".join(f"{role}: {text}" for role, text in model.seen[-1])
        return "", prompt.replace("<memory_context>\n", "[").replace("\n</memory_context>", "]")

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("definable.md", tmp_path)

    assert "I live in Oslo." in shown
    assert "MemoryUpdateCompleted" in shown
