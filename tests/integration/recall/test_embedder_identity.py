"""Vectors of two embedders are never compared, and never stored side by side, whatever their dimension."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import redis

from aftermind import Memory, Settings, errors
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.ranking.vectors import Matrix
from aftermind.wire import queues
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database, psql_async
from tests.support.stored_turns import keep, said
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

UNHURRIED = {"recall_budget_seconds": 10.0, "query_embedding_budget_seconds": 10.0}
BRISK = {"AFTERMIND_RECONCILE_SECONDS": "0.5", "AFTERMIND_EXTRACTOR": "off"}
ALL = ",".join((queues.STORE, queues.EMBED))


class Reversed:
    """Another embedder of the same dimension: every vector of the hash embedder, back to front."""

    usd_per_million_tokens: float | None = None
    inline = False
    max_batch, max_batch_tokens = 100, 100_000

    def __init__(self, *, name: str = "reversed", revision: str = "1") -> None:
        self._hash = HashEmbedder()
        self.name, self.revision, self.dimension = name, revision, self._hash.dimension

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Rows of unit length."""
        return np.ascontiguousarray(self._hash.vectors(texts)[:, ::-1])


def opened(database: Database, redis_url: str, tmp_path: Path, embedder: Embedder | str) -> Memory:
    settings = Settings(state_dir=tmp_path, **UNHURRIED)  # type: ignore[arg-type]
    return Memory(database.app_url, broker=redis_url, embedder=embedder, settings=settings)


@pytest.mark.parametrize("other", [Reversed(), Reversed(name="hash:384", revision="2"), HashEmbedder(64)])
async def test_recall_with_another_embedder_searches_words_alone_and_says_so(
    database: Database, redis_url: str, tmp_path: Path, other: Embedder
) -> None:
    await keep(database.url, [said("I keep bees"), said("My sister sails")])

    memory = opened(database, redis_url, tmp_path, other)
    block = await memory.recall("bees", user_id="alice", session_id="s1")
    by_vector = await memory.recall_scored("bees", user_id="alice", mode="vector")
    await memory.close()

    assert "bees" in block.text
    assert block.degraded is not None
    assert "aftermind reembed start" in block.degraded
    assert by_vector == []


async def test_recall_with_the_embedder_of_the_stored_vectors_is_whole(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    await keep(database.url, [said("I keep bees")])

    memory = opened(database, redis_url, tmp_path, "hash")
    block = await memory.recall("bees", user_id="alice", session_id="s1")
    by_vector = await memory.recall_scored("bees", user_id="alice", mode="vector")
    await memory.close()

    assert block.degraded is None
    assert len(by_vector) == 1


async def test_vectors_of_questions_in_redis_belong_to_one_revision_of_an_embedder(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    await keep(database.url, [said("I keep bees")])
    first, second = Reversed(revision="1"), Reversed(revision="2")
    for embedder in (first, second):
        key = embedder_identity(embedder).key.replace("\n", "\\n")
        await psql_async(database.url, f"UPDATE aftermind.meta SET value = E'{key}' WHERE key = 'active_embedder'")
        memory = opened(database, redis_url, tmp_path, embedder)
        await memory.recall("bees", user_id="alice", session_id="s1")
        await memory.close()

    with redis.Redis.from_url(redis_url) as client:
        assert len(list(client.scan_iter("*question:*"))) == 2


async def test_a_worker_with_another_embedder_stores_turns_without_vectors_until_one_with_the_stored_one_comes(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    await keep(database.url, [said("I keep bees")])
    memory = opened(database, redis_url, tmp_path, "hash")
    lacking = "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NULL"
    waiting = "SELECT attempts, note FROM aftermind.jobs WHERE kind = 'embed' AND note IS NOT NULL"

    with scripted_openai() as model:
        other = {
            "AFTERMIND_EMBEDDER": "openai:other",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
        }
        with workers(environment(database.relay_url, redis_url, **BRISK, **other), tmp_path, on=ALL):
            receipt = await memory.remember("I like fjords.", user_id="alice", session_id="s1")
            await receipt.stored(timeout=180)
            note = await wait_until(
                lambda: psql_async(database.url, waiting), description="the embed job waits with a reason"
            )
        assert model.calls.by_kind.get("embeddings", 0) == 0
    assert await psql_async(database.url, lacking) == "1"
    assert note.startswith("0|"), note
    assert "hash:384" in note

    await psql_async(database.url, "UPDATE aftermind.jobs SET run_at = now() WHERE kind = 'embed'")
    with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path, on=ALL):
        await receipt.embedded(timeout=180)
    await memory.close()

    assert await psql_async(database.url, lacking) == "0"


async def test_an_inline_embedder_never_writes_into_the_vectors_of_another_one(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    key = embedder_identity(Reversed()).key.replace("\n", "\\n")
    await keep(database.url, [said("I keep bees")])
    await psql_async(database.url, f"UPDATE aftermind.meta SET value = E'{key}' WHERE key = 'active_embedder'")
    memory = opened(database, redis_url, tmp_path, Reversed())

    with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path, on=ALL):
        receipt = await memory.remember("I like fjords.", user_id="alice", session_id="s1")
        await receipt.stored(timeout=180)
    found = await memory.recall("fjords", user_id="alice", session_id="s1")
    await memory.close()

    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NULL") == "1"
    assert (
        await psql_async(database.url, "SELECT count(*) FROM aftermind.jobs WHERE kind = 'embed' AND state = 'queued'")
        == "1"
    )
    assert "fjords" in found.text


async def test_health_names_the_other_embedder_and_the_command_that_re_embeds(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    await keep(database.url, [said("I keep bees")])
    memory = opened(database, redis_url, tmp_path, Reversed())
    health = await memory.health()
    await memory.close()

    vectors = next(part for part in health.parts if part.name == "vectors")
    assert vectors.state == "degraded"
    assert "reversed" in vectors.detail
    assert "aftermind reembed start" in vectors.detail


def test_the_messages_carry_what_was_stored_and_what_is_configured() -> None:
    error = errors.EmbedderMismatch(embedder_identity(HashEmbedder()), embedder_identity(Reversed()))

    assert (error.stored, error.configured) == (embedder_identity(HashEmbedder()), embedder_identity(Reversed()))
    assert json.dumps(str(error)).count("hash:384") == 1
