"""A turn scored alone, with its neighbours, with its session, and by who speaks.

An answer seldom repeats the words of its question, and what a turn is about is often said next door. So each turn is
scored by itself *and* as the window of the two turns before and after it: words count once, wherever in the window they
are; vectors as the mean of the window's similarities. Every weight is a round number on a broad plateau (moving any of
them by a third changes recall@10 by less than 0.01 on either half of the data, see benchmarks/README.md).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking.bm25 import length_weight
from aftermind.ranking.fusion import scaled

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REACH = 2  # neighbours on either side; one finds less (0.76 for 0.78), three begin to blur
LONG_TEXT = 100  # distinct terms; a pasted document has every word, so beyond this a window counts its words for less


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each view of a turn counts. `lexical` and `vector` are the shares of words and of meaning."""

    lexical: float = 0.5
    vector: float = 0.5
    alone: float = 0.4  # the turn by itself; the rest of 1 is its window
    session: float = 0.1  # the words of the whole session
    speaker: float = 0.15  # said by somebody whom the question names
    question: float = 0.1  # taken off a turn that ends in a question
    current: float = 0.05  # said in the session that asks


WEIGHTS = Weights()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns to be scored, one array entry each, in any order; context turns are there for their neighbours only.

    `hits` tells which terms of the question (columns) each turn has, `length` how many distinct terms it has in all.
    `similarity` is the cosine to the question, NaN where a turn has no vector. Positions order a session.
    """

    session: NDArray[np.int64]
    position: NDArray[np.int64]
    hits: Bools
    length: NDArray[np.int64]
    similarity: Floats
    named: Bools
    asking: Bools
    current: Bools

    def __len__(self) -> int:
        return len(self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores in the order of the turns. `total` is 0 to 1 and what counts; the others show where it comes from.

    `lexical` and `vector` are the turn alone, scaled by the best; `lexical_window` and `vector_window` likewise.
    """

    total: Floats
    lexical: Floats
    vector: Floats
    lexical_window: Floats
    vector_window: Floats


def score(turns: Turns, idfs: Floats, *, candidates: Bools, weights: Weights = WEIGHTS) -> Scores:
    """Score every turn; `candidates` are those that the scales are taken from and that may be answers at all.

    Without a term that anybody has, meaning alone counts, and the other way round; words alone count, too, for a turn
    in whose window nothing has a vector yet. The rest score 0.
    """
    order = np.lexsort((turns.position, turns.session))
    near = _Neighbours(turns.session[order])
    hits, mask = turns.hits[order].astype(np.float64), candidates[order]
    own = (hits @ idfs) * length_weight(turns.length[order], float(turns.length.mean()) if len(turns) else 1.0)
    together = near.greatest(hits * np.minimum(1.0, LONG_TEXT / np.maximum(turns.length[order], 1))[:, None]) @ idfs
    session = _whole_session(hits, turns.session[order]) @ idfs
    alone, around, blind = _similarities(turns.similarity[order], near)
    parts = scaled(np.where(mask, np.stack([own, together, session, alone, around]), 0.0))
    lexical, lexical_window, share, vector, vector_window = parts
    words = weights.alone * lexical + (1 - weights.alone) * lexical_window
    meaning = weights.alone * vector + (1 - weights.alone) * vector_window
    by_words, by_meaning = _shares(weights, has_words=bool(words.any()), has_meaning=bool(meaning.any()))
    # What was said a moment ago is embedded a moment later: it must not be worth half as much until then.
    total = np.where(blind, by_words + by_meaning, by_words) * words + by_meaning * meaning + weights.session * share
    total += weights.speaker * turns.named[order] - weights.question * turns.asking[order]
    total += weights.current * turns.current[order]
    most = 1 + weights.session + weights.speaker + weights.current
    total = np.where(mask, np.minimum(np.maximum(total / most, 0.0), 1.0), 0.0)
    back = np.argsort(order)
    lexical, lexical_window, _, vector, vector_window = parts[:, back]
    return Scores(
        total=total[back],
        lexical=lexical,
        vector=vector,
        lexical_window=lexical_window,
        vector_window=vector_window,
    )


class _Neighbours:
    """Who stands up to REACH places before and after whom in the same session; as slices, which copy nothing."""

    def __init__(self, sessions: NDArray[np.int64]) -> None:
        self._steps: list[tuple[slice, slice, Floats]] = []
        for step in (*range(-REACH, 0), *range(1, REACH + 1)):
            here, there = slice(max(-step, 0), -step if step > 0 else None), slice(max(step, 0), min(step, 0) or None)
            self._steps.append((here, there, (sessions[here] == sessions[there]).astype(np.float64)))

    def greatest(self, values: Floats) -> Floats:
        """Of each column, the greatest in the window; none may be negative."""
        result = values.copy()
        for here, there, same in self._steps:
            np.maximum(result[here], values[there] * same[:, None], out=result[here])
        return result

    def mean(self, values: Floats) -> Floats:
        """The mean of the window's values that are not NaN; NaN where all are."""
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        total, count = filled.copy(), known.astype(np.float64)
        for here, there, same in self._steps:
            total[here] += filled[there] * same
            count[here] += known[there] * same
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _similarities(similarity: Floats, near: _Neighbours) -> tuple[Floats, Floats, Bools]:
    """Alone and in the window, and where there is none at all; a turn without a vector borrows its neighbours'."""
    around = near.mean(similarity)
    blind = np.isnan(around)
    around[blind] = 0.0
    return np.where(np.isnan(similarity), around, similarity), around, blind


def _whole_session(hits: Floats, sessions: NDArray[np.int64]) -> Floats:
    if not len(sessions):
        return hits
    starts = np.concatenate([[0], np.flatnonzero(sessions[1:] != sessions[:-1]) + 1])
    sizes = np.diff(starts, append=len(sessions))
    return np.repeat(np.maximum.reduceat(hits, starts, axis=0), sizes, axis=0)


def _shares(weights: Weights, *, has_words: bool, has_meaning: bool) -> tuple[float, float]:
    whole = weights.lexical + weights.vector
    if not has_meaning:
        return (whole if weights.lexical else 0.0), 0.0
    if not has_words:
        return 0.0, (whole if weights.vector else 0.0)
    return weights.lexical, weights.vector
