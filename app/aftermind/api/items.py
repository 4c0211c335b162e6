"""`memory.items`: JSON documents of a user by path and key, with vectors that the caller brings."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import orjson

from aftermind import errors
from aftermind.api import conversation_history
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import StoredItem, Vector
from aftermind.types import Json, Scope
from aftermind.types.items import LABEL_END, PATH_END, Item, ItemWrite, from_name, to_name

VALUE_BYTES = 1_048_576
NAME_BYTES = 1_024  # with namespace and user it is a key of the index, which holds 2,704
MOST_VECTORS, MOST_DIMENSIONS = 64, 8_192
LONGEST_TTL = timedelta(days=36_500)


class Items:
    """The items of a user. Every call raises `InvalidScope`, `InvalidItem` and `StoreUnavailable`.

    Reads include every write that has returned, whichever process wrote and whichever replica serves. Items are neither
    recalled nor mined for facts; `forget` of the user deletes them, and `export` has them.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def get(
        self,
        *names: tuple[Sequence[str], str],
        renew: bool = True,
        user_id: str | None = None,
        namespace: str | None = None,
    ) -> list[Item | None]:
        """The items of these paths and keys, None for each that does not exist.

        `renew` lets those with a time to live begin it again.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        wanted = [_name(path, key) for path, key in names]
        found = await conversation_history.read(
            self._parts, owner, lambda tx: self._parts.store.items(tx, owner, wanted)
        )
        await self._renew(owner, found if renew else ())
        by_name = {each.name: to_item(owner, each) for each in found}
        return [by_name.get(name) for name in wanted]

    async def write(
        self, writes: Iterable[ItemWrite], *, user_id: str | None = None, namespace: str | None = None
    ) -> None:
        """Write all of them, or none. The last write of an item wins."""
        owner, now = self._parts.scope(namespace=namespace, user_id=user_id), datetime.now(UTC)
        last = {_name(each.path, each.key): each for each in writes}
        deleted = [name for name, each in last.items() if each.value is None]
        given = [_to_stored(name, each, each.value, now) for name, each in last.items() if each.value is not None]

        async def write(tx: Transaction) -> None:
            await self._parts.store.tombstones(tx, [owner])  # holds a forget of this user off until the end
            await self._parts.store.put_items(tx, owner, given)
            if deleted:
                await self._parts.store.delete_items(tx, owner, deleted)

        if last:
            await self._parts.effects.commit(owner, write)

    async def search(
        self,
        path: Sequence[str] = (),
        *,
        filter: Mapping[str, Json] | None = None,
        vector: Sequence[float] | None = None,
        limit: int = 10,
        offset: int = 0,
        renew: bool = True,
        user_id: str | None = None,
        namespace: str | None = None,
    ) -> list[Item]:
        """Items of a path and of the paths below it.

        With `vector`, the most similar first by cosine, and last those without a vector of its dimension; otherwise the
        last written first. `filter` compares fields of the values: with a value, or by `$eq`, `$ne`, `$gt`, `$gte`,
        `$lt`, `$lte`. A search with either reads every item below the path.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        labels, wanted = _path(path), None if vector is None else _vectors([vector])
        for field, number in (("limit", limit), ("offset", offset)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise errors.InvalidItem(field, number, "it is a whole number, 0 or greater.")
        is_plain = not filter and wanted is None
        found = await conversation_history.read(
            self._parts,
            owner,
            lambda tx: self._parts.store.items_under(tx, owner, labels, limit=limit + offset if is_plain else None),
        )
        scores = {} if wanted is None else {each.name: _similarity(each, wanted[0]) for each in found}
        found = sorted(
            found, key=lambda each: -2.0 if (score := scores.get(each.name)) is None else score, reverse=True
        )
        items = [(each, to_item(owner, each, scores.get(each.name))) for each in found]
        page = [(each, item) for each, item in items if not filter or fits(item.value, filter)][offset : offset + limit]
        await self._renew(owner, [each for each, _ in page] if renew else ())
        return [item for _, item in page]

    async def paths(self, *, user_id: str | None = None, namespace: str | None = None) -> list[tuple[str, ...]]:
        """Every path that has items, in order."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        return await conversation_history.read(self._parts, owner, lambda tx: self._parts.store.item_paths(tx, owner))

    async def _renew(self, owner: Scope, found: Iterable[StoredItem]) -> None:
        names = [each.name for each in found if each.ttl is not None]
        if names:
            await self._parts.effects.commit(owner, lambda tx: self._parts.store.renew_items(tx, owner, names))


def fits(there: Json, wanted: Json) -> bool:
    """Whether a JSON value fits a filter: objects field by field, everything else by equality or by operators."""
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_compare(there, operator, value) for operator, value in wanted.items())
        return isinstance(there, Mapping) and all(fits(there.get(name), value) for name, value in wanted.items())
    return bool(there == wanted and isinstance(there, bool) == isinstance(wanted, bool))


def _compare(there: Json, operator: str, value: Json) -> bool:
    if operator in ("$eq", "$ne"):
        return fits(there, value) is (operator == "$eq")
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise errors.InvalidItem("filter", operator, "operators are $eq, $ne, $gt, $gte, $lt and $lte.")
    for kind in (int | float, str):
        if isinstance(there, kind) and isinstance(value, kind):
            order = (there > value) - (there < value)  # type: ignore[operator]  # both are of that kind
            return order in {"$gt": (1,), "$gte": (0, 1), "$lt": (-1,), "$lte": (-1, 0)}[operator]
    return False


def _similarity(item: StoredItem, wanted: Vector) -> float | None:
    if item.vectors is None or item.vectors.shape[1] != len(wanted):
        return None
    lengths = np.linalg.norm(item.vectors, axis=1) * np.linalg.norm(wanted)
    cosines = np.divide(item.vectors @ wanted, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return float(cosines.max())


def to_item(owner: Scope, stored: StoredItem, score: float | None = None) -> Item:
    """The item that a row is."""
    path, key = from_name(stored.name)
    return Item(
        scope=owner,
        path=path,
        key=key,
        value=orjson.loads(stored.content),
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        expires_at=stored.expires_at,
        score=score,
    )


def _to_stored(name: str, write: ItemWrite, value: Mapping[str, Json], now: datetime) -> StoredItem:
    if not isinstance(value, Mapping):
        raise errors.InvalidItem("value", value, "it is a JSON object, or None to delete the item.")
    try:
        content = orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError) as exc:
        raise errors.InvalidItem("value", value, f"it must be JSON: {exc}.") from exc
    if len(content) > VALUE_BYTES:
        raise errors.InvalidItem("value", f"{len(content)} bytes", f"an item has at most {VALUE_BYTES:,} bytes.")
    if b"\\u0000" in content:
        raise errors.InvalidItem("value", "a NUL character", "text in it cannot hold NUL.")
    if write.ttl is not None and not timedelta() < write.ttl <= LONGEST_TTL:
        raise errors.InvalidItem("ttl", write.ttl, "it is longer than nothing and at most 36,500 days.")
    vectors = _vectors(write.vectors) if len(write.vectors) else None
    return StoredItem(
        name=name, content=content.decode(), vectors=vectors, ttl=write.ttl, created_at=now, updated_at=now
    )


def _vectors(given: Sequence[Sequence[float]]) -> Vector:
    try:
        vectors = np.asarray(given, np.float32)
    except (TypeError, ValueError) as exc:
        raise errors.InvalidItem("vectors", "", "these are lists of numbers, of one length.") from exc
    if vectors.ndim != 2 or not vectors.size or not np.isfinite(vectors).all():
        raise errors.InvalidItem("vectors", vectors.shape, "these are lists of finite numbers, of one length.")
    if len(vectors) > MOST_VECTORS or vectors.shape[1] > MOST_DIMENSIONS:
        why = f"an item has at most {MOST_VECTORS} vectors of at most {MOST_DIMENSIONS:,} dimensions."
        raise errors.InvalidItem("vectors", vectors.shape, why)
    return vectors


def _name(path: Sequence[str], key: object) -> str:
    labels = _path(path)
    if not labels:
        raise errors.InvalidItem("path", path, "it has at least one label.")
    if not isinstance(key, str) or not key or "\x00" in key or not _is_unicode(key):
        raise errors.InvalidItem("key", key, "it is text, not empty, without NUL.")
    name = to_name(labels, key)
    if len(name.encode()) > NAME_BYTES:
        raise errors.InvalidItem("key", name, f"path and key have at most {NAME_BYTES:,} UTF-8 bytes together.")
    return name


def _path(path: Sequence[str]) -> tuple[str, ...]:
    labels = tuple(path)
    for label in labels:
        is_text = isinstance(label, str) and label and _is_unicode(label)
        if isinstance(path, str) or not is_text or any(mark in label for mark in ("\x00", LABEL_END, PATH_END)):
            why = "it is a sequence of labels: texts that are not empty, without NUL, U+001E and U+001F."
            raise errors.InvalidItem("path", path, why)
    return labels


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
