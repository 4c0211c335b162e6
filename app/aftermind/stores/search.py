"""The seam of recall: what a backend finds for a question, as turns that `ranking` can score."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermind.db.database_protocol import Transaction
from aftermind.ranking import (
    ComparedPassages,
    Entry,
    Frame,
    Frequencies,
    Models,
    Question,
    ends_asking,
    idf,
    terms,
    with_best_passages,
)
from aftermind.ranking.passages import compare
from aftermind.stores.protocol import EpisodeFilter
from aftermind.types import (
    Block,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    Passage,
    Profile,
    Scope,
    StoredEmbedders,
    Summary,
    Watermark,
)

Vector = NDArray[np.float32]

HITS = 30  # of each kind
SENTENCES_OF = 300  # turns, the nearest by vector, whose sentences are compared
CONTEXT = 4  # places on either side that come along: two of a hit's window, two of its neighbours' windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search request. Without `vector` only words count, without terms in the query only vectors.

    `embedder` made the vector: it is compared only with stored vectors of the same one, and with those of the sentences
    of the nearest turns if `sentences` is set. `wanted` selects episodes that
    may match (their neighbours are read anyway), `known_at` hides those remembered later. `tails` are sessions whose
    last turns are included, as neighbours of pending turns. `exact_rows` is the number of an owner's episodes up to
    which every vector is compared, instead of the vector index. `facts` False leaves facts out; with `past` those that
    are true no more count as well. `near` are candidates
    of an index outside the store, which replace its own vector search: ids that the owner does not have are ignored.
    `along` are further parts for a block in addition to the matches: a backend may read them in the same round trip.
    `unstored` is the maximum number of turns to include that the ledger accepted and no store job has committed.
    """

    question: Question
    vector: Vector | None = None
    embedder: EmbedderIdentity | None = None
    sentences: bool = False
    wanted: EpisodeFilter = EpisodeFilter()  # noqa: RUF009
    known_at: datetime | None = None
    hits: int = HITS
    tails: Sequence[str | None] = ()
    exact_rows: int = 8_000
    facts: bool = True
    past: bool = False
    near: Sequence[EpisodeId] | None = None
    along: "BlockRequest | None" = None
    unstored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FactHit:
    """A fact that shares words with the query: its matching terms, by index, and its source turns.

    `having` is the number of facts with each of these terms. `subject` is its subject's name, `names_user` whether it
    states the name of the user.
    """

    id: FactId
    places: Sequence[int]
    having: Sequence[int]
    confidence: float = 1.0
    subject: str = ""
    names_user: bool = False
    sources: Sequence[EpisodeId] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Turns around the best hits, in `frame`, with their ids in the same order.

    `frequencies` count over all of the owner's episodes. `passages` are the best ones of long messages, whose rows in
    the frame are about these alone. `facts` are those that share words with the question, the
    rarest first. `embedders` made the stored vectors; None for a store that has a single one for its life. `models` are
    those that the namespace has fitted to its questions, if any. `held` is
    what the backend keeps of it for its own `brief`. `unstored` are payloads of turns that the
    ledger has accepted, the newest first, as of the same moment: each turn is among them or among the episodes.
    """

    ids: Sequence[EpisodeId]
    frame: Frame
    frequencies: Frequencies
    passages: Mapping[EpisodeId, Passage] = field(default_factory=dict)
    facts: Sequence[FactHit] = ()
    embedders: StoredEmbedders | None = None
    models: Models | None = None
    held: object = None
    unstored: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """State of a database node: whether it is a replica, its position, and its lag in seconds."""

    replica: bool
    replayed: Watermark | None = None
    lag_seconds: float = 0.0

    def has_passed(self, marks: Iterable[Watermark]) -> bool:
        """Whether the node has replayed all of them: of the same system, on their timeline or a later one."""
        place = self.replayed
        return place is not None and all(
            place.system == mark.system and place.timeline >= mark.timeline and place.lsn >= mark.lsn for mark in marks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """What a block is made of: episodes by id, and of `load` what else is remembered of the owner.

    Facts are those of `facts`, those that came from the episodes, and the `NEWEST_FACTS`, as far as they are believed;
    with `then` also the newest that were true at that time, with `past` the newest that are true no more. `session_id`
    is the one that asks: its summary, or the latest of another one where it has none yet. `at` asks for what was
    believed, and true, then.
    """

    ids: Sequence[EpisodeId] = ()
    facts: Sequence[FactId] = ()
    load: frozenset[str] = frozenset()
    session_id: str | None = None
    at: datetime | None = None
    then: datetime | None = None
    past: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The episodes that exist, in the order asked for, and the rest as wanted. Facts are the newest beliefs first.

    `former` are facts that are believed, and are true no more: those from these episodes, those true at `then`, and the
    newest of all with `past`.
    """

    episodes: Sequence[Episode] = ()
    facts: Sequence[Fact] = ()
    former: Sequence[Fact] = ()
    blocks: Sequence[Block] = ()
    summary: Summary | None = None
    profile: Profile | None = None


class EpisodeSearch(Protocol):
    """What a backend does for recall. All raise `StoreUnavailable`."""

    async def node_state(self, tx: Transaction, *, passed: Sequence[Watermark] | None = None) -> NodeState:
        """State of the node of this connection; a store in this process is never a replica.

        With `passed`, a state that this connection returned recently is sufficient if it had replayed these watermarks.
        """

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> SearchResult:
        """The owner's matching turns and their neighbours. One round trip."""

    async def brief(
        self, tx: Transaction, owner: Scope, wanted: BlockRequest, *, found: SearchResult | None = None
    ) -> Briefing:
        """What is shown: episodes by id, facts, blocks, summary, profile. One round trip at most.

        `found` is what the search before it found, and may hold it all.
        """


NEWEST_FACTS = 20  # always included: a block may have space for them


def worth_showing(facts: Sequence[Fact], wanted: BlockRequest) -> list[Fact]:
    """Of all facts that are believed, the newest first, those that a block may show."""
    near, shown = frozenset(wanted.facts), frozenset(wanted.ids)
    return [
        fact
        for place, fact in enumerate(facts)
        if place < NEWEST_FACTS or fact.id in near or not shown.isdisjoint(fact.sources)
    ]


def former_of(former: Sequence[Fact], wanted: BlockRequest) -> list[Fact]:
    """Of facts that are true no more, those from the episodes of a block, and the newest of `then` or of the `past`."""
    shown = frozenset(wanted.ids)
    true_then = [fact for fact in former if wanted.then is not None and fact.is_valid_at(wanted.then)]
    past = former[:NEWEST_FACTS] if wanted.past else ()
    near = {*wanted.facts, *(fact.id for fact in (*true_then[:NEWEST_FACTS], *past))}
    return [fact for fact in former if fact.id in near or not shown.isdisjoint(fact.sources)]


def compare_passages(
    episodes: Sequence[Episode],
    question: Question,
    vectors: Mapping[EpisodeId, Vector],
    vector: Vector | None,
    *,
    indexed: Mapping[EpisodeId, Sequence[Sequence[str]]] | None = None,
) -> dict[EpisodeId, ComparedPassages]:
    """The passages of the long ones among episodes at hand, compared with the question.

    `indexed` are the terms of passages if the caller has them.
    """
    found = {}
    for episode in episodes:
        each = compare(
            episode.content,
            question.terms,
            language=question.language,
            vectors=vectors.get(episode.id),
            vector=vector,
            indexed=None if indexed is None else indexed.get(episode.id),
        )
        if each is not None:
            found[episode.id] = each
    return found


def with_passages(
    ids: Sequence[EpisodeId], frame: Frame, compared: Mapping[EpisodeId, ComparedPassages], frequencies: Frequencies
) -> tuple[Frame, dict[EpisodeId, Passage]]:
    """The frame with long messages scored as their best passages, and these."""
    if not compared:
        return frame, {}
    rows = {row: compared[id_] for row, id_ in enumerate(ids) if id_ in compared}
    worths = idf(frequencies.episodes, np.maximum(np.asarray(frequencies.having), 1))
    frame, best = with_best_passages(frame, rows, worths)
    return frame, {ids[row]: passage for row, passage in best.items()}


def to_entry(episode: Episode, *, language: str) -> Entry:
    """An episode at hand as a turn to score, its terms as text."""
    return Entry(
        session=episode.scope.session_id,
        position=episode.position,
        terms=frozenset(map(intern, terms(episode.content, language))),
        name=episode.name,
        asking=ends_asking(episode.content),
        said_at=episode.occurred_at.timestamp(),
    )
