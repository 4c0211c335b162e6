"""Not the same thing twice: maximal marginal relevance (Carbonell and Goldstein, 1998)."""

import numpy as np
from numpy.typing import NDArray


def diversified(
    scores: NDArray[np.float64], alike: NDArray[np.float64], *, amount: float, count: int
) -> NDArray[np.int64]:
    """The selection in order: each next item has a high score and is dissimilar to the selected ones.

    `alike` is the similarity of every pair, 0 to 1. `amount` 0 keeps the order of the scores, 1 uses dissimilarity
    only. Ties keep their order.
    """
    left = np.ones(len(scores), dtype=np.bool_)
    nearest = np.zeros(len(scores))
    taken: list[int] = []
    for _ in range(min(count, len(scores))):
        gain = np.where(left, (1 - amount) * scores - amount * nearest, -np.inf)
        best = int(np.argmax(gain))
        taken.append(best)
        left[best] = False
        nearest = np.maximum(nearest, alike[best])
    return np.asarray(taken, dtype=np.int64)


def overlap(terms: list[frozenset[str]]) -> NDArray[np.float64]:
    """How alike texts are by their words (Jaccard), each pair; two without words are not alike."""
    size = len(terms)
    alike = np.zeros((size, size))
    for row in range(size):
        for column in range(row):
            union = len(terms[row] | terms[column])
            alike[row, column] = alike[column, row] = len(terms[row] & terms[column]) / union if union else 0.0
    np.fill_diagonal(alike, 1.0)
    return alike
