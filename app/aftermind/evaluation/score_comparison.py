"""The figures of an evaluation: means by category, and the difference of two variants with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermind.evaluation.measures import IN_BLOCK, Measures, mean
from aftermind.evaluation.run import Outcome

ALL = "all"
RESAMPLES = 2_000  # the bounds of the interval move by less than 0.002 from seed to seed
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more the second variant has than the first, and the interval that has it with `CONFIDENCE`."""

    mean: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means of each variant by category, with `ALL` first; `differences` of the first two, if there are two.

    `missed` are the questions whose evidence is not all in the largest block of the first variant, `not_stored` those
    that were left out because none of their evidence is stored. `outcomes` are those of all questions.
    """

    counts: Mapping[str, int]
    means: Sequence[Mapping[str, Measures]]
    differences: Mapping[str, Difference]
    outcomes: Sequence[Outcome]
    missed: Sequence[Outcome]
    not_stored: Sequence[Outcome]

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """The figures as JSON."""
        return {
            "questions": dict(self.counts),
            "missed": [_named(each) for each in self.missed],
            "not_stored": [_named(each) for each in self.not_stored],
            "outcomes": [
                _question(each) | {"variants": [dict(one) for one in each.measures]}
                for each in self.outcomes
                if each.measures
            ],
            "variants": [dict(each) for each in self.means],
            "differences": {
                name: {"mean": each.mean, "low": each.low, "high": each.high} for name, each in self.differences.items()
            },
        }


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """The means over the questions whose evidence is stored."""
    asked = [(each.question.category, each.measures) for each in outcomes if each.measures is not None]
    categories = sorted({category for category, _ in asked if category})
    groups = {ALL: [found for _, found in asked]}
    groups |= {name: [found for category, found in asked if category == name] for name in categories}
    variants = len(asked[0][1]) if asked else 0
    means = [
        {name: mean([each[place] for each in found]) for name, found in groups.items()} for place in range(variants)
    ]
    pairs = [found for _, found in asked if len(found) > 1]
    names = pairs[0][0] if pairs else ()
    return Summary(
        counts={name: len(found) for name, found in groups.items()},
        means=means,
        differences={name: compare([(one[name], two[name]) for one, two, *_ in pairs]) for name in names},
        outcomes=outcomes,
        missed=[each for each in outcomes if each.measures and _share_in_largest_block(each.measures[0]) < 1],
        not_stored=[each for each in outcomes if each.measures is None],
    )


def _named(outcome: Outcome) -> dict[str, Any]:  # Any: JSON
    return _question(outcome) | ({"measures": dict(outcome.measures[0])} if outcome.measures else {})


def _question(outcome: Outcome) -> dict[str, Any]:  # Any: JSON
    return {"question": outcome.question.text, "user_id": outcome.user_id, "category": outcome.question.category}


def _share_in_largest_block(found: Measures) -> float:
    budgets = [int(name.removeprefix(IN_BLOCK)) for name in found if name.startswith(IN_BLOCK)]
    return found[f"{IN_BLOCK}{max(budgets)}"] if budgets else 1.0


def compare(pairs: Sequence[tuple[float, float]], *, seed: int = 0) -> Difference:
    """The mean of second minus first, with the percentile interval of a paired bootstrap over the questions.

    Efron and Tibshirani, "An Introduction to the Bootstrap", ch. 13.
    """
    rows = np.array(pairs, dtype=np.float64)
    differences = rows[:, 1] - rows[:, 0]
    means = _resampled_means(differences, np.random.default_rng(seed))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Difference(mean=float(differences.mean()), low=float(low), high=float(high))


def _resampled_means(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)])
