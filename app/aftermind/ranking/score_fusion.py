"""Several scores of one list brought together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NOISE = 1e-9  # of half-precision vectors without similarity; scaled up it would appear as a match


def scaled(scores: Floats) -> Floats:
    """The scores of each row by their greatest, so that the best is 1; negative ones are 0, and all where none is
    above noise."""
    top = scores.max(axis=-1, initial=0.0, keepdims=True)
    return np.maximum(scores / np.where(top > NOISE, top, np.inf), 0.0)


def ranks(scores: Floats) -> NDArray[np.int64]:
    """The place of each score from 1, the greatest first; equal ones in their own order."""
    places = np.empty(len(scores), dtype=np.int64)
    places[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return places


def reciprocal_rank(lists: Sequence[Floats], *, k: int = 60) -> Floats:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009), for comparison.

    It forgets how far apart scores are. A score of 0 is not in its list.
    """
    total = np.zeros_like(lists[0])
    for scores in lists:
        total += np.where(scores > 0, 1.0 / (k + ranks(scores)), 0.0)
    return total
