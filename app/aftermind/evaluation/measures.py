"""Retrieval quality of one question and means over many: recall@k, MRR, NDCG.

Relevance is binary. Definitions follow Manning, Raghavan and Schütze, "Introduction to Information Retrieval", ch. 8.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from math import log2
from typing import TypeVar

DEPTHS = (5, 10, 20)
RANK_DEPTH = 20  # beyond it the reciprocal rank counts as 0
GAIN_DEPTH = 10
SESSION_DEPTH = 5
IN_BLOCK = "in_block@"  # prefix of the measure of a block, before its number of tokens

Measures = dict[str, float]
Item = TypeVar("Item", bound=Hashable)


def measure(
    ranked: Sequence[Item],
    evidence: Collection[Item],
    *,
    named: int | None = None,
    sessions: Mapping[Item, Hashable] | None = None,
) -> Measures:
    """All measures of one ranking, the best first. Without evidence every measure is 0.

    `named` is the number of evidence turns that the question names, where some of them do not exist; it defaults to the
    size of `evidence`. `sessions` gives the session of each turn, for `session_recall@5`.
    """
    whole = len(evidence) if named is None else named
    wanted = set(evidence)
    found = {f"recall@{depth}": share_found(ranked[:depth], wanted, named=whole) for depth in DEPTHS}
    found["recall_all@5"] = float(bool(wanted) and wanted <= set(ranked[:SESSION_DEPTH]))
    found["mrr"] = next((1 / place for place, each in enumerate(ranked[:RANK_DEPTH], 1) if each in wanted), 0.0)
    found[f"ndcg@{GAIN_DEPTH}"] = _ndcg(ranked[:GAIN_DEPTH], wanted)
    if sessions is not None:
        right = {sessions[each] for each in wanted}
        first = {sessions[each] for each in ranked[:SESSION_DEPTH] if each in sessions}
        found[f"session_recall@{SESSION_DEPTH}"] = share_found(first, right)
    return found


def share_found(found: Collection[Hashable], evidence: Collection[Hashable], *, named: int | None = None) -> float:
    """The share of the evidence that was found."""
    whole = len(set(evidence)) if named is None else named
    return len(set(evidence) & set(found)) / whole if whole else 0.0


def mean(each: Sequence[Measures]) -> Measures:
    """The mean of each measure over the questions."""
    if not each:
        return {}
    return {name: sum(found[name] for found in each) / len(each) for name in each[0]}


def _ndcg(ranked: Sequence[Hashable], wanted: Collection[Hashable]) -> float:
    ideal = sum(1 / log2(place + 1) for place in range(1, min(len(wanted), GAIN_DEPTH) + 1))
    gained = sum(1 / log2(place + 1) for place, each in enumerate(ranked, 1) if each in wanted)
    return gained / ideal if ideal else 0.0
