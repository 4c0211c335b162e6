"""The seam of recall: what a backend finds for a question, as turns that `ranking` can score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermind.db.base import Transaction
from aftermind.ranking import Entry, Frame, Frequencies, Question, cosine, ends_asking, terms
from aftermind.stores.base import EpisodeFilter, Store
from aftermind.types import Block, Episode, EpisodeId, Fact, Profile, Scope, Summary, Watermark

Vector = NDArray[np.float32]

HITS = 30  # of each kind; 50 and 100 find no more among 2,760 turns
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a block is made of: episodes by id, and of `load` what else is remembered of the owner.

    `session_id` is the one that asks: its summary, or the latest of another one where it has none yet. `at` asks for
    what was believed, and true, then.
    """

    ids: Sequence[EpisodeId] = ()
    load: frozenset[str] = frozenset()
    session_id: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The episodes that exist, in the order asked for, and the rest as wanted. Facts are the newest beliefs first."""

    episodes: Sequence[Episode] = ()
    facts: Sequence[Fact] = ()
    blocks: Sequence[Block] = ()
    summary: Summary | None = None
    profile: Profile | None = None


class EpisodeSearch(Protocol):
    """What a backend does for recall. All raise `StoreUnavailable`."""

    async def node_state(self, tx: Transaction) -> NodeState:
        """How far the node is that this connection leads to; a store inside this process is no replica."""

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> Found:
        """The owner's turns that may answer, and what stands around them. One round trip."""

    async def brief(self, tx: Transaction, owner: Scope, wanted: Wanted) -> Briefing:
        """What is shown: episodes by id, facts, blocks, summary, profile. One round trip."""


MOST_SUMMARIES = 1_000
MOST_FACTS = 200  # newest beliefs that a recall looks at; each is scored by its words, in 15 us


async def briefed(store: Store, tx: Transaction, owner: Scope, wanted: Wanted) -> Briefing:
    """A briefing out of a store's own methods, for one inside this process: one statement would gain nothing."""
    at, load = wanted.at, wanted.load
    facts = await store.facts(tx, owner, as_of=at, known_at=at, limit=MOST_FACTS) if "facts" in load else []
    blocks = await store.blocks(tx, owner) if "blocks" in load else []
    summaries = await store.summaries(tx, owner, limit=MOST_SUMMARIES) if "summary" in load else []
    told = [each for each in summaries if at is None or each.updated_at <= at]
    profile = await store.profile(tx, owner) if "profile" in load else None
    return Briefing(
        episodes=await store.episodes(tx, owner, wanted.ids) if wanted.ids else [],
        facts=facts,
        blocks=[block for block in blocks if at is None or block.updated_at <= at],
        summary=next((each for each in told if each.scope.session_id == wanted.session_id), told[0] if told else None),
        profile=None if profile is None or at is not None else profile,
    )


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
