"""Texts to vectors by a provider's embeddings endpoint."""

from collections.abc import Mapping, Sequence

import numpy as np

from aftermind import errors
from aftermind.llm import prices, token_count
from aftermind.llm.openai.client import Client
from aftermind.llm.protocols import Vectors

DIMENSIONS: Mapping[str, int] = {  # where it is not the usual one of the provider
    "text-embedding-3-large": 3072,
    "embed-v4.0": 1536,
    "embed-english-light-v3.0": 384,
    "embed-multilingual-light-v3.0": 384,
    "voyage-3-lite": 512,
}


class ProviderEmbedder:
    """The embeddings endpoint of OpenAI, or of a server with its API, of Voyage AI or of Cohere."""

    inline = False

    def __init__(self, client: Client, model: str, *, dimension: int | None = None) -> None:
        self._client, self._model, self._asked = client, model, dimension
        self.max_batch, self.max_batch_tokens = client.max_batch, client.max_batch_tokens
        usual = DIMENSIONS.get(model, client.usual_dimension)
        self.dimension = dimension or usual
        self.name = f"{client.kind}:{model}" if self.dimension == usual else f"{client.kind}:{model}:{dimension}"
        price = prices.price_of(self.name, client.prices)
        self.usd_per_million_tokens = None if price is None else price.input

    async def prepare(self) -> None:
        """Load the SDK; nothing is connected."""
        await self._client.sdk()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row a text, of unit length. Raises the model errors of `aftermind.errors`."""
        return await self._embed(texts, is_query=False)

    async def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """As `embed`, of questions, whose vectors Voyage AI and Cohere compute differently."""
        return await self._embed(texts, is_query=True)

    async def _embed(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        given = [token_count.cut(text, self._client.max_tokens) or " " for text in texts]  # an empty one is refused
        async with self._client.call(self._model, tokens=sum(map(token_count.upper_bound, given))) as sdk:
            rows = await self._client.vectors(sdk, self._model, given, self._asked, is_query=is_query)
        vectors = np.array(rows, dtype=np.float32)
        if self._asked is None and vectors.ndim == 2 and vectors.shape[1] != self.dimension:
            name = f"{self._client.kind}:{self._model}:{vectors.shape[1]}"
            why = f"vectors of {vectors.shape[1]:,} dimensions, not of {self.dimension:,}. Name it {name}"
            raise errors.BadModelAnswer(self._client.provider, why)
        return _unit_vectors(vectors, (len(texts), self.dimension), self._client.provider)


def _unit_vectors(vectors: Vectors, shape: tuple[int, int], provider: str) -> Vectors:
    """A provider's vectors, each of length 1. Raises `BadModelAnswer` for another shape, and for infinite ones."""
    if vectors.shape != shape:
        raise errors.BadModelAnswer(provider, f"vectors of shape {vectors.shape}, wanted {shape}")
    if not np.isfinite(vectors).all():
        raise errors.BadModelAnswer(provider, "vectors that are not finite")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
