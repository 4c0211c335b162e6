"""From scores to matches: ranked, over the bar, diverse where that is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import Frame, Scores, diversified, fact_value, lifted, overlap, ranks, sureness, terms
from aftermind.stores.search import FactHit
from aftermind.types import Episode, EpisodeId, Fact, FactId, Match, Passage

COMPARED_CHARACTERS = 1_000  # of a text, where the unlikeness of matches is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRank:
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
) -> tuple[list[CandidateRank], int]:
    """The best candidates, of equals the newest, and how many score at all and not below `min_score`."""
    enough = frame.candidate & (scores.total > 0) & (scores.total >= min_score)
    order = np.lexsort((-frame.position, -scores.total))
    order = order[enough[order]]
    best = order[:most]
    columns = (scores.total, scores.lexical, scores.vector, scores.lexical_window, scores.vector_window)
    placed = (ranks(scores.lexical), ranks(scores.vector))
    rows = zip(best.tolist(), *(column[best].tolist() for column in (*columns, *placed)), strict=True)
    found = [
        CandidateRank(
            id=ids[row],
            score=total,
            lexical=lexical,
            vector=vector,
            lexical_rank=lexical_rank if lexical > 0 else None,
            vector_rank=vector_rank if vector > 0 else None,
            detail={"lexical_window": lexical_window, "vector_window": vector_window},
        )
        for row, total, lexical, vector, lexical_window, vector_window, lexical_rank, vector_rank in rows
    ]
    return found, len(order)


def matched(place: CandidateRank, episode: Episode, rank: int, passage: Passage | None = None) -> Match:
    """A place with its episode, as it is shown."""
    return Match(
        item=episode,
        score=place.score,
        lexical_score=place.lexical,
        vector_score=place.vector,
        rank=rank,
        lexical_rank=place.lexical_rank,
        vector_rank=place.vector_rank,
        detail=place.detail,
        passage=passage,
    )


def weighed(
    hits: Sequence[FactHit], ids: Sequence[EpisodeId], frame: Frame, scores: Scores, shares: NDArray[np.float64]
) -> Scores:
    """The scores of turns, with those lifted that a fact came from which fits the question."""
    if not hits:
        return scores
    rows = {id_: row for row, id_ in enumerate(ids)}
    sources = [[rows[each] for each in hit.sources if each in rows] for hit in hits]
    worth = shares * np.array([sureness(hit.confidence) for hit in hits])
    return lifted(scores, worth, sources, frame.candidate)


def select_facts(
    facts: Sequence[Fact], shares: Mapping[FactId, float], matches: Sequence[Match], *, min_score: float
) -> list[Match]:
    """Facts by the share of the query that they cover, or after their best source turn; ties keep their order.

    Other facts have a small value: a block may have space for them.
    """
    turns = {match.item.id: match.score for match in matches if isinstance(match.item, Episode)}
    found = []
    for fact in facts:
        share = shares.get(fact.id, 0.0)
        score = fact_value(share, fact.confidence, max((turns.get(each, 0.0) for each in fact.sources), default=0.0))
        if score >= min_score:
            found.append(Match(item=fact, score=score, lexical_score=share))
    return sorted(found, key=lambda match: -match.score)


def spread(matches: Sequence[Match], *, amount: float, limit: int) -> list[Match]:
    """The matches, each next one good and unlike those before it."""
    texts = [match.item.content[:COMPARED_CHARACTERS] if isinstance(match.item, Episode) else "" for match in matches]
    words = [frozenset(terms(text)) for text in texts]
    chosen = diversified(np.array([m.score for m in matches]), overlap(words), amount=amount, count=limit)
    return [replace(matches[index], rank=rank) for rank, index in enumerate(chosen, start=1)]
