"""Texts to vectors by an embeddings endpoint."""

from collections.abc import Sequence

import numpy as np

from aftermind import errors
from aftermind.llm import token_count
from aftermind.llm.openai.client import PRICES, Client
from aftermind.llm.protocols import Vectors

DIMENSIONS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}
MAX_TOKENS = 8_000  # of one text; the endpoint refuses more than 8,192, so the end of a longer one is left out


class OpenAIEmbedder:
    """An embeddings endpoint; at most 2,048 texts and 300,000 tokens a call, as OpenAI's limits are."""

    inline = False
    max_batch = 2_048
    max_batch_tokens = 250_000

    def __init__(self, client: Client, model: str, *, dimension: int | None = None) -> None:
        self._client, self._model, self._asked = client, model, dimension
        self.usd_per_million_tokens: float | None = PRICES[model][0] if model in PRICES else None
        usual = DIMENSIONS.get(model, 1536)
        self.dimension = dimension or usual
        self.name = f"openai:{model}" if self.dimension == usual else f"openai:{model}:{dimension}"

    async def prepare(self) -> None:
        """Load the SDK; nothing is connected."""
        await self._client.sdk()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row a text, of unit length. Raises the model errors of `aftermind.errors`."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        given = [token_count.cut(text, MAX_TOKENS) or " " for text in texts]  # the endpoint refuses an empty text
        async with self._client.call(self._model, tokens=sum(map(token_count.upper_bound, given))) as sdk:
            if self._asked is None:
                answer = await sdk.embeddings.create(model=self._model, input=given)
            else:
                answer = await sdk.embeddings.create(model=self._model, input=given, dimensions=self._asked)
        rows = sorted(answer.data, key=lambda row: row.index)
        return unit_vectors([row.embedding for row in rows], (len(texts), self.dimension), self._client.provider)


def unit_vectors(rows: Sequence[Sequence[float]], shape: tuple[int, int], provider: str) -> Vectors:
    """A provider's vectors, each of length 1. Raises `BadModelAnswer` for another shape, and for infinite ones."""
    vectors = np.array(rows, dtype=np.float32)
    if vectors.shape != shape:
        raise errors.BadModelAnswer(provider, f"vectors of shape {vectors.shape}, wanted {shape}")
    if not np.isfinite(vectors).all():
        raise errors.BadModelAnswer(provider, "vectors that are not finite")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
