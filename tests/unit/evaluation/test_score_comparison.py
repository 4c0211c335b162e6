"""Means by category, and the interval of a difference."""

import pytest

from aftermind.evaluation.datasets import GoldQuestion
from aftermind.evaluation.run import Outcome
from aftermind.evaluation.score_comparison import ALL, compare, summarise


def _outcome(category: str, *values: float | None) -> Outcome:
    measures = None if None in values else tuple({"mrr": float(value or 0)} for value in values)
    return Outcome(question=GoldQuestion(text="?", evidence=("x",), category=category), user_id="u", measures=measures)


def test_means_are_by_category_and_over_all() -> None:
    found = summarise([_outcome("a", 1.0), _outcome("a", 0.5), _outcome("b", 0.0), _outcome("b", None)])

    assert found.counts == {ALL: 3, "a": 2, "b": 1}
    assert found.means == [{ALL: {"mrr": 0.5}, "a": {"mrr": 0.75}, "b": {"mrr": 0.0}}]
    assert [each.question.category for each in found.not_stored] == ["b"]
    assert found.differences == {}


def test_the_difference_of_two_variants_is_paired_by_question() -> None:
    found = summarise([_outcome("", 0.1 * place, 0.1 * place + 0.2) for place in range(8)])

    difference = found.differences["mrr"]
    assert difference.mean == pytest.approx(0.2)
    assert (difference.low, difference.high) == (pytest.approx(0.2), pytest.approx(0.2))
    assert difference.is_certain


def test_an_interval_covers_the_spread_of_the_mean() -> None:
    spread = compare([(0.0, value) for value in (-0.5, 0.5) * 50])

    assert spread.mean == pytest.approx(0.0)
    assert spread.low == pytest.approx(-0.1, abs=0.02)  # 1.96 standard errors of 0.05
    assert spread.high == pytest.approx(0.1, abs=0.02)
    assert not spread.is_certain


def test_without_stored_evidence_there_are_no_figures() -> None:
    found = summarise([_outcome("a", None)])

    assert found.means == []
    assert [each["user_id"] for each in found.to_json()["not_stored"]] == ["u"]
