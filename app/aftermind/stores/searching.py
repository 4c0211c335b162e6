"""The seam of recall: what a backend finds for a question, as turns that `ranking` can score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermind.db.base import Transaction
from aftermind.ranking import Entry, Frame, Frequencies, Question, cosine, ends_asking, terms
from aftermind.stores.base import EpisodeFilter
from aftermind.types import Episode, EpisodeId, Scope, Watermark

Vector = NDArray[np.float32]

HITS = 50  # of each kind; 30 finds as much on 2,760 turns, and 100 no more
CONTEXT = 4  # places on either side that come along: two of a hit's window, two of its neighbours' windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for. Without `vector` words alone, without terms in the question meaning alone.

    `wanted` says which episodes may be answers (their neighbours are read all the same), `known_at` hides what was
    remembered later. `tails` are sessions whose last turns come along, for pending turns to stand behind. `exact_rows`
    is the size of an owner up to which every vector is compared, before an index of neighbours is trusted.
    """

    question: Question
    vector: Vector | None = None
    wanted: EpisodeFilter = EpisodeFilter()  # noqa: RUF009
    known_at: datetime | None = None
    hits: int = HITS
    tails: Sequence[str | None] = ()
    exact_rows: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Turns around the best hits, in `frame`, with their ids in the same order.

    `frequencies` count over all of the owner's episodes. `similar` has the ids nearest by vector, nearest first.
    """

    ids: Sequence[EpisodeId]
    frame: Frame
    frequencies: Frequencies
    similar: Sequence[EpisodeId] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A database node as it says itself: whether it replays another's log, how far, and how late (seconds)."""

    replica: bool
    replayed: Watermark | None = None
    lag_seconds: float = 0.0


class EpisodeSearch(Protocol):
    """What a backend does for recall. All raise `StoreUnavailable`."""

    async def node_state(self, tx: Transaction) -> NodeState:
        """How far the node is that this connection leads to; a store inside this process is no replica."""

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> Found:
        """The owner's turns that may answer, and what stands around them. One round trip."""


def found_among(
    episodes: Sequence[Episode], vectors: Mapping[EpisodeId, Vector], search: Search, *, language: str = "english"
) -> Found:
    """What a store inside this process finds: it has everything at hand, so every episode is scored exactly."""
    known = [episode for episode in episodes if search.known_at is None or episode.remembered_at <= search.known_at]
    similarity = _similarities(known, vectors, search.vector)
    entries = [entry_of(episode, similarity.get(episode.id), search.wanted, language=language) for episode in known]
    nearest = sorted(similarity, key=lambda id_: -similarity[id_])[: search.hits]
    return Found(
        ids=[episode.id for episode in known],
        frame=Frame.of(entries, search.question.terms),
        frequencies=Frequencies.of(search.question.terms, entries),
        similar=nearest,
    )


def entry_of(
    episode: Episode,
    similarity: float | None = None,
    wanted: EpisodeFilter | None = None,
    *,
    language: str = "english",
) -> Entry:
    """An episode at hand as a turn to score, its terms as text."""
    return Entry(
        session=episode.scope.session_id,
        position=episode.position,
        terms=frozenset(terms(episode.content, language)),
        similarity=similarity,
        name=episode.name,
        asking=ends_asking(episode.content),
        candidate=wanted is None or wanted.fits(episode),
    )


def _similarities(
    episodes: Sequence[Episode], vectors: Mapping[EpisodeId, Vector], vector: Vector | None
) -> dict[EpisodeId, float]:
    ids = [episode.id for episode in episodes if episode.id in vectors]
    if vector is None or not ids:
        return {}
    found = cosine(np.stack([vectors[id_] for id_ in ids]), vector)
    return dict(zip(ids, map(float, found), strict=True))
