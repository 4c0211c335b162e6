"""A logistic model: the probability that a turn answers, from its features; and how its coefficients are fitted.

Fitted in three steps. The conditional logit (McFadden, 1974) compares the turns of each question with each other, which
is what ranking needs; a logistic regression with one slope and an intercept then turns scores into probabilities
(Platt, 1999); another corrects them for users of few turns. In the product the model is a dot product and a sigmoid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Group = tuple[Floats, Floats]  # of one question: a row of features for each turn, and which turns answer (1 or 0)

RIDGE = 3.0  # of standardised coefficients; from 1 to 10 the figures are the same within 0.002
MAX_STEPS = 60
CONVERGED = 1e-4  # of the largest change of a coefficient


@dataclass(frozen=True, slots=True)
class Model:
    """Coefficients in the order of the features, and the intercept."""

    coefficients: Floats
    intercept: float

    def probabilities(self, features: Floats, bonus: Floats | float = 0.0) -> Floats:
        """Of each row of features, the probability that it answers; a `bonus` is added to the log-odds."""
        odds = features @ self.coefficients + self.intercept + bonus
        return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))), dtype=np.float64)


def fit(
    groups: Sequence[Group],
    used: NDArray[np.bool_],
    *,
    few: int,
    without_answer: Sequence[Floats] = (),
    parts: Sequence[Group] = (),
    former: Model | None = None,
) -> Model:
    """The model of these questions, with the features `used`; the others have the coefficient 0.

    `without_answer` are features of questions that no turn answers: they lower the probabilities, not the order. The
    columns from `few` on are fitted last, to `parts`: questions asked to small parts of the turns, with an answer or
    without. Without parts their coefficients are those of `former`.
    """
    late = used & (np.arange(len(used)) >= few)
    early = used & ~late
    coefficients = np.where(late, 0.0 if former is None else former.coefficients, 0.0)
    ranked = _conditional_logit([(features[:, early], answers) for features, answers in groups])
    whole = [*groups, *((features, np.zeros(len(features))) for features in without_answer)]
    rows, answers = map(np.concatenate, zip(*whole, strict=True))
    scores = np.stack([rows[:, early] @ ranked, np.ones(len(rows))], axis=1)
    slope, intercept = _logistic_regression(scores, answers, rows @ coefficients)
    coefficients[early] = ranked * slope
    if parts:
        rows, answers = map(np.concatenate, zip(*parts, strict=True))
        coefficients[late] = _logistic_regression(rows[:, late], answers, rows @ coefficients + intercept)
    return Model(coefficients, float(intercept))


def _conditional_logit(groups: Sequence[Group]) -> Floats:
    """By Newton's method, with halved steps if a step is too large."""
    rows = np.concatenate([features for features, _ in groups])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)
    scaled = [((features - mean) / deviation, answers) for features, answers in groups if answers.any()]
    found = np.zeros(rows.shape[1])
    for _ in range(MAX_STEPS):
        gradient, curvature = -RIDGE * found, RIDGE * np.eye(len(found))
        for features, answers in scaled:
            chances = _softmax(features @ found)
            expected = chances @ features
            gradient += answers @ features / answers.sum() - expected
            curvature += (features * chances[:, None]).T @ features - np.outer(expected, expected)
        step = np.linalg.solve(curvature, gradient)
        before, share = _likelihood(scaled, found), 1.0
        while _likelihood(scaled, found + share * step) < before and share > CONVERGED:
            share /= 2
        found = found + share * step
        if np.abs(share * step).max() < CONVERGED:
            break
    return np.asarray(found / deviation, dtype=np.float64)


def _likelihood(groups: Sequence[Group], found: Floats) -> float:
    total = -RIDGE / 2 * float(found @ found)
    for features, answers in groups:
        scores = features @ found
        highest = scores.max()
        total += float(answers @ scores / answers.sum() - highest - np.log(np.exp(scores - highest).sum()))
    return total


def _softmax(scores: Floats) -> Floats:
    grown = np.exp(scores - scores.max())
    return np.asarray(grown / grown.sum(), dtype=np.float64)


def _logistic_regression(rows: Floats, answers: Floats, offset: Floats) -> Floats:
    """The coefficient of each column, by Newton's method; `offset` is the fixed part of the log-odds."""
    found = np.zeros(rows.shape[1])
    for _ in range(MAX_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(rows @ found + offset, -30, 30)))
        curvature = (rows * (chances * (1 - chances))[:, None]).T @ rows + 1e-9 * np.eye(len(found))
        step = np.linalg.solve(curvature, rows.T @ (answers - chances))
        step = step / max(1.0, float(np.abs(step).max()))
        found = found + step
        if np.abs(step).max() < CONVERGED:
            break
    return np.asarray(found, dtype=np.float64)
