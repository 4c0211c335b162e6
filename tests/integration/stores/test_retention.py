"""Retention policies on stores of one process, which run them themselves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from aftermind import Memory, Message, Settings
from aftermind.db.inmemory_database import MemoryDatabase
from tests.integration.stores.test_stored_memory import URLS, memory_at
from tests.support.vector_index import ProcessIndex
from tests.support.waiting import PATIENCE_SECONDS, wait_until

DAY = timedelta(days=1)
Later = Callable[[timedelta], None]


@pytest.fixture(params=["inmemory", *sorted(URLS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    make = URLS.get(request.param)
    return "inmemory" if make is None else make(tmp_path, request.getfixturevalue)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Moves the clock of the store."""

    def move(by: timedelta) -> None:
        monkeypatch.setattr(MemoryDatabase, "now", lambda database: datetime.now(UTC) + by)

    return move


async def tell(memory: Memory, user: str, *given: str | Message) -> None:
    for each in given:
        receipt = await memory.remember(each, user_id=user, session_id="s")
        await receipt.extracted(timeout=PATIENCE_SECONDS)


async def contents(memory: Memory, user: str) -> list[str]:
    return [each.content for each in await memory.history(user_id=user)]


async def test_the_newest_are_kept_and_what_goes_is_archived_with_its_facts(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await tell(memory, "alice", "I live in Oslo.", "I like tea.", "I like films.")
        await tell(memory, "bob", "I live in Rome.")
        await memory.retention.set(max_episodes=2, archive=str(tmp_path / "archive"))

        foreseen = await memory.retention.run(dry_run=True)
        done = await memory.retention.run()

        assert (foreseen.episodes, foreseen.users) == (done.episodes, done.users) == (1, 1)
        assert done.rows["facts"] == 1
        assert await contents(memory, "alice") == ["I like tea.", "I like films."]
        assert await contents(memory, "bob") == ["I live in Rome."]
        assert "Oslo" not in " ".join(fact.text for fact in await memory.facts.history(user_id="alice"))
        (file,) = (tmp_path / "archive").rglob("*.jsonl")
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        assert len(lines) == done.archived == 2
        assert "I live in Oslo." in {line.get("content") for line in lines}


async def test_what_is_too_old_goes_and_what_is_important_stays(url: str, tmp_path: Path, later: Later) -> None:
    async with memory_at(url, tmp_path, extractor="off") as memory:
        await tell(memory, "alice", "old", Message.user("marked", metadata={"important": True}))
        await memory.retention.set(max_age=30 * DAY, keep_important=True)
        later(29 * DAY)
        assert (await memory.retention.run()).episodes == 0
        later(31 * DAY)

        assert (await memory.retention.run()).episodes == 1
        assert await contents(memory, "alice") == ["marked"]


async def test_a_policy_runs_by_itself_also_after_a_restart_once_in_its_time(
    url: str, tmp_path: Path, later: Later
) -> None:
    async with memory_at(url, tmp_path, extractor="off") as memory:
        await memory.retention.set(max_episodes=1)
        await tell(memory, "alice", "one", "two")
        assert await contents(memory, "alice") == ["one", "two"], "not within the day in which it was set"
        assert not await has_run(memory)
        later(2 * DAY)
        if url == "inmemory":
            await tell(memory, "alice", "two")
            await wait_until(lambda: has_only(memory, "two"), description="the policy has run")
            return
    async with memory_at(url, tmp_path, extractor="off") as memory:
        await wait_until(lambda: has_only(memory, "two"), description="the policy has run after the restart")
        assert await memory.retention.clear()
        assert await memory.retention.get() is None


async def has_run(memory: Memory) -> bool:
    policy = await memory.retention.get()
    return policy is not None and policy.ran_at is not None


async def has_only(memory: Memory, content: str) -> bool:
    return await contents(memory, "alice") == [content]


async def test_an_archive_that_refuses_keeps_everything_and_stops_no_job(tmp_path: Path, later: Later) -> None:
    (tmp_path / "file").touch()
    async with memory_at("inmemory", tmp_path, extractor="off") as memory:
        await tell(memory, "alice", "one", "two")
        await memory.retention.set(max_episodes=1, archive=str(tmp_path / "file" / "archive"))
        later(2 * DAY)
        await tell(memory, "alice", "three")

        assert await contents(memory, "alice") == ["one", "two", "three"]
        assert not await has_run(memory)


async def test_the_index_beside_the_store_is_emptied_too(tmp_path: Path) -> None:
    index = ProcessIndex()
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="off", index_budget_seconds=20)
    async with Memory("inmemory", index=index, settings=settings) as memory:
        await memory.retention.set(max_episodes=1)
        for text in ("one", "two"):
            await (await memory.remember(text, user_id="alice")).stored(timeout=PATIENCE_SECONDS)
        await wait_until(lambda: len(index.entries) == 2, description="both entries")
        await memory.retention.run()

        await wait_until(lambda: [each.text for each in index.entries.values()] == ["two"], description="one entry")
