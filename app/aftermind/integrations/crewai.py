"""CrewAI: a storage backend for its memory. CrewAI embeds, ranks and extracts; Aftermind stores and searches."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from aftermind.api.blocking_portal import to_async
from aftermind.integrations.conversations import run_blocking
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Item, ItemWrite

with extra("crewai"):
    import crewai.memory.unified_memory
    from crewai.memory.storage.backend import EmbeddingDimensionMismatchError
    from crewai.memory.types import MemoryMatch, MemoryRecord, ScopeInfo

RECORDS, PLACES = ("crewai", "records"), ("crewai", "places")  # a record below its scope; the scope of each id
ACCESSES = ("crewai", "accesses")  # when each id was read: writing it into the record could undo a deletion or an edit
SIZE = (("crewai",), "embedding")  # an item: the dimension of the vectors
PAGE = 1_000


class AftermindStorage:
    """`StorageBackend` of CrewAI: `crewai.Memory(storage=AftermindStorage(memory, user_id=…))`.

    A read includes every save that has returned, from any process and through any replica. A call is written as a
    whole. A search compares every vector below its scope exactly (cosine). Vectors of another dimension than those
    stored raise `EmbeddingDimensionMismatchError`. `memory.forget` of the user deletes the records.
    """

    def __init__(
        self, memory: Memory | SyncMemory, *, user_id: str | None = None, namespace: str | None = None
    ) -> None:
        self.memory = to_async(memory)
        self._whose: dict[str, Any] = {"user_id": user_id, "namespace": namespace}

    def save(self, records: list[MemoryRecord]) -> None:
        """Store records; one with an existing id is replaced."""
        run_blocking(lambda: self.asave(records))

    def search(self, query_embedding: list[float], *args: Any, **filters: Any) -> list[tuple[MemoryRecord, float]]:
        """See `asearch`."""
        return run_blocking(lambda: self.asearch(query_embedding, *args, **filters))

    def delete(self, *args: Any, **filters: Any) -> int:
        """See `adelete`."""
        return run_blocking(lambda: self.adelete(*args, **filters))

    def update(self, record: MemoryRecord) -> None:
        """Replace the record with the same id."""
        self.save([record])

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """A record by id."""
        return run_blocking(lambda: self._get(record_id))

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """Records of a scope and those below it, newest first."""
        if offset < 0:
            return []  # as CrewAI's own
        found = run_blocking(lambda: self._below(scope_prefix))
        newest = sorted(found, key=lambda each: _utc(_record(each).created_at), reverse=True)
        return run_blocking(lambda: self._read(newest[offset : offset + max(0, limit)]))

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """Count, categories, times and child scopes."""
        records = self._records(scope)
        times = [each.created_at for each in records]
        return ScopeInfo(
            path="/" + "/".join(_labels(scope)),
            record_count=len(records),
            categories=sorted({name for each in records for name in each.categories}),
            oldest_record=min(times, key=_utc, default=None),
            newest_record=max(times, key=_utc, default=None),
            child_scopes=self.list_scopes(scope),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """The scopes immediately below one."""
        above = (*RECORDS, *_labels(parent))
        paths = run_blocking(lambda: self.memory.items.paths(**self._whose))
        below = {path[: len(above) + 1] for path in paths if path[: len(above)] == above and len(path) > len(above)}
        return sorted("/" + "/".join(path[len(RECORDS) :]) for path in below)

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        """How many records each category has."""
        return dict(Counter(name for each in self._records(scope_prefix) for name in each.categories))

    def count(self, scope_prefix: str | None = None) -> int:
        """How many records a scope and those below it have."""
        return len(self._records(scope_prefix))

    def reset(self, scope_prefix: str | None = None) -> None:
        """Delete the records of a scope and those below it."""
        self.delete(scope_prefix=scope_prefix)

    def touch_records(self, record_ids: list[str]) -> None:
        """Set when records were last read."""

        async def touch() -> None:
            at = datetime.now(UTC).replace(tzinfo=None).isoformat()  # as CrewAI's own times
            known = await self._places(record_ids)
            writes = [ItemWrite(path=ACCESSES, key=each, value={"at": at}) for each in known]
            await self.memory.items.write(writes, **self._whose)

        run_blocking(touch)

    async def asave(self, records: list[MemoryRecord]) -> None:
        """See `save`."""
        names = [*((PLACES, each.id) for each in records), SIZE]
        *places, size = await self.memory.items.get(*names, renew=False, **self._whose)
        old, dimensions = _paths(places), {len(each.embedding) for each in records if each.embedding}
        stored = [int(str(size.value["dimension"]))] if size else sorted(dimensions)[:1]
        if others := dimensions.difference(stored):
            raise EmbeddingDimensionMismatchError(stored[0], min(others))
        writes = [ItemWrite(path=SIZE[0], key=SIZE[1], value={"dimension": each}) for each in stored if not size]
        for record in records:
            path = (*RECORDS, *_labels(record.scope))
            if old.get(record.id, path) != path:
                writes.append(ItemWrite(path=old[record.id], key=record.id, value=None))
            value = {**record.model_dump(mode="json"), "embedding": record.embedding}
            vectors = [record.embedding] if record.embedding else []
            writes.append(ItemWrite(path=path, key=record.id, value=value, vectors=vectors))
            writes.append(ItemWrite(path=PLACES, key=record.id, value={"path": list(path)}))
            writes.append(ItemWrite(path=ACCESSES, key=record.id, value=None))  # the record has the time
        await self.memory.items.write(writes, **self._whose)

    async def asearch(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """Records by cosine similarity, best first."""
        path, offset = (*RECORDS, *_labels(scope_prefix)), 0
        found: list[tuple[Item, float]] = []
        while len(found) < limit:
            page = await self.memory.items.search(
                path, vector=query_embedding, limit=PAGE, offset=offset, renew=False, **self._whose
            )
            if page and page[0].score is None and (other := _record(page[0]).embedding):
                raise EmbeddingDimensionMismatchError(len(other), len(query_embedding))
            close = [(each, each.score) for each in page if each.score is not None and each.score >= min_score]
            found += [each for each in close if _fits(_record(each[0]), categories, metadata_filter)]
            offset += PAGE
            if len(page) < PAGE or len(close) < len(page):
                break
        records = await self._read([item for item, _ in found[:limit]])
        return [(record, score) for record, (_, score) in zip(records, found, strict=False)]

    async def adelete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the records that fit every filter; how many."""
        wanted = [
            each
            for each in await self._below(scope_prefix)
            if (record_ids is None or each.key in record_ids)
            and _fits(record := _record(each), categories, metadata_filter)
            and (older_than is None or _utc(record.created_at) < _utc(older_than))
        ]
        writes = [ItemWrite(path=each.path, key=each.key, value=None) for each in wanted]
        writes += [ItemWrite(path=path, key=each.key, value=None) for path in (PLACES, ACCESSES) for each in wanted]
        if wanted:
            first = await self.memory.items.search(RECORDS, limit=len(wanted) + 1, renew=False, **self._whose)
            if len(first) == len(wanted):  # none is left: another embedder may begin
                writes.append(ItemWrite(path=SIZE[0], key=SIZE[1], value=None))
            await self.memory.items.write(writes, **self._whose)
        return len(wanted)

    def _records(self, scope: str | None) -> list[MemoryRecord]:
        return [_record(each) for each in run_blocking(lambda: self._below(scope))]

    async def _below(self, scope: str | None) -> list[Item]:
        found: list[Item] = []
        while len(found) % PAGE == 0:
            page = await self.memory.items.search(
                (*RECORDS, *_labels(scope)), limit=PAGE, offset=len(found), renew=False, **self._whose
            )
            if not page:
                break
            found += page
        return found

    async def _get(self, record_id: str) -> MemoryRecord | None:
        path = (await self._places([record_id])).get(record_id)
        if path is None:
            return None
        (item,) = await self.memory.items.get((path, record_id), renew=False, **self._whose)
        return (await self._read([item]))[0] if item else None

    async def _read(self, items: Sequence[Item]) -> list[MemoryRecord]:
        """The records, each with the time of its last access."""
        names = [(ACCESSES, each.key) for each in items]
        accesses = await self.memory.items.get(*names, renew=False, **self._whose) if names else []
        times = {each.key: {"last_accessed": each.value["at"]} for each in accesses if each is not None}
        return [MemoryRecord.model_validate({**each.value, **times.get(each.key, {})}) for each in items]

    async def _places(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The path of each record that exists."""
        return _paths(await self.memory.items.get(*((PLACES, each) for each in ids), renew=False, **self._whose))


class AftermindMemory(crewai.memory.unified_memory.Memory):
    """CrewAI's `Memory`, whose matches are written into a prompt as data: escaped, each on a line, in an element."""

    def recall(self, *args: Any, **options: Any) -> list[MemoryMatch]:
        """See CrewAI's `Memory.recall`. The records have their texts as they were saved."""
        return [EscapedMatch(**dict(each)) for each in super().recall(*args, **options)]


class EscapedMatch(MemoryMatch):
    """A match that is data of a prompt."""

    def format(self) -> str:
        """The text for a prompt."""
        return f"- <memory>{escape(' '.join(super().format().removeprefix('- ').split()))}</memory>"


def _labels(scope: str | None) -> tuple[str, ...]:
    return tuple(label for label in (scope or "").split("/") if label)


def _paths(places: Sequence[Item | None]) -> dict[str, tuple[str, ...]]:
    return {each.key: tuple(str(label) for label in each.value["path"]) for each in places if each is not None}


def _record(item: Item) -> MemoryRecord:
    return MemoryRecord.model_validate(dict(item.value))


def _fits(record: MemoryRecord, categories: list[str] | None, metadata: dict[str, Any] | None) -> bool:
    in_category = not categories or any(name in record.categories for name in categories)
    return in_category and all(record.metadata.get(name) == value for name, value in (metadata or {}).items())


def _utc(moment: datetime) -> datetime:
    """CrewAI's own times are UTC without a zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
