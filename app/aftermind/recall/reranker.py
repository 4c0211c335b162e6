"""The hook for a second opinion on the best candidates, and a ready one for the `local` extra."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import isnan
from threading import Lock
from typing import Any

from aftermind import errors
from aftermind.types import Episode, Fact, Match

RERANKED = 50  # candidates that a reranker reads: a cross-encoder takes some 10 ms each
# A question and the texts found for it to a score for each text; higher is better, the scale does not matter.
Reranker = Callable[[str, Sequence[str]], Awaitable[Sequence[float]]]


async def rerank(
    reranker: Reranker, question: str, matches: Sequence[Match], *, deadline: float
) -> tuple[list[Match], str | None]:
    """Matches in the order of the reranker's own scores, and None; the k-th has the k-th greatest score, or less: see
    `_falling`.

    Where the reranker fails, or is not ready at `deadline` (of the loop's clock): in the given order, and the reason.
    """
    if not matches:
        return [], None
    unranked = list(matches)
    try:
        async with asyncio.timeout_at(deadline):
            given = await reranker(question, [_read_text(each) for each in matches])
        numbers = list(map(_number, given))
        if len(numbers) != len(matches):
            return unranked, f"the reranker gave {len(numbers)} scores for {len(matches)} texts: its order is missing"
        pairs = sorted(zip(matches, numbers, strict=True), key=lambda pair: -pair[1])
    except Exception as exc:  # the caller's code: whatever it raises, recall continues without it
        return unranked, f"the reranker failed ({type(exc).__name__}): its order is missing"
    scores = _falling(sorted((each.score for each in matches), reverse=True))
    reranked = [
        replace(each, rerank_score=by_reranker, score=score)
        for (each, by_reranker), score in zip(pairs, scores, strict=True)
    ]
    return reranked, None


def _falling(scores: Sequence[float]) -> list[float]:
    """Scores from the greatest on; of equal ones each is half of the one before: the order of the reranker counts.

    With equal scores a block would prefer the shortest texts.
    """
    found: list[float] = []
    for place, score in enumerate(scores):
        most = found[-1] if found else score
        is_equal = place > 0 and score == scores[place - 1]
        found.append(min(score, most / 2 if is_equal else most))
    return found


def _number(score: float) -> float:
    if isnan(score):
        raise ValueError("a score is not a number")
    return float(score)


def _read_text(match: Match) -> str:
    """What a reranker reads of a match."""
    item, passage = match.item, match.passage
    if isinstance(item, Episode):
        return item.content if passage is None else item.content[passage.start : passage.end]
    return item.text if isinstance(item, Fact) else ""


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
