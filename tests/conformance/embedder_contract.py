"""What every `Embedder` promises."""

import asyncio

import numpy as np
import pytest

from aftermind.llm.protocols import Embedder


class EmbedderContract:
    """Bind it by a fixture `embedder`."""

    async def test_one_row_a_text_in_order_and_of_unit_length(self, embedder: Embedder) -> None:
        texts = ["I live in Oslo.", "My dog is called Rex.", "Tea, please."]

        together = await embedder.embed(texts)
        alone = [(await embedder.embed([text]))[0] for text in texts]

        assert together.shape == (3, embedder.dimension)
        assert together.dtype == np.float32
        assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-4)
        assert np.allclose(together, np.stack(alone), atol=1e-4)

    async def test_like_texts_are_nearer_than_unlike_ones(self, embedder: Embedder) -> None:
        dog, same, other = await embedder.embed(["My dog is called Rex.", "Rex is my dog.", "Quarterly tax figures"])

        assert float(dog @ same) > float(dog @ other)

    async def test_no_texts_are_no_rows(self, embedder: Embedder) -> None:
        assert (await embedder.embed([])).shape == (0, embedder.dimension)

    @pytest.mark.parametrize("text", ["", " ", "🙂", "\u200b", "a" * 100_000, "…!?"])
    async def test_odd_texts_have_a_finite_vector(self, embedder: Embedder, text: str) -> None:
        (row,) = await embedder.embed([text])

        assert np.isfinite(row).all()
        assert float(np.linalg.norm(row)) <= 1.0001

    async def test_calls_at_once_do_not_mix(self, embedder: Embedder) -> None:
        texts = [f"number {count}" for count in range(20)]

        rows = await asyncio.gather(*(embedder.embed([text]) for text in texts))

        assert np.allclose(np.concatenate(rows), await embedder.embed(texts), atol=1e-4)

    async def test_its_name_tells_it_from_others(self, embedder: Embedder) -> None:
        assert embedder.name
        assert embedder.max_batch > 0
        assert embedder.max_batch_tokens > 0
