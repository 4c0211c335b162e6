"""A vector index of a test, in this process: exact, and as hostile or absent as the test wants it."""

from collections.abc import Iterable, Sequence

import numpy as np

from aftermind import errors
from aftermind.indexes.protocol import IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId


class ProcessIndex:
    """See `VectorIndex`. `is_away`: it does not answer. `answer`: what every search returns instead of the nearest."""

    name, is_local = "test", True

    def __init__(self, dimension: int | None = None) -> None:
        self.entries: dict[EpisodeId, IndexEntry] = {}
        self.is_away, self.answer = False, None
        self.answer: Sequence[EpisodeId] | None
        self.searches = 0
        self._dimension = dimension

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        self._reach()
        if recreate:
            self.entries.clear()
            self._dimension = None
        if self._dimension not in (None, embedder.dimension):
            raise errors.IndexMismatch(self.name, "dimension", self._dimension, embedder.dimension)

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        self._reach()
        self.entries |= {each.id: each for each in entries}

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        self._reach()
        for id_ in list(self.ids(owner)):
            if ids is None or id_ in ids:
                del self.entries[id_]

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        self._reach()
        self.searches += 1
        if self.answer is not None:
            return self.answer
        mine = [each for each in self.entries.values() if each.owner == query.owner]
        return [each.id for each in sorted(mine, key=lambda each: -float(np.dot(each.vector, query.vector)))[: query.k]]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        self._reach()
        return [each.id for each in self.entries.values() if each.owner == owner]

    def count(self, owner: str | None = None) -> int:
        self._reach()
        return len(self.entries) if owner is None else len(list(self.ids(owner)))

    def close(self) -> None:
        """Nothing to close."""

    def _reach(self) -> None:
        if self.is_away:
            raise ConnectionError("refused")
