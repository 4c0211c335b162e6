"""Facts beside turns: what a fact is worth to a question, and what that says of the turns that it came from.

A fact says in plain words what its turns say in passing ("alice lives in Oslo" for "we finally unpacked"), so a fact
that fits lifts its turns. It is no rival of theirs: of itself it counts by the share of the question that it covers,
and of what its best turn is worth it inherits a part that puts it behind the turns, where a budget has room. So facts
never displace better evidence. Measured on conversations whose facts are known, see benchmarks/README.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import bm25
from aftermind.ranking.corpus import Frame, Frequencies, Question, named_terms, speakers_of
from aftermind.ranking.windows import Scores

Floats = NDArray[np.float64]

LIFT = 0.6  # of its way to 1 that a fact which covers the whole question takes a turn; 0.5 to 0.7 find the same
INHERITED = 0.5  # of the best turn's score; with 0.7 facts begin to crowd turns out of small budgets
LEAST, OWN = 0.1, 0.8  # what any fact is worth, and what covering the whole question adds


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A fact: which of the question's terms it has, by place, and how many facts have each of these."""

    places: Sequence[int]
    having: Sequence[int]


def shares(told: Sequence[Told], frame: Frame, question: Question, frequencies: Frequencies) -> Floats:
    """Of each fact, the share of the question's weight that its terms have: 0 to 1.

    Of the question's own weight, not of the best fact's: the best of many that fit badly is no answer. Terms weigh by
    their rarity among turns and facts together, since what was told by a call is in no turn.
    """
    if not told:
        return np.zeros(0)
    having = np.array(frequencies.having, dtype=np.float64)
    among = np.zeros(len(having))
    for fact in told:
        among[list(fact.places)] = np.maximum(among[list(fact.places)], list(fact.having))
    idfs = bm25.idf(frequencies.episodes + int(among.max(initial=0)), having + among)
    idfs[named_terms(speakers_of(frame, question), question)] = 0.0
    whole = float(idfs.sum())
    if whole <= 0:
        return np.zeros(len(told))
    return np.array([idfs[list(fact.places)].sum() / whole for fact in told])


def lifted(scores: Scores, worth: Floats, rows: Sequence[Sequence[int]], candidates: NDArray[np.bool_]) -> Scores:
    """The scores with each candidate nearer to 1 by its best fact; `rows` are the turns that each fact came from."""
    best = np.zeros(len(scores.total))
    for value, turns in zip(worth, rows, strict=True):
        for row in turns:
            best[row] = max(best[row], value)
    total = 1 - (1 - scores.total) * (1 - LIFT * np.where(candidates, best, 0.0))
    return replace(scores, total=total)


def value_of(share: float, confidence: float, best_turn: float) -> float:
    """Where a fact stands among the turns: by itself, or behind the best of those that it came from."""
    return max(LEAST + OWN * share, INHERITED * best_turn) * sureness(confidence)


def sureness(confidence: float) -> float:
    """What is left of a fact's worth where somebody was not sure of it."""
    return 0.5 + 0.5 * confidence
