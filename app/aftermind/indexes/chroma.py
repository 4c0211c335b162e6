"""`ChromaIndex`: a Chroma server, or a folder of this process. Needs the extra `chroma`."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import chromadb
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import NotFoundError

from aftermind import errors
from aftermind.indexes.factory import IndexAddress
from aftermind.indexes.protocol import MARK, IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId

PAGE = 1_000
METRIC = "cosine"
Where = dict[str, Any]  # Any: conditions of Chroma


class ChromaIndex:
    """See `VectorIndex`. The password of the URL is sent as a bearer token."""

    def __init__(self, address: IndexAddress) -> None:
        self.name, self.is_local = address.name, address.host is None
        self._address = address
        self._client: Any = None  # Any: Chroma's clients have no common type
        self._opened: Any = None

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        at, quiet = self._address, ChromaSettings(anonymized_telemetry=False)
        if self._client is None and at.host is None:
            self._client = chromadb.PersistentClient(path=at.path, settings=quiet)
        elif self._client is None:
            headers = None if at.password is None else {"Authorization": f"Bearer {at.password}"}
            self._client = chromadb.HttpClient(
                host=at.host or "", port=at.port or 8000, ssl=at.is_secure, headers=headers, settings=quiet
            )
        found = self._get()
        if recreate and found is not None:
            self._check_owner(found)
            self._client.delete_collection(at.collection)
            found = None
        if found is None:
            found = self._client.create_collection(
                at.collection,
                configuration={"hnsw": {"space": METRIC}},
                metadata={"made_by": MARK, "embedder": embedder.key, "dimension": embedder.dimension},
                embedding_function=None,
                get_or_create=True,
            )
        self._check(found, embedder)
        self._opened = found

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        for start in range(0, len(entries), PAGE):
            part = entries[start : start + PAGE]
            self._collection.upsert(
                ids=[str(each.id) for each in part],
                embeddings=[each.vector for each in part],
                metadatas=[each.labels for each in part],
            )

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        if ids is None:
            self._collection.delete(where={"owner": owner})
            return
        for start in range(0, len(ids), PAGE):
            self._collection.delete(ids=[str(each) for each in ids[start : start + PAGE]], where={"owner": owner})

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        found = self._collection.query(
            query_embeddings=[query.vector], n_results=query.k, where=_where(query), include=[]
        )
        return [EpisodeId(UUID(each)) for each in found["ids"][0]]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        offset = 0
        while True:
            page = self._collection.get(where={"owner": owner}, limit=PAGE, offset=offset, include=[])["ids"]
            yield from (EpisodeId(UUID(each)) for each in page)
            if len(page) < PAGE:
                return
            offset += PAGE

    def count(self, owner: str | None = None) -> int:
        return int(self._collection.count()) if owner is None else sum(1 for _ in self.ids(owner))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._opened = None

    @property
    def _collection(self) -> Any:
        if self._opened is None:
            raise errors.IndexUnavailable(self.name, "it is closed")
        return self._opened

    def _get(self) -> Any:
        try:
            return self._client.get_collection(self._address.collection, embedding_function=None)
        except NotFoundError:
            return None

    def _check_owner(self, found: Any) -> None:
        if (found.metadata or {}).get("made_by") != MARK:
            other = f"the collection {self._address.collection!r} of another program"
            raise errors.IndexMismatch(self.name, "as its content", other, "its own")

    def _check(self, found: Any, embedder: EmbedderIdentity) -> None:
        self._check_owner(found)
        metric = ((found.configuration_json or {}).get("hnsw") or {}).get("space")
        if metric != METRIC:
            raise errors.IndexMismatch(self.name, "metric", metric, METRIC)
        dimension = found.metadata.get("dimension")
        if dimension != embedder.dimension:
            raise errors.IndexMismatch(self.name, "dimension", dimension, embedder.dimension)
        if found.metadata.get("embedder") != embedder.key:
            raise errors.IndexMismatch(self.name, "vectors of", found.metadata.get("embedder"), embedder)


def _where(query: IndexQuery) -> Where:
    found: list[Where] = [{name: value} for name, value in query.equal.items()]
    if query.roles is not None:
        found.append({"role": {"$in": list(query.roles)}})
    if query.since is not None:
        found.append({"at": {"$gte": query.since}})
    if query.until is not None:
        found.append({"at": {"$lt": query.until}})
    return found[0] if len(found) == 1 else {"$and": found}
