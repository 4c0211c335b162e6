"""`aftermind recall`, where a person waits for the answer."""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from aftermind import Memory, Message, Settings
from tests.support.fork_server import run_module
from tests.support.learning import AT_ONCE
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.workers import environment


async def test_a_command_waits_for_the_vector_of_its_question(database: Database, redis_url: str) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        await memory.remember("I moved to Oslo.", user_id="ann")
    with scripted_openai() as model:
        asked = {
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
        }
        done = await asyncio.to_thread(
            run_module,
            ["aftermind.cli", "recall", "When did I move to Oslo?", "--user", "ann"],
            env=environment(database.relay_url, redis_url, **asked),
        )

    assert done.returncode == 0, done.stderr
    assert "I moved to Oslo." in done.stdout
    assert "degraded" not in done.stderr


async def test_a_block_that_is_too_small_for_any_match_says_so(database: Database, redis_url: str) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        await memory.remember("I moved to Oslo.", user_id="ann")

    done = await asyncio.to_thread(
        run_module,
        ["aftermind.cli", "recall", "When did I move to Oslo?", "--user", "ann", "--budget", "10"],
        env=environment(database.relay_url, redis_url),
    )

    assert done.returncode == 0, done.stderr
    assert "No match fits the token budget. `--budget` raises it" in done.stdout
    assert "0 of 1 chunks" in done.stdout


async def test_texts_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/memory.db"
    async with Memory(store) as memory:
        await memory.remember("My tag is :coffee: and [bold]x[/bold].", user_id="ann")

    done = await asyncio.to_thread(
        run_module,
        ["aftermind.cli", "recall", "Which tag?", "--user", "ann"],
        env={**os.environ, "AFTERMIND_DATABASE_URL": store},
    )

    assert "My tag is :coffee: and [bold]x[/bold]." in done.stdout


async def test_the_kinds_of_memory_in_the_block_are_those_that_are_named(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/memory.db"
    async with Memory(store, embedder="hash", extractor="rules", settings=Settings(**AT_ONCE)) as memory:
        await memory.remember("I moved to Oslo.", user_id="ann")
        await memory.blocks.set("human", "Likes short answers.", user_id="ann")
        await memory.drain(user_id="ann", timeout=30)
    env = {**os.environ, "AFTERMIND_DATABASE_URL": store}

    async def kinds(*load: str) -> set[str]:
        command = ["aftermind.cli", "recall", "When did I move to Oslo?", "--user", "ann", "--json", *load]
        done = await asyncio.to_thread(run_module, command, env=env)
        assert done.returncode == 0, done.stderr
        block = json.loads(done.stdout)
        found = {"facts" if "predicate" in each["item"] else "history" for each in block["matches"]}
        return found | ({"blocks"} if "short answers" in block["text"] else set())

    assert await kinds() == {"history", "facts", "blocks"}
    assert await kinds("--load", "history") == {"history"}
    assert await kinds("--load", "facts", "--load", "blocks") == {"facts", "blocks"}
    assert await kinds("--load", "facts,blocks") == {"facts", "blocks"}


async def test_facts_and_messages_that_have_ended_are_marked(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/memory.db"
    quick = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0)
    async with Memory(store, settings=quick) as memory:
        for day, city in ((1, "Oslo"), (5, "Bergen")):
            message = Message.user(f"I live in {city}.", occurred_at=datetime(2026, 3, day, 12, tzinfo=UTC))
            await memory.remember(message, user_id="ann")
            await memory.drain(user_id="ann", timeout=PATIENCE_SECONDS)

    done = await asyncio.to_thread(
        run_module,
        ["aftermind.cli", "recall", "Where have I lived?", "--user", "ann", "--wide"],
        env={**os.environ, "AFTERMIND_DATABASE_URL": store, "AFTERMIND_EMBEDDER": "hash"},
    )

    rows = [row.rstrip() for row in done.stdout.splitlines()]
    assert any(row.endswith("user lives in Oslo (since 2026-03-01, until 2026-03-05)") for row in rows), done.stdout
    assert any(row.endswith("I live in Oslo. (superseded 2026-03-05)") for row in rows), done.stdout
    assert any(row.endswith("user lives in Bergen") for row in rows), done.stdout


async def test_printed_redis_users_are_those_of_a_json_answer(tmp_path: Path) -> None:
    env = {**os.environ, "AFTERMIND_DATABASE_URL": "postgresql://a@b/c", "AFTERMIND_BROKER_URL": "redis://localhost"}
    command = ["aftermind.cli", "redis-acl", "--passwords", str(tmp_path)]

    printed = await asyncio.to_thread(run_module, command, env=env)
    answered = await asyncio.to_thread(run_module, [*command, "--json"], env=env)

    assert printed.stdout.splitlines() == [each["line"] for each in json.loads(answered.stdout)]
