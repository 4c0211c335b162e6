"""One turn through all the queues by real workers, whichever way it was accepted."""

import os
from pathlib import Path

import redis

from aftermind import Memory
from aftermind.settings import Settings
from aftermind.wire import queues
from aftermind_workers import lifecycle
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

MODELS = ",".join((queues.EMBED, queues.EXTRACT))
ALL = f"{queues.STORE},{MODELS}"
BRISK = {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2", "AFTERMIND_RECONCILE_SECONDS": "0.5"}


async def test_a_turn_that_postgres_accepted_is_stored_though_redis_was_wiped(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(accept="postgres", state_dir=tmp_path)
    memory = Memory(database.app_url, broker=redis_url, settings=settings)
    receipt = await memory.remember("I moved to Oslo.", user_id="ann", session_id="s")
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()

    with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path):
        await receipt.stored(timeout=180)

    assert [episode.content for episode in await memory.history(user_id="ann")] == ["I moved to Oslo."]
    await memory.close()


async def test_a_turn_is_stored_embedded_and_mined_by_workers_that_ask_a_model_at_a_lower_priority(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    said = "I like fjords."
    for folder in ("store", "models"):
        (tmp_path / folder).mkdir()
    with scripted_openai() as model:
        model.script.facts = {said: [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        asked = {
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "AFTERMIND_EXTRACTOR": "openai:scripted",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
        }
        memory = Memory(database.app_url, broker=redis_url)
        env = environment(database.relay_url, redis_url, **BRISK, **asked)
        with (
            workers(env, tmp_path / "store", on=queues.STORE) as (storing,),
            workers(env, tmp_path / "models", on=MODELS) as (background,),
        ):
            receipt = await memory.remember(said, user_id="ann", session_id="s")
            await receipt.stored(timeout=180)
            await receipt.embedded(timeout=30)
            await receipt.extracted(timeout=180)
            priorities = storing.nice(), background.nice()

    assert priorities == (os.nice(0), max(os.nice(0), lifecycle.BACKGROUND_NICE))
    facts = await wait_until(lambda: memory.facts.query(user_id="ann"), description="the fact is there")
    assert [(fact.subject, fact.predicate, fact.object) for fact in facts] == [("user", "likes", "fjords")]
    assert facts[0].extractor.startswith("openai")
    await memory.close()
