"""Measures of a ranking against values worked out by hand."""

import pytest

from aftermind.evaluation import measures

RANKED = list("abcdefghij")


def test_recall_is_the_share_of_the_evidence_among_the_first() -> None:
    found = measures.measure(RANKED, {"b", "f", "z"})

    assert found["recall@5"] == pytest.approx(1 / 3)
    assert found["recall@10"] == pytest.approx(2 / 3)


def test_evidence_that_does_not_exist_still_counts_as_named() -> None:
    assert measures.measure(RANKED, {"a"}, named=2)["recall@5"] == 0.5


def test_all_evidence_has_to_be_among_the_first_five() -> None:
    assert measures.measure(RANKED, {"a", "e"})["recall_all@5"] == 1
    assert measures.measure(RANKED, {"a", "f"})["recall_all@5"] == 0


def test_the_reciprocal_rank_is_that_of_the_first_right_one() -> None:
    assert measures.measure(RANKED, {"d", "b"})["mrr"] == 0.5
    assert measures.measure(RANKED, {"z"})["mrr"] == 0


def test_the_gain_falls_with_the_logarithm_of_the_rank() -> None:
    assert measures.measure(RANKED, {"a", "b"})["ndcg@10"] == pytest.approx(1.0)
    assert measures.measure(RANKED, {"c"})["ndcg@10"] == pytest.approx(0.5)  # 1 / log2(4)


def test_sessions_are_found_by_any_of_their_turns() -> None:
    sessions = {turn: "early" if turn < "f" else "late" for turn in RANKED}

    assert measures.measure(RANKED, {"c", "g"}, sessions=sessions)["session_recall@5"] == 0.5


def test_means_are_over_questions() -> None:
    both = measures.mean([measures.measure(RANKED, {"a"}), measures.measure(RANKED, {"z"})])

    assert both["recall@5"] == 0.5
    assert measures.mean([]) == {}
