"""Vectors kept on disk between runs, so that a model computes each text once."""

import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from aftermind.llm.protocols import Embedder, Vectors

FOLDER = Path(tempfile.gettempdir()) / "aftermind-embeddings"


class CachedEmbedder:
    """Another embedder, whose vectors are kept by name, revision and texts. One file for each call."""

    def __init__(self, embedder: Embedder, folder: Path = FOLDER) -> None:
        self._embedder, self._folder = embedder, folder
        self.name, self.revision = embedder.name, getattr(embedder, "revision", "")
        self.dimension, self.inline = embedder.dimension, embedder.inline
        self.max_batch, self.max_batch_tokens = embedder.max_batch, embedder.max_batch_tokens
        self.usd_per_million_tokens = embedder.usd_per_million_tokens
        folder.mkdir(parents=True, exist_ok=True)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors of the texts, from disk if they were computed before."""
        parts = [self.name, self.revision, *texts]
        file = self._folder / f"{blake2b(chr(0).join(parts).encode(), digest_size=16).hexdigest()}.npy"
        if file.exists():
            kept: Vectors = np.load(file)
            return kept
        vectors = await self._embedder.embed(texts)
        np.save(file, vectors)
        return vectors

    async def prepare(self) -> None:
        """Nothing: a run whose vectors are all on disk loads no model."""
