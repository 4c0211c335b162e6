"""`aftermind recall`, where a person waits for the answer."""

import asyncio

from aftermind import Memory
from tests.support.fork_server import run_module
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
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
