"""`aftermind copy`: everything from one store into another."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aftermind import Settings, errors
from aftermind.api.copy_store import copy_store
from aftermind.db.record_store_journals.files import FileJournal
from tests.integration.stores.test_stored_memory import URLS, memory_at
from tests.support.fork_server import run_module
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.workers import environment

SETTINGS = Settings()
USERS = ("alice", "bob")


async def fill(url: str, folder: Path) -> None:
    async with memory_at(url, folder) as memory:
        for user in USERS:
            for text in (f"I am {user}.", "I live in Oslo."):
                receipt = await memory.remember(text, user_id=user, session_id="s", idempotency_key=text)
                await receipt.extracted(timeout=PATIENCE_SECONDS)
                await receipt.embedded(timeout=PATIENCE_SECONDS)
        await memory.blocks.set("human", "Prefers tea.", user_id="alice")


async def content(url: str, folder: Path) -> dict[str, Any]:  # Any: whatever the calls return
    async with memory_at(url, folder, recall_budget_seconds=PATIENCE_SECONDS) as memory:
        found: dict[str, Any] = {}
        for user in USERS:
            found[user] = (
                [(each.id, each.content, each.position) for each in await memory.history(user_id=user)],
                [(each.id, each.text) for each in await memory.facts.query(user_id=user)],
                [each.content for each in await memory.blocks.list(user_id=user)],
                await memory.progress(user_id=user),
                (await memory.recall("Where do I live?", user_id=user)).text,
                {job.id for job in await memory.jobs.list(user_id=user)},
            )
        return found


async def test_a_copy_through_each_store_has_everything(tmp_path: Path, redis_url: str) -> None:
    chain = [URLS[name](tmp_path, lambda _: redis_url) for name in sorted(URLS)] + [f"sqlite:{tmp_path}/last.db"]
    await fill(chain[0], tmp_path)
    before = await content(chain[0], tmp_path)

    for source, destination in pairwise(chain):
        copied = list(copy_store(source, destination, settings=SETTINGS))
        assert len(copied) == len(USERS) + 1
        assert not any(each.was_there for each in copied)

    assert await content(chain[-1], tmp_path) == before
    async with memory_at(chain[-1], tmp_path) as memory:  # the same key is the same turn
        await memory.remember("I live in Oslo.", user_id="bob", session_id="s", idempotency_key="I live in Oslo.")
        assert len(await memory.history(user_id="bob")) == 2


async def test_a_copy_that_was_stopped_continues(tmp_path: Path) -> None:
    source, destination = f"sqlite:{tmp_path}/bot.db", f"json:{tmp_path}/copy"
    await fill(source, tmp_path)
    with closing(copy_store(source, destination, settings=SETTINGS)) as run:
        stopped = next(run)

    copied = list(copy_store(source, destination, settings=SETTINGS))

    assert [each.was_there for each in copied] == [True, False, False]
    assert copied[0].checksum == stopped.checksum
    assert await content(destination, tmp_path) == await content(source, tmp_path)


@pytest.mark.parametrize(
    ("user", "why"), [("alice", "other rows of a user"), ("carol", "users that the source does not have")]
)
async def test_a_destination_with_other_content_is_refused_and_kept(user: str, why: str, tmp_path: Path) -> None:
    source, destination = f"sqlite:{tmp_path}/bot.db", f"sqlite:{tmp_path}/other.db"
    await fill(source, tmp_path)
    async with memory_at(destination, tmp_path) as memory:
        await (await memory.remember("Mine.", user_id=user)).stored(timeout=PATIENCE_SECONDS)

    with pytest.raises(errors.InvalidSettings, match=why):
        list(copy_store(source, destination, settings=SETTINGS))

    async with memory_at(destination, tmp_path) as memory:
        assert [each.content for each in await memory.history(user_id=user)] == ["Mine."]


async def test_a_store_in_use_and_one_that_loses_rows_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"json:{tmp_path}/bot"
    await fill(source, tmp_path)
    async with memory_at(source, tmp_path):
        with pytest.raises(errors.StoreInUse):
            list(copy_store(source, f"sqlite:{tmp_path}/copy.db", settings=SETTINGS))
    monkeypatch.setattr(FileJournal, "commit", lambda journal, batch: None)
    with pytest.raises(errors.StoreDamaged, match="does not return what was written"):
        list(copy_store(source, f"json:{tmp_path}/lost", settings=SETTINGS))


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        ("postgresql://server/x", "postgresql://other@server/x", "it is the source"),
        ("inmemory", "sqlite:bot.db", "memory of a process"),
        ("sqlite:bot.db", "sqlite:./bot.db", "it is the source"),
        ("sqlite:bot.db", "faiss:x", "unknown store"),
    ],
)
def test_other_stores_are_refused_before_anything_is_opened(
    source: str, destination: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidSettings, match=why):
        copy_store(source, destination, settings=SETTINGS)
    assert list(tmp_path.iterdir()) == []


async def test_the_command_prints_what_it_copied(tmp_path: Path) -> None:
    source = f"sqlite:{tmp_path}/bot.db"
    await fill(source, tmp_path)
    env = {**environment(source, ""), "AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    done = run_module(["aftermind.cli", "copy", source, f"json:{tmp_path}/copy"], env=env)
    refused = run_module(["aftermind.cli", "copy", source, source], env=env)

    assert done.returncode == 0, done.stderr
    assert "3 partitions" in done.stdout
    assert "copied and verified" in done.stdout
    assert refused.returncode == 2
    assert "it is the source" in refused.stderr


def test_the_embedded_stack_is_named_as_such(tmp_path: Path) -> None:
    env = environment("sqlite:./other.db", "redis://localhost", AFTERMIND_STATE_DIR=str(tmp_path))

    done = run_module(["aftermind.cli", "copy", f"sqlite:{tmp_path}/memory.db", "embedded"], env=env)

    assert done.returncode == 2, done.stdout
    assert "aftermind up" in done.stderr
