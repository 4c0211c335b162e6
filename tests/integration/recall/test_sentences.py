"""Where vectors compare meaning, the sentences of a message have vectors, too: stored, pending, in this process."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from aftermind import Memory, RecallBlock, Settings
from aftermind.db.postgres_transaction import pg
from aftermind.llm.protocols import Vectors
from aftermind.types import Episode
from tests.support.learning import UNHURRIED, Learning, learning
from tests.support.servers import Database

USER = "alice"
# Words of each topic are alike, as for a model that compares meaning.
TOPICS = (
    {"dog", "puppy", "spaniel"},
    {"ill", "fever", "vet"},
    {"work", "office", "boss"},
    {"rain", "storm", "wind"},
    {"dinner", "soup", "bread"},
    {"train", "station", "late"},
)
ANSWER = (
    "My boss shouted in the office. The spaniel had a fever. A storm was coming. We had hot soup. The train was late."
)
# All of these are a little about either topic, none of them about both in one sentence.
OTHERS = [
    "A puppy came to work. The vet was late for dinner.",
    "Wind blew from the vet. Another puppy ate bread.",
    "The puppy saw a train. My dinner was by the vet.",
]
QUESTION = "Which dog is ill?"

VECTORS = text("SELECT content, cardinality(passage_embedding) AS sentences FROM aftermind.episodes ORDER BY position")


class Meaning:
    """An embedder that knows topics. `texts` are those it was given."""

    name, revision, dimension = "meaning", "", 384
    usd_per_million_tokens = 1.0
    max_batch, max_batch_tokens = 64, 100_000

    def __init__(self, *, inline: bool) -> None:
        self.inline, self.texts = inline, list[str]()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """The topics of each text, of unit length; one more dimension is of every text."""
        self.texts += texts
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, each in zip(rows, texts, strict=True):
            words = [word.strip(".?:").casefold() for word in each.split()]
            row[: len(TOPICS)] = [sum(word in topic for word in words) for topic in TOPICS]
            row[len(TOPICS)] = 0.2
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(params=["in this process", "in a file", "stored", "stored inline", "pending"])
async def memory(
    request: pytest.FixtureRequest, database: Database, redis_url: str, tmp_path: Path
) -> AsyncIterator[Memory]:
    """One that was handed the messages, in each of the places where they may be."""
    embedder = Meaning(inline=request.param in ("stored inline", "pending"))
    if request.param.startswith("in "):
        store = "inmemory" if request.param == "in this process" else f"sqlite:{tmp_path / 'memory.db'}"
        settings = Settings(**UNHURRIED, extractor="off")
        async with Memory(store, settings=settings, embedder=embedder) as made:
            await hand_over(made)
            if request.param == "in this process":
                yield made
        if request.param == "in a file":
            async with Memory(store, settings=settings, embedder=embedder) as made:
                yield made
        return
    async with learning(database, redis_url, tmp_path, embeds_with=embedder, extractor="off") as learnt:
        await hand_over(learnt.memory, wait=False)
        if request.param != "pending":
            await learnt.settle()
        yield learnt.memory


async def hand_over(memory: Memory, *, wait: bool = True) -> None:
    """Each message in a session of its own, so that none is another's context."""
    for place, each in enumerate([*OTHERS, ANSWER]):
        receipt = await memory.remember([each], user_id=USER, session_id=f"s{place}")
        if wait:
            await receipt.embedded(timeout=60)


async def test_the_message_with_the_best_sentence_is_the_best(memory: Memory) -> None:
    block = await memory.recall(QUESTION, user_id=USER, load=["history"])

    assert block.degraded is None
    assert first(block) == ANSWER


@pytest.mark.parametrize("inline", [False, True])
async def test_sentences_are_embedded_once_and_stored_with_the_message(
    inline: bool, database: Database, redis_url: str, tmp_path: Path
) -> None:
    embedder = Meaning(inline=inline)
    async with learning(database, redis_url, tmp_path, embeds_with=embedder, extractor="off") as learnt:
        await learnt.learn(USER, [ANSWER, "The train was late.", "Fine. Yes. I like soup and bread."])

        assert await stored(learnt) == {
            ANSWER: 5,
            "The train was late.": None,
            "Fine. Yes. I like soup and bread.": None,
        }
    assert sorted(embedder.texts) == sorted(
        [
            ANSWER,
            *(f"{each}." for each in ANSWER[:-1].split(". ")),
            *("The train was late.", "Fine. Yes. I like soup and bread."),
        ]
    )


async def test_sentences_are_not_embedded_where_the_setting_says_so(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    embedder = Meaning(inline=False)
    given = {"extractor": "off", "embed_sentences": False}
    async with learning(database, redis_url, tmp_path, embeds_with=embedder, **given) as learnt:
        await learnt.learn(USER, [ANSWER])

        assert await stored(learnt) == {ANSWER: None}
        assert first(await learnt.memory.recall(QUESTION, user_id=USER, load=["history"])) == ANSWER
    assert ANSWER in embedder.texts
    assert not any(each in embedder.texts for each in ANSWER.split(". "))


async def test_the_offline_embedder_has_none(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with learning(database, redis_url, tmp_path, extractor="off") as learnt:
        await learnt.learn(USER, [ANSWER])

        assert await stored(learnt) == {ANSWER: None}


async def test_a_forgotten_message_leaves_no_vectors_of_sentences(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with learning(database, redis_url, tmp_path, embeds_with=Meaning(inline=False), extractor="off") as learnt:
        await learnt.learn(USER, [ANSWER])
        await learnt.memory.forget(user_id=USER)
        await learnt.settle()

        assert await stored(learnt) == {}


def first(block: RecallBlock) -> str:
    """The text of the best message."""
    found = block.matches[0].item
    assert isinstance(found, Episode)
    return found.content


async def stored(learnt: Learning) -> dict[str, int | None]:
    """How many sentences of each message have vectors."""
    async with learnt.owner.transaction() as tx:
        return {row.content: row.sentences for row in await pg(tx).rows(VECTORS)}
