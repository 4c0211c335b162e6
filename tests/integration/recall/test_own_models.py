"""An embedder and an extractor that are objects of the application."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftermind import JobFilter, Memory, Message, Settings, errors
from aftermind.llm.protocols import Vectors


class LetterEmbedder:
    """A vector of how often each letter occurs."""

    name, inline, dimension = "letters", True, 26
    max_batch, max_batch_tokens, usd_per_million_tokens = 256, 100_000, None

    async def embed(self, texts: Sequence[str]) -> Vectors:
        counts = np.array([[text.lower().count(chr(97 + place)) + 1e-6 for place in range(26)] for text in texts])
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


async def nothing(texts: Sequence[str]) -> None:
    """No embedder and no extractor."""


@pytest.mark.parametrize(("field", "attribute"), [("embedder", "max_batch_tokens"), ("extractor", "version")])
def test_an_object_that_lacks_attributes_is_refused_with_their_names(field: str, attribute: str) -> None:
    given: dict[str, Any] = {field: nothing}  # Any: it is none of the types that a memory takes
    with pytest.raises(errors.InvalidSettings, match=re.escape("it lacks name")) as refused:
        Memory("inmemory", **given)

    assert attribute in str(refused.value)
    assert "docs/guides/agents.md" in str(refused.value)


class WrongEmbedder(LetterEmbedder):
    """Its vectors are not what its other attributes promise."""

    def __init__(self, *, inline: bool, made: Any) -> None:  # Any: whatever an application's code returns
        self.inline, self._made = inline, made

    async def embed(self, texts: Sequence[str]) -> Vectors:
        found: Vectors = self._made(len(texts))
        return found


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "by a job"])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda count: np.ones((count, 2)), "the shape (1, 2)"),
        (lambda count: np.ones((count + 1, 26)), "the shape (2, 26)"),
        (lambda count: np.full((count, 26), np.nan), "not finite"),
        (lambda count: [["a"] * 26] * count, "no array of numbers"),
        (lambda count: None, "the shape ()"),
    ],
    ids=["dimension", "rows", "nan", "texts", "nothing"],
)
async def test_vectors_that_are_unusable_are_reported_and_take_no_turn_away(
    made: Any, why: str, *, inline: bool
) -> None:
    async with Memory("inmemory", embedder=WrongEmbedder(inline=inline, made=made), extractor="off") as memory:
        receipt = await memory.remember([Message.user("I keep bees.")], user_id="ann")
        await receipt.stored(timeout=30)
        with pytest.raises(errors.JobDead):
            await receipt.embedded(timeout=30)
        (job,) = await memory.dead_letters.list(JobFilter())
        block = await memory.recall("bees", user_id="ann")

    assert job.reason_code == "llm_bad_answer"
    assert why in str(job.error)
    assert "I keep bees." in block.text
    assert block.degraded is not None
    assert why in block.degraded


async def test_lists_of_numbers_are_vectors_too() -> None:
    own = WrongEmbedder(inline=True, made=lambda count: [[0.2] * 26] * count)
    async with Memory("inmemory", embedder=own, extractor="off") as memory:
        await (await memory.remember([Message.user("I keep bees.")], user_id="ann")).embedded(timeout=30)
        block = await memory.recall("bees", user_id="ann")

    assert block.degraded is None


async def test_vectors_of_an_own_embedder_are_compared_with_the_former_ones(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    async with Memory(store, embedder="hash", extractor="off") as memory:
        await memory.remember([Message.user("I keep bees.")], user_id="ann")
        await memory.drain(user_id="ann", timeout=30)

    async with Memory(store, embedder=LetterEmbedder(), extractor="off") as memory:
        await memory.reembedding.start()
        await memory.drain(user_id="ann", timeout=30)
        compared = await memory.reembedding.compare(questions=["bees"], user_id="ann")

    assert [each.overlap for each in compared] == [1.0]


@pytest.mark.parametrize(("to", "why"), [(LetterEmbedder(), "no name"), ("letters", "one of auto, hash")])
async def test_a_reembedding_to_an_own_embedder_that_is_named_is_refused_with_what_to_do(to: Any, why: str) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        for change in (memory.reembedding.plan, memory.reembedding.start):
            with pytest.raises(errors.InvalidSettings, match=r"^embedder=") as refused:
                await change(to)

            assert why in str(refused.value)
            assert "Memory(embedder=…), and call `reembedding.start()` without an argument" in str(refused.value)


class NoExtractor:
    name, version = "none", "1"

    async def extract(self, request: object) -> None:
        """Nothing is called in this test."""


@pytest.mark.parametrize(
    ("store", "extractor"),
    [
        ("postgresql://localhost/memory", NoExtractor()),
        ("postgresql://localhost/memory", "rules"),
        ("sqlite:./bot.db", NoExtractor()),
    ],
)
def test_an_extractor_that_workers_would_ignore_is_refused(store: str, extractor: Any, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, extractor="off")
    with pytest.raises(errors.InvalidSettings, match=r"extractor='?(none|rules).*Set AFTERMIND_EXTRACTOR"):
        Memory(store, broker="redis://localhost", extractor=extractor, settings=settings)

    Memory(store, broker="redis://localhost", extractor="off", settings=settings)  # as workers have it
