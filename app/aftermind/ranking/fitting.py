"""Fit the models of the ranking to questions with labelled evidence."""

from collections.abc import Sequence

import numpy as np

from aftermind.ranking.fitted_coefficients import Models
from aftermind.ranking.score_probability import Floats, Group, fit
from aftermind.ranking.turn_features import FEATURES, FEW

# The features of each model of `Models`.
USES = {
    "both": tuple(name for name in FEATURES if name != "few_similarity"),  # with words in common it adds nothing
    "words": tuple(
        name for name in FEATURES if not name.startswith(("vector", "sentence")) and name != "few_similarity"
    ),
    "meaning": ("vector", "vector_window", "sentence", "sentence_window", "asking", "length", "few", "few_similarity"),
    "vector": ("vector", "few", "few_similarity"),
}


def fit_models(
    groups: Sequence[Group],
    *,
    without_answer: Sequence[Floats] = (),
    parts: Sequence[Group] = (),
    former: Models | None = None,
) -> Models:
    """All models of these questions; the other arguments are as in `logistic.fit`."""
    models = {}
    for use, names in USES.items():
        used = np.array([name in names for name in FEATURES])
        model = None if former is None else getattr(former, use)
        models[use] = fit(groups, used, few=FEW, without_answer=without_answer, parts=parts, former=model)
    return Models(**models)
