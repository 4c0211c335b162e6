"""`QdrantIndex`: a Qdrant server, or a folder of this process. Needs the extra `qdrant`."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from qdrant_client import QdrantClient, models

from aftermind import errors
from aftermind.indexes.factory import IndexAddress
from aftermind.indexes.protocol import MARK, IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId

PAGE = 1_000
TIMEOUT_SECONDS = 10
KEYWORDS = ("owner", "session", "agent", "role")


class QdrantIndex:
    """See `VectorIndex`. The password of the URL is the API key."""

    def __init__(self, address: IndexAddress) -> None:
        self.name, self.is_local = address.name, address.host is None
        self._address, self._collection = address, address.collection
        self._opened: QdrantClient | None = None

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        at = self._address
        if self._opened is None and at.host is None:
            self._opened = QdrantClient(path=at.path)
        elif self._opened is None:
            self._opened = QdrantClient(
                host=at.host,
                port=at.port or 6333,
                https=at.is_secure,
                api_key=at.password,
                timeout=TIMEOUT_SECONDS,
                check_compatibility=False,
            )
        client = self._opened
        if recreate and client.collection_exists(self._collection):
            self._check_owner(client)
            client.delete_collection(self._collection)
        if not client.collection_exists(self._collection):
            client.create_collection(
                self._collection,
                vectors_config=models.VectorParams(size=embedder.dimension, distance=models.Distance.COSINE),
                metadata={"made_by": MARK, "embedder": embedder.key},
            )
            if not self.is_local:  # a folder has no payload indexes
                for field in KEYWORDS:
                    client.create_payload_index(self._collection, field, models.PayloadSchemaType.KEYWORD)
        self._check(client, embedder)

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        points = [
            models.PointStruct(id=str(each.id), vector=each.vector.tolist(), payload=each.labels) for each in entries
        ]
        self._client.upsert(self._collection, points, wait=True)

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        must: list[models.Condition] = [_equal("owner", owner)]
        if ids is not None:
            must.append(models.HasIdCondition(has_id=[str(each) for each in ids]))
        self._client.delete(self._collection, models.FilterSelector(filter=models.Filter(must=must)), wait=True)

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        found = self._client.query_points(
            self._collection,
            query=query.vector.tolist(),
            query_filter=_filter(query),
            limit=query.k,
            with_payload=False,
        )
        return [EpisodeId(UUID(str(each.id))) for each in found.points]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        offset = None
        while True:
            points, offset = self._client.scroll(
                self._collection,
                scroll_filter=models.Filter(must=[_equal("owner", owner)]),
                limit=PAGE,
                offset=offset,
                with_payload=False,
            )
            yield from (EpisodeId(UUID(str(each.id))) for each in points)
            if offset is None:
                return

    def count(self, owner: str | None = None) -> int:
        wanted = None if owner is None else models.Filter(must=[_equal("owner", owner)])
        return self._client.count(self._collection, count_filter=wanted, exact=True).count

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _client(self) -> QdrantClient:
        if self._opened is None:
            raise errors.IndexUnavailable(self.name, "it is closed")
        return self._opened

    def _check_owner(self, client: QdrantClient) -> None:
        made_by = (client.get_collection(self._collection).config.metadata or {}).get("made_by")
        if made_by != MARK:
            other = f"the collection {self._collection!r} of another program"
            raise errors.IndexMismatch(self.name, "as its content", other, "its own")

    def _check(self, client: QdrantClient, embedder: EmbedderIdentity) -> None:
        self._check_owner(client)
        config = client.get_collection(self._collection).config
        vectors = config.params.vectors
        if not isinstance(vectors, models.VectorParams):
            raise errors.IndexMismatch(self.name, "vectors", "several a point", "one")
        if vectors.size != embedder.dimension:
            raise errors.IndexMismatch(self.name, "dimension", vectors.size, embedder.dimension)
        if vectors.distance != models.Distance.COSINE:
            raise errors.IndexMismatch(self.name, "metric", vectors.distance.value, models.Distance.COSINE.value)
        made_with = (config.metadata or {}).get("embedder")
        if made_with != embedder.key:
            raise errors.IndexMismatch(self.name, "vectors of", made_with, embedder)


def _equal(field: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=field, match=models.MatchValue(value=value))


def _filter(query: IndexQuery) -> models.Filter:
    must: list[models.Condition] = [_equal(name, value) for name, value in query.equal.items()]
    if query.roles is not None:
        must.append(models.FieldCondition(key="role", match=models.MatchAny(any=list(query.roles))))
    if query.since is not None or query.until is not None:
        must.append(models.FieldCondition(key="at", range=models.Range(gte=query.since, lt=query.until)))
    return models.Filter(must=must)
