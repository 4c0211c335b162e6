"""The value of facts for a query, and its effect on their source turns.

A fact states plainly what its turns mention in passing ("alice lives in Oslo" for "we finally unpacked"), so a matching
fact raises its turns. It does not compete with them: its own value is the share of the query that it covers, and from
its best turn it inherits a part that ranks it after the turns, if the budget has space. So facts never displace better
evidence. Measured on conversations with labelled facts, see benchmarks/README.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import bm25
from aftermind.ranking.candidate_arrays import Frame, Frequencies, Question, worthless_terms
from aftermind.ranking.turn_features import Scores

Floats = NDArray[np.float64]

LIFT = 4.0  # added to the log-odds of a turn by a fact that covers the whole question; 3 to 5 find the same
# Of the best turn's score, and of a fact's value by a turn that it alone finds; with 0.7 facts begin to crowd
# turns out of small budgets.
INHERITED = 0.5
# The log-odds that a fact answers, and what covering the whole question adds: of facts that cover 0.25, 0.4, 0.6 and
# 0.8 of a question 0.017, 0.05, 0.17 and 0.37 came from turns that answer it.
UNCOVERED, COVERED = -6.0, 7.5
LEAST = 0.01  # the minimum value of a fact: a block may have space for it


@dataclass(frozen=True, slots=True, kw_only=True)
class FactMatch:
    """A fact: which of the question's terms it has, by place, and how many facts have each of these."""

    places: Sequence[int]
    having: Sequence[int]


def shares(told: Sequence[FactMatch], frame: Frame, question: Question, frequencies: Frequencies) -> Floats:
    """For each fact, the share of the query's weight that its terms have: 0 to 1.

    Of the query's total weight, not of the best fact's: the best of many bad matches is not an answer. Terms are
    weighted by their rarity among turns and facts together, since facts stated by a call are in no turn.
    """
    if not told:
        return np.zeros(0)
    having = np.array(frequencies.having, dtype=np.float64)
    among = np.zeros(len(having))
    for fact in told:
        among[list(fact.places)] = np.maximum(among[list(fact.places)], list(fact.having))
    idfs = bm25.idf(frequencies.episodes + int(among.max(initial=0)), having + among)
    idfs[worthless_terms(frame, question)] = 0.0
    whole = float(idfs.sum())
    if whole <= 0:
        return np.zeros(len(told))
    return np.array([idfs[list(fact.places)].sum() / whole for fact in told])


def lifted(scores: Scores, worth: Floats, rows: Sequence[Sequence[int]], candidates: NDArray[np.bool_]) -> Scores:
    """The scores with each candidate likelier by its best fact; `rows` are the turns that each fact came from."""
    best = np.zeros(len(scores.total))
    for value, turns in zip(worth, rows, strict=True):
        for row in turns:
            best[row] = max(best[row], value)
    best = np.where(candidates, best, 0.0)
    answering = np.array([INHERITED * covering_value(value) if value else 0.0 for value in best.tolist()])
    odds = np.exp(LIFT * best)
    total = scores.total * odds / (1 - scores.total + scores.total * odds)
    # Also what has nothing in common with the question, and no odds to raise, follows its fact.
    return replace(scores, total=np.maximum(answering, total))


def fact_value(share: float, confidence: float, best_turn: float) -> float:
    """The rank of a fact among the turns: by its own value, or after its best source turn."""
    return max(LEAST, covering_value(share), INHERITED * best_turn) * sureness(confidence)


def covering_value(share: float) -> float:
    """The probability that a fact answers which covers this share of the question."""
    return 1 / (1 + exp(-(UNCOVERED + COVERED * share)))


def sureness(confidence: float) -> float:
    """The value of a fact reduced by its confidence."""
    return 0.5 + 0.5 * confidence
