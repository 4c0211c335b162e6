"""`PineconeIndex`: an index at Pinecone, which exists. Needs the extra `pinecone` and a key.

The key is the one of the URL, `pinecone:KEY@NAME`, or `PINECONE_API_KEY`.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from pinecone import Pinecone

from aftermind import errors
from aftermind.indexes.factory import IndexAddress
from aftermind.indexes.protocol import COLLECTION, IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId

PAGE = 100  # entries of a request: 2 MB is its limit
METRIC = "cosine"
SEPARATOR = "#"  # between owner and episode: the ids of an owner are listed by their prefix
CONTROLLER = "PINECONE_CONTROLLER_HOST"  # instead of Pinecone's own


class PineconeIndex:
    """See `VectorIndex`. Entries are in a namespace of the index, so that other content is not touched.

    Pinecone keeps no label of an index that could name the embedder: only dimension and metric are checked.
    """

    def __init__(self, address: IndexAddress) -> None:
        self.name, self.is_local, self._index_name = address.name, False, address.path
        self._key = address.password or os.environ.get("PINECONE_API_KEY")
        if not self._key:
            raise errors.InvalidSettings("PINECONE_API_KEY", None, f"the index {self.name} needs a key. Set it.")
        self._opened: Any = None  # Any: of a library that not every environment has

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        client = Pinecone(api_key=self._key, host=os.environ.get(CONTROLLER))
        if not client.has_index(self._index_name):
            why = f"there is no such index. Create it with {embedder.dimension} dimensions and the metric {METRIC!r}."
            raise errors.InvalidSettings("index", self.name, why)
        found = client.describe_index(self._index_name)
        if found.dimension != embedder.dimension:
            raise errors.IndexMismatch(self.name, "dimension", found.dimension, embedder.dimension)
        if found.metric != METRIC:
            raise errors.IndexMismatch(self.name, "metric", found.metric, METRIC)
        self._opened = client.index(host=found.host)
        if recreate and self.count():
            self._opened.delete(delete_all=True, namespace=COLLECTION)

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        for start in range(0, len(entries), PAGE):
            vectors = [
                {"id": _key(each.owner, each.id), "values": each.vector.tolist(), "metadata": each.labels}
                for each in entries[start : start + PAGE]
            ]
            self._index.upsert(vectors=vectors, namespace=COLLECTION, show_progress=False)

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        found = list(self.ids(owner) if ids is None else ids)
        for start in range(0, len(found), PAGE):
            keys = [_key(owner, each) for each in found[start : start + PAGE]]
            self._index.delete(ids=keys, namespace=COLLECTION)

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        found = self._index.query(
            vector=query.vector.tolist(), top_k=query.k, filter=_filter(query), namespace=COLLECTION
        )
        return [_id(each.id) for each in found.matches]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        for page in self._index.list(prefix=f"{owner}{SEPARATOR}", namespace=COLLECTION):
            yield from (_id(each.id) for each in page.vectors)

    def count(self, owner: str | None = None) -> int:
        if owner is not None:
            return sum(1 for _ in self.ids(owner))
        found = self._index.describe_index_stats().namespaces.get(COLLECTION)
        return 0 if found is None else int(found.vector_count)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _index(self) -> Any:
        if self._opened is None:
            raise errors.IndexUnavailable(self.name, "it is closed")
        return self._opened


def _key(owner: str, id_: EpisodeId) -> str:
    return f"{owner}{SEPARATOR}{id_}"


def _id(key: str) -> EpisodeId:
    return EpisodeId(UUID(key.rpartition(SEPARATOR)[2]))


def _filter(query: IndexQuery) -> dict[str, object]:
    found: dict[str, object] = {name: {"$eq": value} for name, value in query.equal.items()}
    if query.roles is not None:
        found["role"] = {"$in": list(query.roles)}
    times = {"$gte": query.since, "$lt": query.until}
    if bounds := {name: value for name, value in times.items() if value is not None}:
        found["at"] = bounds
    return found
