"""BM25, scaling, rank fusion, diversity, vectors."""

import numpy as np

from aftermind.ranking import cosine, diversified, overlap, ranks, reciprocal_rank, scaled, unit
from aftermind.ranking.bm25 import bm25, idf, length_weight


def test_a_rare_term_tells_more_than_a_frequent_one_and_none_is_negative() -> None:
    values = idf(100, [1, 50, 100, 0])

    assert values[0] > values[1] > values[2] >= 0
    assert values[3] == 0


def test_a_frequency_above_the_count_is_taken_for_the_count() -> None:
    assert np.isfinite(idf(10, [20])).all()


def test_the_average_length_weighs_one_and_longer_less() -> None:
    weights = length_weight([5, 10, 100], 10.0)

    assert weights[1] == 1.0
    assert weights[0] > 1.0 > weights[2] > 0


def test_the_text_with_more_of_the_question_scores_higher() -> None:
    hits = np.array([[True, True], [True, False], [False, False]])

    found = bm25(hits, [10, 10, 10], idf(3, [2, 1]))

    assert found[0] > found[1] > found[2] == 0


def test_scores_are_scaled_by_the_best_and_never_negative() -> None:
    assert scaled(np.array([2.0, 1.0, -3.0])).tolist() == [1.0, 0.5, 0.0]
    assert scaled(np.array([-1.0, 0.0])).tolist() == [0.0, 0.0]
    assert scaled(np.array([])).tolist() == []


def test_ranks_count_from_one() -> None:
    assert ranks(np.array([0.1, 0.9, 0.5])).tolist() == [3, 1, 2]


def test_rank_fusion_prefers_what_both_lists_have() -> None:
    fused = reciprocal_rank([np.array([3.0, 2.0, 0.0]), np.array([0.0, 2.0, 3.0])])

    assert fused[1] > max(fused[0], fused[2])


def test_diversity_takes_the_unlike_second() -> None:
    alike = np.array([[1.0, 0.95, 0.1], [0.95, 1.0, 0.1], [0.1, 0.1, 1.0]])
    scores = np.array([1.0, 0.9, 0.6])

    assert diversified(scores, alike, amount=0.0, count=3).tolist() == [0, 1, 2]
    assert diversified(scores, alike, amount=0.5, count=2).tolist() == [0, 2]


def test_overlap_of_texts_without_words_is_nothing() -> None:
    alike = overlap([frozenset(), frozenset(), frozenset({"a"}), frozenset({"a", "b"})])

    assert alike[0, 1] == 0
    assert alike[2, 3] == 0.5


def test_a_vector_without_direction_is_like_nothing() -> None:
    assert cosine(np.zeros((1, 3), dtype=np.float32), np.ones(3, dtype=np.float32)).tolist() == [0.0]
    assert unit(np.array([[np.nan, 1.0]], dtype=np.float32)).tolist() == [[0.0, 1.0]]
