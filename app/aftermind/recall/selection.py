"""From scores to matches: ranked, over the bar, diverse where that is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import Frame, Scores, diversified, idf, overlap, ranks, terms
from aftermind.ranking import Question as Asked
from aftermind.types import Episode, EpisodeId, Fact, Match


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one candidate came out."""

    id: EpisodeId
    score: float
    lexical: float
    vector: float
    lexical_rank: int | None
    vector_rank: int | None
    detail: Mapping[str, float]


def places(
    ids: Sequence[EpisodeId], frame: Frame, scores: Scores, *, min_score: float, most: int
) -> tuple[list[Place], int]:
    """The best candidates, of equals the newest, and how many score at all and not below `min_score`."""
    enough = frame.candidate & (scores.total > 0) & (scores.total >= min_score)
    order = np.lexsort((-frame.position, -scores.total))
    order = order[enough[order]]
    lexical_ranks, vector_ranks = ranks(scores.lexical), ranks(scores.vector)
    found = [
        _place(ids[row], row, float(scores.total[row]), scores, lexical_ranks, vector_ranks)
        for row in order[:most].tolist()
    ]
    return found, len(order)


def _place(
    id_: EpisodeId,
    row: int,
    score: float,
    scores: Scores,
    lexical_ranks: NDArray[np.int64],
    vector_ranks: NDArray[np.int64],
) -> Place:
    lexical, vector = float(scores.lexical[row]), float(scores.vector[row])
    return Place(
        id=id_,
        score=score,
        lexical=lexical,
        vector=vector,
        lexical_rank=int(lexical_ranks[row]) if lexical > 0 else None,
        vector_rank=int(vector_ranks[row]) if vector > 0 else None,
        detail={
            "lexical_window": float(scores.lexical_window[row]),
            "vector_window": float(scores.vector_window[row]),
        },
    )


def matched(place: Place, episode: Episode, rank: int, rerank_score: float | None = None) -> Match:
    """A place with its episode, as it is shown."""
    return Match(
        item=episode,
        score=place.score,
        lexical_score=place.lexical,
        vector_score=place.vector,
        rerank_score=rerank_score,
        rank=rank,
        lexical_rank=place.lexical_rank,
        vector_rank=place.vector_rank,
        detail=place.detail,
    )


def of_facts(facts: Sequence[Fact], question: Asked, *, min_score: float) -> list[Match]:
    """Facts by the words that they share with the question, the rare ones counting most; newest first among equals.

    A fact that shares none is worth little but not nothing: it is what is known, and a block may have room.
    """
    sets = [frozenset(terms(fact.text, question.language)) for fact in facts]
    having = [sum(term in words for words in sets) for term in question.terms]
    weights = idf(len(facts), having)
    raw = np.array([sum(w for term, w in zip(question.terms, weights, strict=True) if term in words) for words in sets])
    # Of the question's own weight, not of the best fact's: the best of many that fit badly is no answer.
    whole = float(np.sum(weights))
    shares = raw / whole if whole > 0 else raw
    found = []
    for fact, share in zip(facts, shares, strict=True):
        score = float((0.1 + 0.8 * share) * (0.5 + 0.5 * fact.confidence))
        if score >= min_score:
            found.append(Match(item=fact, score=score, lexical_score=float(share)))
    return sorted(found, key=lambda match: -match.score)


def spread(matches: Sequence[Match], *, amount: float, limit: int) -> list[Match]:
    """The matches, each next one good and unlike those before it."""
    texts = [match.item.content if isinstance(match.item, Episode) else "" for match in matches]
    words = [frozenset(terms(text)) for text in texts]
    chosen = diversified(np.array([m.score for m in matches]), overlap(words), amount=amount, count=limit)
    return [replace(matches[index], rank=rank) for rank, index in enumerate(chosen, start=1)]
