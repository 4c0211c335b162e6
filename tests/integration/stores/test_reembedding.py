"""A re-embedding of a store of one process: by its own jobs, while the former embedder serves."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.cli import make_app_for
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.protocols import embedder_identity
from tests.support.scripted_openai import scripted_openai
from tests.support.waiting import PATIENCE_SECONDS, wait_until

FORMER, TARGET = embedder_identity(HashEmbedder()), embedder_identity(HashEmbedder(dimension=128))
USERS = ("alice", "bob")
LONG = "A long report on hives. " * 80  # its passages have vectors too


def memory_at(url: str, folder: Path, **changed: object) -> Memory:
    named: dict[str, object] = {"state_dir": folder / "state", "embedder": "hash", "extractor": "off", **changed}
    return Memory(url, settings=Settings.model_validate(named))


async def fill(memory: Memory, count: int) -> None:
    """Notes of both users, with vectors."""
    for place in range(count):
        receipt = await memory.remember(f"My note {place} is about bees", user_id=USERS[place % 2])
        await receipt.embedded(timeout=PATIENCE_SECONDS)


async def filled(memory: Memory) -> None:
    """Wait until every episode has a vector of the standby embedder."""

    async def is_filled() -> bool:
        counts = (await memory.reembedding.status()).counts
        return counts.standby == counts.episodes

    await wait_until(is_filled, timeout=PATIENCE_SECONDS, description="every episode has a second vector")


async def dimensions(memory: Memory, user: str = "alice") -> set[int]:
    """Of the vectors that serve."""
    vectors = (await memory.export(user_id=user, vectors=True)).vectors
    return {vector.shape[-1] for vector in vectors.values()}


async def test_another_embedder_is_reported_with_the_reason_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await fill(memory, 1)
    async with memory_at(url, tmp_path, embedding_dimension=128) as memory:
        await (await memory.remember("I like bees.", user_id="alice")).stored(timeout=PATIENCE_SECONDS)

    (line,) = (each for each in caplog.messages if each.startswith("embed jobs wait"))
    assert "aftermind reembed start" in line


@pytest.mark.parametrize("store", ["sqlite:{}/bot.db", "json:{}/bot", "inmemory"])
async def test_the_former_embedder_serves_until_the_cutover_and_again_after_a_rollback(
    store: str, tmp_path: Path
) -> None:
    async with memory_at(store.format(tmp_path), tmp_path) as memory:
        await fill(memory, 12)
        plan = await memory.reembedding.plan("hash", dimension=128)
        await memory.reembedding.start("hash", dimension=128)
        during = await memory.recall("bees", user_id="alice")
        await filled(memory)
        before = await dimensions(memory)
        compared = await memory.reembedding.compare()
        status = await memory.reembedding.cutover()
        after = await memory.recall("bees", user_id="alice")
        found = await memory.recall_scored("My note 4 is about bees", user_id="alice", mode="vector")
        late = await memory.remember(["I painted the hive blue.", LONG], user_id="alice")
        await late.embedded(timeout=PATIENCE_SECONDS)
        cut_over = await dimensions(memory)
        await memory.reembedding.rollback()
        rolled_back = await memory.recall("blue hive", user_id="alice")
        counts = (await memory.reembedding.status()).counts

        assert (plan.active, plan.target, plan.episodes) == (FORMER, TARGET, 12)
        assert (during.degraded, after.degraded, rolled_back.degraded) == (None, None, None)
        assert before == {FORMER.dimension}
        assert {each.owner.user_id for each in compared} == set(USERS)
        assert all(0.0 < each.overlap <= 1.0 for each in compared)
        assert (status.reembedding.stored.active, status.reembedding.is_cut_over) == (TARGET, True)
        assert getattr(found[0].item, "content", None) == "My note 4 is about bees"
        assert cut_over == {TARGET.dimension}
        assert await dimensions(memory) == {FORMER.dimension}
        assert "painted the hive" in rolled_back.text
        assert (counts.episodes, counts.active, counts.standby) == (14, 14, 14)


async def test_the_timeline_of_a_new_turn_names_the_embedder_that_serves(tmp_path: Path) -> None:
    with scripted_openai() as server:
        keys: dict[str, object] = {"openai_api_key": "k", "openai_base_url": server.url}
        async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path, **keys) as memory:
            await fill(memory, 1)
            await memory.reembedding.start("openai:text-embedding-3-small", dimension=64)
            await filled(memory)
            await memory.reembedding.cutover()
            receipt = await memory.remember("A note for both embedders.", user_id="alice")
            await receipt.embedded(timeout=PATIENCE_SECONDS)
            timeline = await memory.job_admin.timeline(receipt.job_id)

    assert timeline is not None
    (attempt,) = [step for step in timeline.steps if step.name.startswith("embed attempt")]
    assert str(attempt.detail).endswith("openai:text-embedding-3-small:64")


async def test_a_re_embedding_that_was_stopped_continues_when_the_store_is_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await fill(memory, 8)
        await memory.reembedding.start("hash", dimension=128, rate=20)

    async with memory_at(url, tmp_path) as memory:
        await filled(memory)
        with pytest.raises(errors.ReembeddingConflict, match="on standby already"):
            await memory.reembedding.start("hash", dimension=64)
        await memory.reembedding.cutover()

    async with memory_at(url, tmp_path) as memory:  # configured with the former one, it follows
        block = await memory.recall("bees", user_id="alice")
        assert block.degraded is None
        assert await dimensions(memory) == {TARGET.dimension}


async def test_dropped_vectors_are_gone_and_the_next_re_embedding_begins_without_them(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await fill(memory, 6)
        await memory.reembedding.start("hash", dimension=128)
        await filled(memory)
        await memory.reembedding.cutover()
        dropped = await memory.reembedding.drop()
        with pytest.raises(errors.NoReembedding):
            await memory.reembedding.rollback()
    kept = vector_rows(tmp_path / "bot.db")

    async with memory_at(url, tmp_path, embedding_dimension=128) as memory:
        started = await memory.reembedding.start("hash", dimension=64)
        await filled(memory)
        await memory.reembedding.cutover()
        block = await memory.recall("bees", user_id="alice")

        assert dropped == FORMER
        assert len(kept) == 6
        assert started.counts.standby == 0
        assert block.degraded is None
        assert await dimensions(memory) == {64}


async def test_what_is_forgotten_during_a_re_embedding_leaves_no_vector_of_either_embedder(tmp_path: Path) -> None:
    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        await fill(memory, 6)
        await memory.reembedding.start("hash", dimension=128)
        await filled(memory)
        await memory.forget(user_id="alice")
        await memory.reembedding.cutover()
        block = await memory.recall("bees", user_id="alice")

    assert [owner for owner, _ in vector_rows(tmp_path / "bot.db") if "alice" in owner] == []
    assert len(vector_rows(tmp_path / "bot.db")) == 6
    assert "bees" not in block.text


async def test_a_cutover_is_refused_while_episodes_lack_vectors(tmp_path: Path) -> None:
    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        await fill(memory, 4)
        await memory.reembedding.start("hash", dimension=128, rate=0.001)
        with pytest.raises(errors.ReembeddingConflict, match="of 4 episodes"):
            await memory.reembedding.cutover(wait_seconds=0)


def test_the_commands_do_the_work_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERMIND_DATABASE_URL", f"sqlite:{tmp_path}/bot.db")
    monkeypatch.setenv("AFTERMIND_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AFTERMIND_EMBEDDER", "hash")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(make_app_for(arguments[:1]), list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    async def prepare() -> None:
        async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
            await fill(memory, 1)

    asyncio.run(prepare())
    to: Sequence[str] = ("--to", "hash", "--dimension", "128")
    planned = run("reembed", "start", *to, "--dry-run")
    assert "1 episode," in planned
    assert "no cost" in planned
    assert "No re-embedding exists" in run("reembed", "status")
    assert "They are embedded." in run("reembed", "start", *to)
    assert "complete: 1 of 1" in run("reembed", "status")
    assert "Mean overlap@10" in run("reembed", "compare")
    assert "kept for a rollback" in run("reembed", "cutover")
    assert "hash:384" in run("reembed", "rollback")
    assert "hash:128" in run("reembed", "drop", "--yes")
    assert "No re-embedding exists" in run("reembed", "status")


def test_a_model_of_another_dimension_is_named_by_its_error_and_that_name_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, model = f"sqlite:{tmp_path}/bot.db", "openai:text-embedding-3-large"
    named = f"{model}:1536"  # the server answers 1,536 numbers, not 3,072

    async def prepare() -> None:
        async with memory_at(url, tmp_path) as memory:
            await fill(memory, 2)

    async def recall() -> str | None:
        async with Memory(url, settings=Settings(state_dir=tmp_path / "other", embedder=named)) as memory:
            return (await memory.recall("Which note is about bees?", user_id=USERS[0])).degraded

    asyncio.run(prepare())
    with scripted_openai() as server:
        for name, value in {
            "AFTERMIND_DATABASE_URL": url,
            "AFTERMIND_STATE_DIR": str(tmp_path / "state"),
            "AFTERMIND_EMBEDDER": "hash",
            "AFTERMIND_BACKOFF_BASE_SECONDS": "0.01",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": server.url,
        }.items():
            monkeypatch.setenv(name, value)

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(make_app_for(arguments[:1]), ["reembed", *arguments[1:]], catch_exceptions=False)

        failed = run("reembed", "start", "--to", model)
        run("reembed", "drop", "--yes")
        done = [run("reembed", *step) for step in (("start", "--to", named), ("cutover",), ("drop", "--yes"))]
        degraded = asyncio.run(recall())

    assert failed.exit_code == 1
    assert f"Name it {named}" in " ".join(failed.output.split())
    assert [each.exit_code for each in done] == [0, 0, 0], [each.output for each in done]
    assert degraded is None


def vector_rows(path: Path) -> list[tuple[str, str]]:
    """Partition and key of each stored vector."""
    with closing(sqlite3.connect(path)) as connection:
        rows = "SELECT partition, key FROM aftermind_rows WHERE table_name IN ('vectors', 'other_vectors')"
        rows += " AND value IS NOT NULL"
        return connection.execute(rows).fetchall()
