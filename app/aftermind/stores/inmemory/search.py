"""Search over the episodes of one owner: their terms, vectors and places as arrays, kept between searches."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from sys import intern

import numpy as np
from numpy.typing import NDArray

from aftermind.facts.predicates import searched_text
from aftermind.ranking import Frame, Frequencies, Question, ends_asking, idf, terms
from aftermind.ranking.passages import passage_terms, split
from aftermind.ranking.vectors import Matrix, cosine, part_vectors, unit, whole
from aftermind.stores.protocol import EpisodeFilter, Vector
from aftermind.stores.search import (
    CONTEXT,
    SENTENCES_OF,
    FactHit,
    Search,
    SearchResult,
    compare_passages,
    with_passages,
)
from aftermind.types import Episode, EpisodeId, Fact, FactId
from aftermind.types.message import UNDONE

MOST_WHOLE = 1_000  # episodes of an owner that are all scored; of more, the windows around the best hits
STEP = 256  # rows that are compared at a time
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


class EpisodeColumns:
    """The episodes of an owner, a row each, in the order in which they came.

    A remember does not touch them: `refresh` takes what is new before a search, and begins again after a deletion.
    """

    def __init__(self, language: str) -> None:
        self._language = language
        self._facts: dict[FactId, frozenset[str]] = {}
        self.seen: object = None  # the state of the tables at the last refresh
        self._clear()

    def _clear(self) -> None:
        self._ids: list[EpisodeId] = []
        self._rows: dict[EpisodeId, int] = {}
        self._episodes: list[Episode] = []
        self._given: list[Vector | None] = []
        self._postings: dict[str, array[int]] = {}
        self._passages: dict[EpisodeId, Sequence[Sequence[str]]] = {}
        self._lengths: array[int] = array("q")
        self._sessions: dict[str | None, int] = {}
        self._session, self._position, self._said_at = array("q"), array("q"), array("d")
        self._asking, self._undone = bytearray(), bytearray()
        self._vectors: NDArray[np.float16] = np.empty((0, 0), dtype=np.float16)
        self._has_vector = bytearray()

    def __len__(self) -> int:
        return len(self._ids)

    def lacks(self, episodes: Mapping[EpisodeId, Episode]) -> int:
        """How many texts the next `refresh` has to read."""
        return len(episodes) - len(self._ids)

    def refresh(self, episodes: Mapping[EpisodeId, Episode], vectors: Mapping[EpisodeId, Vector]) -> None:
        """Take over new rows; reading a text takes 40 µs for an ordinary one."""
        if not self._rows.keys() <= episodes.keys():
            self._clear()
        for row, id_ in enumerate(self._ids):
            if self._episodes[row] is not episodes[id_]:
                self._episodes[row] = episodes[id_]
                self._undone[row] = episodes[id_].mark == UNDONE
        for id_, episode in episodes.items():
            if id_ not in self._rows:
                self._add(episode)
        for row, id_ in enumerate(self._ids):
            vector = vectors.get(id_)
            if vector is not self._given[row]:
                self._set_vector(row, vector)

    def find(self, search: Search, facts: Sequence[Fact] = (), *, without: Iterable[EpisodeId] = ()) -> SearchResult:
        """The owner's turns around the best hits, of few all; those of `without` count as not stored."""
        question = search.question
        known = self._known(search.known_at)
        known[[self._rows[id_] for id_ in without if id_ in self._rows]] = False
        hits = self._hits(question.terms)
        hits[~known] = False
        frequencies = Frequencies(episodes=int(known.sum()), having=hits.sum(axis=0).tolist())
        candidate = known & self._candidates(search.wanted)
        vector = None if search.vector is None or not self._compares(search.vector) else unit(search.vector)
        rows = np.flatnonzero(known)
        if search.near is not None or len(rows) > MOST_WHOLE:
            rows = self._around(search, hits, frequencies, candidate, vector, known)
        ids = [self._ids[row] for row in rows.tolist()]
        frame = self._frame(rows, hits, candidate, vector)
        if search.sentences:
            frame = replace(frame, sentence_similarity=self._sentence_similarities(frame.similarity, rows, vector))
        long = [self._episodes[row] for row, id_ in zip(rows.tolist(), ids, strict=True) if id_ in self._passages]
        given = {each.id: found for each in long if (found := self._given[self._rows[each.id]]) is not None}
        compared = compare_passages(long, question, given, search.vector, indexed=self._passages)
        frame, passages = with_passages(ids, frame, compared, frequencies)
        return SearchResult(
            ids=ids,
            frame=frame,
            frequencies=frequencies,
            passages=passages,
            facts=self._fact_hits(facts, question) if search.facts else (),
        )

    def _add(self, episode: Episode) -> None:
        row = len(self._ids)
        found = frozenset(map(intern, terms(episode.content, self._language)))
        for term in found:
            self._postings.setdefault(term, array("q")).append(row)
        if split(episode.content):
            self._passages[episode.id] = passage_terms(episode.content, self._language)
        self._ids.append(episode.id)
        self._rows[episode.id] = row
        self._episodes.append(episode)
        self._given.append(None)
        self._lengths.append(len(found))
        session = episode.scope.session_id
        self._session.append(self._sessions.setdefault(session, len(self._sessions)))
        self._position.append(episode.position)
        self._said_at.append(episode.occurred_at.timestamp())
        self._asking.append(ends_asking(episode.content))
        self._undone.append(episode.mark == UNDONE)
        self._has_vector.append(False)

    def _set_vector(self, row: int, vector: Vector | None) -> None:
        self._given[row] = vector
        self._has_vector[row] = vector is not None
        if vector is None:
            return
        size = vector.shape[-1]
        if self._vectors.shape[1] != size or len(self._vectors) < len(self._ids):
            grown = np.zeros((2 * len(self._ids), size), dtype=np.float16)
            if self._vectors.shape[1] == size:
                grown[: len(self._vectors)] = self._vectors
            self._vectors = grown
        self._vectors[row] = unit(whole(vector))

    def _known(self, at: datetime | None) -> Mask:
        if at is None:
            return np.ones(len(self), dtype=np.bool_)
        return np.array([each.remembered_at <= at for each in self._episodes], dtype=np.bool_)

    def _hits(self, keys: Sequence[str]) -> Mask:
        hits = np.zeros((len(self), len(keys)), dtype=np.bool_)
        for column, key in enumerate(keys):
            if key in self._postings:
                hits[np.array(self._postings[key]), column] = True
        return hits

    def _candidates(self, wanted: EpisodeFilter) -> Mask:
        found: Mask = np.logical_not(np.frombuffer(bytes(self._undone), dtype=np.bool_))
        if wanted.is_open:
            return found
        return np.logical_and(found, [wanted.fits(each) for each in self._episodes])

    def _compares(self, vector: Vector) -> bool:
        return bool(vector.shape == self._vectors.shape[1:])

    def _similarities(self, vector: Vector | None, rows: Rows | None = None) -> NDArray[np.float64]:
        """The cosines of rows, or of all; NaN for a row without a vector."""
        count = len(self) if rows is None else len(rows)
        if vector is None:
            return np.full(count, np.nan)
        chosen: NDArray[np.float16] = self._vectors[:count] if rows is None else self._vectors[rows]
        found = _product(chosen, vector)
        has = np.frombuffer(bytes(self._has_vector), dtype=np.bool_)
        found[~(has if rows is None else has[rows])] = np.nan
        return found

    def _sentence_similarities(
        self, similarity: NDArray[np.float64], rows: Rows, vector: Vector | None
    ) -> NDArray[np.float64]:
        """The similarity of the best sentence of those rows that are nearest to the question; of others their own."""
        found = similarity.copy()
        nearest = np.argsort(-np.nan_to_num(similarity, nan=-2.0), kind="stable")[:SENTENCES_OF].tolist()
        given = {place: self._given[rows[place]] for place in nearest if self._ids[rows[place]] not in self._passages}
        parts = {place: part_vectors(each) for place, each in given.items() if each is not None and each.ndim > 1}
        if vector is not None and parts:
            starts = np.cumsum([0, *(len(matrix) for matrix in parts.values())])[:-1]
            found[list(parts)] = np.maximum.reduceat(cosine(np.concatenate(list(parts.values())), vector), starts)
        return found

    def _around(
        self,
        search: Search,
        hits: Mask,
        frequencies: Frequencies,
        candidate: Mask,
        vector: Vector | None,
        known: Mask,
    ) -> Rows:
        """The rows of the best hits by words and by vector, and of their neighbours."""
        spots: set[int] = set()
        worths = idf(frequencies.episodes, np.maximum(np.asarray(frequencies.having), 1))
        spots.update(_best(np.where(candidate, hits @ worths, 0.0), search.hits, above=0.0))
        if search.near is not None:  # candidates of an index: ids that are no rows of this owner are nothing
            near = [row for id_ in search.near if (row := self._rows.get(id_)) is not None]
            spots.update(row for row in near if candidate[row])
        elif vector is not None:
            found = np.where(candidate, np.nan_to_num(self._similarities(vector), nan=-1.0), -1.0)
            spots.update(_best(found, search.hits, above=-1.0))
        session, position = np.array(self._session), np.array(self._position)
        order = np.lexsort((position, session))
        order = order[known[order]]
        places = np.empty(len(self), dtype=np.int64)
        places[order] = np.arange(len(order))
        for tail in search.tails:
            members = order[session[order] == self._sessions.get(tail, -1)]
            spots.update(members[-1:].tolist())
        chosen = np.zeros(len(order), dtype=np.bool_)
        at = places[np.array(sorted(spots), dtype=np.int64)]
        for step in range(-CONTEXT, CONTEXT + 1):
            there = at + step
            inside = (there >= 0) & (there < len(order))
            same = session[order[there[inside]]] == session[order[at[inside]]]
            chosen[there[inside][same]] = True
        return np.asarray(order[chosen], dtype=np.int64)

    def _frame(self, rows: Rows, hits: Mask, candidate: Mask, vector: Vector | None) -> Frame:
        episodes = [self._episodes[row] for row in rows.tolist()]
        return Frame(
            session=[each.scope.session_id for each in episodes],
            position=np.array(self._position)[rows],
            hits=hits[rows],
            length=np.array(self._lengths)[rows],
            similarity=self._similarities(vector, rows),
            name=[each.name for each in episodes],
            asking=np.frombuffer(bytes(self._asking), dtype=np.bool_)[rows],
            candidate=candidate[rows],
            said_at=np.array(self._said_at)[rows],
        )

    def _fact_hits(self, facts: Iterable[Fact], question: Question) -> list[FactHit]:
        found = [(fact, self._fact_terms(fact)) for fact in facts]
        having = [sum(term in each for _, each in found) for term in question.terms]
        shared = [(fact, [p for p, term in enumerate(question.terms) if term in each]) for fact, each in found]
        return [
            FactHit(
                id=fact.id,
                places=places,
                having=[having[place] for place in places],
                confidence=fact.confidence,
                subject=fact.subject,
                names_user=fact.names_user,
                sources=fact.sources,
            )
            for fact, places in shared
            if places
        ]

    def _fact_terms(self, fact: Fact) -> frozenset[str]:
        known = self._facts.get(fact.id)
        if known is None:
            known = self._facts[fact.id] = frozenset(map(intern, terms(searched_text(fact), self._language)))
        return known


def search_in_memory(
    episodes: Sequence[Episode],
    vectors: Mapping[EpisodeId, Vector],
    search: Search,
    *,
    facts: Sequence[Fact] = (),
    language: str = "english",
) -> SearchResult:
    """A search over episodes at hand; facts are those that are believed."""
    columns = EpisodeColumns(language)
    columns.refresh({each.id: each for each in episodes}, vectors)
    return columns.find(search, facts)


def _best(scores: NDArray[np.float64], count: int, *, above: float) -> list[int]:
    rows = np.flatnonzero(scores > above)
    if len(rows) > count:
        rows = rows[np.argpartition(-scores[rows], count)[:count]]
    return [int(row) for row in rows]


def _product(rows: NDArray[np.float16], vector: Vector) -> NDArray[np.float64]:
    """The products of half-precision rows with a vector, in steps that fit the processor's cache.

    10,000 rows take 4 ms so. A larger product is given to several threads by BLAS: 40 ms on a machine that is busy.
    """
    found = np.empty(len(rows), dtype=np.float64)
    single: Matrix = np.empty((STEP, len(vector)), dtype=np.float32)
    for start in range(0, len(rows), STEP):
        part = rows[start : start + STEP]
        np.copyto(single[: len(part)], part)
        found[start : start + STEP] = single[: len(part)] @ vector
    return found
