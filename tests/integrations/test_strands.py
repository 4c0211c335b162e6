"""Strands Agents: the memory store and the storage, in runs of the framework's own agent with a scripted model."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.memory import MemoryManager
from strands.memory.types import AddMessagesContext
from strands.models import Model
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import Storage

from aftermind import Memory, Settings
from aftermind.integrations.strands import AftermindMemoryStore, AftermindStorage
from tests.integrations.attacks import assert_attacks_stay_data
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica, stored_after_a_kill
from tests.support.servers import Database


class Scripted(Model):
    """A model that answers "Fine.", and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncIterable[Any]:
        self.seen.append((system_prompt, [dict(each) for each in messages]))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "Fine."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


During = Callable[[str, Callable[[], Awaitable[None]]], AbstractContextManager[None]]


@pytest.fixture
def during(memory: Memory) -> During:
    """Other work before a write of items, or after a read of them: the next call does it once."""

    @contextmanager
    def inside(name: str, work: Callable[[], Awaitable[None]]) -> Iterator[None]:
        real = getattr(memory.items, name)

        async def call(*args: Any, **options: Any) -> Any:
            setattr(memory.items, name, real)
            if name == "write":
                await work()
                return await real(*args, **options)
            found = await real(*args, **options)
            await work()
            return found

        setattr(memory.items, name, call)
        yield
        assert getattr(memory.items, name) == real

    return inside


def said(*texts: str) -> list[Any]:
    return [{"role": "user", "content": [{"text": text}]} for text in texts]


def agent_of(memory: Memory, model: Model, **options: Any) -> tuple[Agent, MemoryManager]:
    manager = MemoryManager(stores=[AftermindMemoryStore(memory, **options)])
    return Agent(model=model, system_prompt="Be brief.", memory_manager=manager, callback_handler=None), manager


async def test_a_run_is_found_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.strands import AftermindMemoryStore
        found = await AftermindMemoryStore(memory, user_id="alice").search("Where do I live?")
        return [each.content for each in found]
    """
    async with standing_replica(database):
        agent, manager = agent_of(memory, Scripted(), user_id="alice")
        await agent.invoke_async("I live in Oslo.")
        await manager.flush()
        elsewhere = await read_elsewhere(settings, code)

    assert set(elsewhere) == {"I live in Oslo.", "Fine."}  # type: ignore[call-overload]


async def test_a_run_survives_a_killed_worker(memory: Memory, settings: Settings, tmp_path: Path) -> None:
    agent, manager = agent_of(memory, Scripted(), user_id="alice")

    async def run() -> None:
        await agent.invoke_async("I live in Oslo.")
        await manager.flush()

    assert await stored_after_a_kill(memory, settings, tmp_path, run, user_id="alice") == ["I live in Oslo.", "Fine."]


async def test_a_batch_that_is_handed_over_again_is_stored_once(memory: Memory) -> None:
    store = AftermindMemoryStore(memory, user_id="alice")
    real, calls = memory.remember, 0

    async def fail_once(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise TimeoutError
        return await real(*args, **kwargs)

    memory.remember = fail_once  # type: ignore[method-assign]
    batch, numbers = said("ok", "ok", "I live in Oslo."), AddMessagesContext(sequence_numbers=[0, 2, 3])
    try:
        await store.add_messages(batch, numbers)
    except TimeoutError:
        await store.add_messages(batch, numbers)
    await store.add_messages(said("I like tea."), AddMessagesContext(sequence_numbers=[4]))
    await store.add_messages(said("ok"), AddMessagesContext(sequence_numbers=[0]))  # another agent counts from 0

    assert [each.content for each in await memory.history(user_id="alice")] == [
        "ok",
        "ok",
        "I live in Oslo.",
        "I like tea.",
        "ok",
    ]


async def test_a_message_above_the_limit_is_stored_in_pieces_and_stops_no_later_one(memory: Memory) -> None:
    agent, manager = agent_of(memory, Scripted(), user_id="alice")
    big = "word " * 80_000

    for text in (big, "I live in Oslo."):
        await agent.invoke_async(text)
        await manager.flush()

    *pieces, _, last, _ = [each.content for each in await memory.history(user_id="alice", limit=100)]
    assert ("".join(pieces), last) == (big, "I live in Oslo.")
    assert len(pieces) > 1


async def test_a_message_that_memory_refuses_stops_no_later_one(memory: Memory) -> None:
    store, numbers = AftermindMemoryStore(memory, user_id="alice"), AddMessagesContext(sequence_numbers=[0, 1])
    odd: Any = {"role": "narrator", "content": [{"text": "Once."}]}

    await store.add_messages([odd, *said("I live in Oslo.")], numbers)

    assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo."]


async def test_what_is_added_is_found_and_of_its_user_only(memory: Memory) -> None:
    hers, his = AftermindMemoryStore(memory, user_id="alice"), AftermindMemoryStore(memory, user_id="bob")

    await hers.add("The user lives in Oslo.", {"topic": "home"})

    (found,) = await hers.search("Where does the user live?", {"max_search_results": 3})
    assert found.content == "The user lives in Oslo."
    assert found.metadata is not None
    assert found.metadata["kind"] == "episode"
    assert await his.search("Where does the user live?") == []


async def test_a_session_is_restored_by_another_process(memory: Memory, settings: Settings, database: Database) -> None:
    storage = AftermindStorage(memory, user_id="alice")
    big = "x" * 2_000_000  # of several items
    code = """
        from strands import Agent
        from strands.session.snapshot_session_manager import SnapshotSessionManager
        from aftermind.integrations.strands import AftermindStorage
        from tests.integrations.test_strands import Scripted
        session = SnapshotSessionManager("s1", storage=AftermindStorage(memory, user_id="alice"))
        agent = Agent(model=Scripted(), agent_id="a", session_manager=session, callback_handler=None)
        return [part["text"] for each in agent.messages for part in each["content"]]
    """
    async with standing_replica(database):
        session = SnapshotSessionManager("s1", storage=storage)
        agent = Agent(model=Scripted(), agent_id="a", session_manager=session, callback_handler=None)
        await agent.invoke_async("Hello.")
        await agent.invoke_async(big)
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == ["Hello.", "Fine.", big, "Fine."]


async def test_a_storage_writes_reads_lists_and_deletes_bytes(memory: Memory) -> None:
    storage, other = AftermindStorage(memory, user_id="alice"), AftermindStorage(memory, user_id="bob")
    values = {"a/1": b"\x00\xff", "a/2": b"", "b": bytes(range(256)) * 8_000}
    for key, value in values.items():
        await storage.write(key, value)

    assert isinstance(storage, Storage)
    assert {key: await storage.read(key) for key in values} == values
    assert await storage.list("a/") == ["a/1", "a/2"]
    assert await storage.list("") == ["a/1", "a/2", "b"]
    await storage.write("b", b"short")
    assert await storage.read("b") == b"short"
    await storage.delete("b")
    await storage.delete("b")
    assert await storage.read("b") is None
    assert await storage.list("") == ["a/1", "a/2"]
    assert await other.list("") == []
    assert len(await memory.items.search(("strands",), user_id="alice", limit=100)) == 2


@pytest.mark.parametrize("new", [b"B" * 1_500_000, b"C", b"D" * 3_000_000, None])
async def test_a_value_that_is_replaced_during_a_read_is_read_as_one_of_them(
    memory: Memory, new: bytes | None, during: During
) -> None:
    storage, old = AftermindStorage(memory, user_id="alice"), b"A" * 1_500_000
    await storage.write("k", old)

    with during("get", lambda: storage.delete("k") if new is None else storage.write("k", new)):
        found = await storage.read("k")

    assert found in (old, new)
    assert await storage.read("k") == new


async def test_a_deletion_leaves_nothing_of_writes_at_the_same_time(memory: Memory, during: During) -> None:
    storage = AftermindStorage(memory, user_id="alice")

    with during("write", lambda: storage.write("k", b"A" * 1_500_000)):
        await storage.write("k", b"B")
    assert await storage.read("k") == b"B"
    await storage.delete("k")

    assert await memory.items.search(("strands",), user_id="alice", limit=100) == []


async def test_attacks_reach_the_model_as_data_only(memory: Memory) -> None:
    async def ask(user: str, question: str) -> tuple[str, str]:
        model = Scripted()
        store = AftermindMemoryStore(memory, user_id=user, writable=False, mode="recency")
        manager = MemoryManager(stores=[store])
        await Agent(model=model, system_prompt="Be brief.", memory_manager=manager, callback_handler=None).invoke_async(
            question
        )
        ((system, messages),) = model.seen
        assert {each["role"] for each in messages} == {"user"}
        return str(system), "\n".join(part["text"] for each in messages for part in each["content"])

    await assert_attacks_stay_data(memory, ask)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("strands.md", tmp_path)

    assert "I live in Oslo." in shown
