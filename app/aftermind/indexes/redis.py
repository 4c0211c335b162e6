"""`RedisIndex`: an HNSW index of Redis 8 or Redis Stack, by its query engine. Nothing has to be installed."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import redis
from redis.commands.search.field import NumericField, TagField, VectorField
from redis.commands.search.index_definition import IndexDefinition, IndexType
from redis.commands.search.query import Query

from aftermind import errors
from aftermind.indexes.factory import IndexAddress
from aftermind.indexes.protocol import MARK, IndexEntry, IndexQuery
from aftermind.types import EmbedderIdentity, EpisodeId
from aftermind.wire.redis_keys import Keys

PAGE = 1_000
TIMEOUT_SECONDS = 10.0
METRIC = "COSINE"
TAGS = ("owner", "session", "agent", "role")


class RedisIndex:
    """See `VectorIndex`. The append-only file of this Redis may be off: `aftermind reindex` fills the index again."""

    def __init__(self, address: IndexAddress) -> None:
        self.name, self.is_local = address.name, False
        self._url, self._keys = address.url, Keys()
        self._opened: Any = None  # Any: redis-py's types differ between its sync and async use

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        if self._opened is None:
            self._opened = redis.Redis.from_url(
                self._url,
                protocol=2,  # the query engine answers otherwise by RESP3
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
            )
        found = self._describe()
        if recreate and found is not None:
            self._check_owner()
            self._search.dropindex(delete_documents=True)
            self._opened.delete(self._keys.vector_mark())
            found = None
        if found is None:
            vector = {"TYPE": "FLOAT32", "DIM": embedder.dimension, "DISTANCE_METRIC": METRIC}
            # First: an index without it is another program's.
            self._opened.hset(self._keys.vector_mark(), mapping={"made_by": MARK, "embedder": embedder.key})
            self._search.create_index(
                [*(TagField(name) for name in TAGS), NumericField("at"), VectorField("vector", "HNSW", vector)],
                definition=IndexDefinition(  # type: ignore[no-untyped-call]
                    prefix=[self._keys.vector_entry("")], index_type=IndexType.HASH
                ),
            )
            found = self._describe()
        self._check(found or {}, embedder)

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for each in entries:
                labels = {name: value or NONE for name, value in each.labels.items()}
                pipe.hset(self._keys.vector_entry(str(each.id)), mapping={**labels, "vector": each.vector.tobytes()})
            pipe.execute()

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        there = set(self.ids(owner))
        keys = [self._keys.vector_entry(str(each)) for each in (there if ids is None else there & set(ids))]
        for start in range(0, len(keys), PAGE):
            self._client.delete(*keys[start : start + PAGE])

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        wanted = Query(f"({_filter(query)})=>[KNN $k @vector $vector AS distance]")
        wanted = wanted.sort_by("distance").return_fields("distance").paging(0, query.k).dialect(2)
        found = self._search.search(wanted, query_params={"k": query.k, "vector": query.vector.tobytes()})
        return [self._id(each.id) for each in found.docs]

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        cursor: Any = None
        command = ["FT.AGGREGATE", self._keys.vector_index(), _tag("owner", owner), "LOAD", "1", "@__key"]
        page, cursor = self._client.execute_command(*command, "WITHCURSOR", "COUNT", PAGE, "DIALECT", 2)
        while True:
            yield from (self._id(bytes(row[1]).decode()) for row in page[1:])
            if not cursor:
                return
            page, cursor = self._client.execute_command("FT.CURSOR", "READ", self._keys.vector_index(), cursor)

    def count(self, owner: str | None = None) -> int:
        wanted = Query("*" if owner is None else _tag("owner", owner)).paging(0, 0).dialect(2)
        return int(self._search.search(wanted).total)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _client(self) -> Any:
        if self._opened is None:
            raise errors.IndexUnavailable(self.name, "it is closed")
        return self._opened

    @property
    def _search(self) -> Any:
        return self._client.ft(self._keys.vector_index())

    def _id(self, key: str) -> EpisodeId:
        return EpisodeId(UUID(key.removeprefix(self._keys.vector_entry(""))))

    def _describe(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._search.info()
        except redis.ResponseError as exc:
            if "unknown command" in str(exc).lower():
                why = "this server has no query engine. Use Redis 8, Redis Stack, or another index."
                raise errors.InvalidSettings("index", self.name, why) from exc
            return None
        return found

    def _check_owner(self) -> None:
        if self._client.hget(self._keys.vector_mark(), "made_by") != MARK.encode():
            raise errors.IndexMismatch(self.name, "as its content", "an index of another program", "its own")

    def _check(self, found: dict[str, Any], embedder: EmbedderIdentity) -> None:
        self._check_owner()
        fields = [[_text(part) for part in each] for each in found.get("attributes", ())]
        vector = next((each for each in fields if "VECTOR" in each), [])
        shown = {name: vector[vector.index(name) + 1] for name in ("dim", "distance_metric") if name in vector}
        if int(shown.get("dim", 0)) != embedder.dimension:
            raise errors.IndexMismatch(self.name, "dimension", shown.get("dim"), embedder.dimension)
        if shown.get("distance_metric") != METRIC:
            raise errors.IndexMismatch(self.name, "metric", shown.get("distance_metric"), METRIC)
        made_with = self._client.hget(self._keys.vector_mark(), "embedder").decode()
        if made_with != embedder.key:
            raise errors.IndexMismatch(self.name, "vectors of", made_with, embedder)


NONE = "none"  # a tag cannot be empty


def _text(part: object) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)


def _tag(field: str, *values: str) -> str:
    return f"@{field}:{{{'|'.join(value or NONE for value in values)}}}"


def _filter(query: IndexQuery) -> str:
    found = [_tag(name, value) for name, value in query.equal.items()]
    if query.roles is not None:
        found.append(_tag("role", *query.roles))
    if query.since is not None or query.until is not None:
        since = "-inf" if query.since is None else repr(query.since)
        until = "+inf" if query.until is None else f"({query.until!r}"
        found.append(f"@at:[{since} {until}]")
    return " ".join(found)
