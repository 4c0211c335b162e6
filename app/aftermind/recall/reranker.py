"""The hook for a second opinion on the best candidates, and a ready one for the `local` extra."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from threading import Lock
from typing import Any

from aftermind import errors

# A question and the texts found for it to a score for each text; higher is better, the scale does not matter.
Reranker = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]


class CrossEncoderReranker:
    """A sentence-transformers cross-encoder of this machine, loaded by the first call, run in a thread.

    `path` is a folder or a name that sentence-transformers resolves. It reads question and text together, which is
    slow: tens of milliseconds for the fifty best on two cores.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._loaded: Any = None  # Any: sentence_transformers is an extra; its type is not there without it
        self._lock = Lock()

    async def __call__(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """A score for each text. Raises `InvalidSettings` where the extra or the model is missing."""
        return await asyncio.to_thread(self._scores, question, list(texts))

    def _scores(self, question: str, texts: list[str]) -> list[float]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load(self.path)
            return [float(score) for score in self._loaded.predict([(question, text) for text in texts])]


def _load(path: str) -> Any:  # Any: see above
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as exc:
        why = "it needs sentence-transformers. Install aftermind[local]."
        raise errors.InvalidSettings("reranker", path, why) from exc
    return CrossEncoder(path, device="cpu")
