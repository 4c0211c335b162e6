"""Fit the models of the ranking to questions with labelled evidence."""

from collections.abc import Sequence

import numpy as np

from aftermind.ranking.fitted_coefficients import Models
from aftermind.ranking.logistic import Floats, Group, Model, fit
from aftermind.ranking.windows import FEATURES

# The features of each model of `Models`.
USES = {
    "both": FEATURES,
    "words": tuple(name for name in FEATURES if not name.startswith("vector")),
    "meaning": ("vector", "vector_window", "asking", "length"),
    "vector": ("vector",),
}


def fit_models(groups: Sequence[Group], *, without_answer: Sequence[Floats] = ()) -> Models:
    """All models of these questions. `without_answer` are features of questions that no turn answers."""
    return Models(**{use: fit_model(groups, use, without_answer=without_answer) for use in USES})


def fit_model(groups: Sequence[Group], use: str, *, without_answer: Sequence[Floats] = ()) -> Model:
    """One model of these questions."""
    used = np.array([name in USES[use] for name in FEATURES])
    return fit(groups, used, without_answer=without_answer)
