"""A logistic model: the probability that a turn answers, from its features; and how its coefficients are fitted.

Fitted in two steps. The conditional logit (McFadden, 1974) compares the turns of each question with each other, which
is what ranking needs; a logistic regression with one slope and an intercept then turns scores into probabilities
(Platt, 1999). In the product the model is a dot product and a sigmoid.
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


def fit(groups: Sequence[Group], used: NDArray[np.bool_], *, without_answer: Sequence[Floats] = ()) -> Model:
    """The model of these questions, with the features `used`; the others have the coefficient 0.

    `without_answer` are features of questions that no turn answers: they lower the probabilities, not the order.
    """
    ranked = _conditional_logit([(features[:, used], answers) for features, answers in groups])
    scores = [(features[:, used] @ ranked, answers) for features, answers in groups]
    scores += [(features[:, used] @ ranked, np.zeros(len(features))) for features in without_answer]
    slope, intercept = _platt(*map(np.concatenate, zip(*scores, strict=True)))
    coefficients = np.zeros(len(used))
    coefficients[used] = ranked * slope
    return Model(coefficients, intercept)


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


def _platt(scores: Floats, answers: Floats) -> tuple[float, float]:
    rows = np.stack([scores, np.ones(len(scores))], axis=1)
    found = np.array([1.0, np.log(answers.mean() / (1 - answers.mean())) - scores.mean()])
    for _ in range(MAX_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(rows @ found, -30, 30)))
        curvature = (rows * (chances * (1 - chances))[:, None]).T @ rows + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, rows.T @ (answers - chances))
        step = step / max(1.0, float(np.abs(step).max()))
        found = found + step
        if np.abs(step).max() < CONVERGED:
            break
    return float(found[0]), float(found[1])
