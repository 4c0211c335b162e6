"""An embedder and an extractor that are objects of the application."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftermind import Memory, Message, errors
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
