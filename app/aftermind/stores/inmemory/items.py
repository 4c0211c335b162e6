"""Items of one process."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.stores.protocol import StoredItem
from aftermind.types import Scope
from aftermind.types.items import from_name


class InMemoryItems:
    """The part of the store that keeps items. See `Store` for what each method promises."""

    async def put_items(self, tx: Transaction, owner: Scope, given: Sequence[StoredItem]) -> None:
        rows, now = await mem(tx).owned("items", owner), datetime.now(UTC)
        for name in [name for name, item in rows.items() if not _lives(item, now)]:
            mem(tx).drop(rows, name)
        for item in given:
            before: StoredItem | None = rows.get(item.name)
            created = item.updated_at if before is None else before.created_at
            expires = None if item.ttl is None else now + item.ttl
            mem(tx).put(rows, item.name, replace(item, created_at=created, expires_at=expires))

    async def delete_items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> int:
        rows = await mem(tx).owned("items", owner)
        return sum(mem(tx).drop(rows, name) for name in names)

    async def items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> list[StoredItem]:
        rows, now = await mem(tx).owned("items", owner), datetime.now(UTC)
        return [rows[name] for name in names if name in rows and _lives(rows[name], now)]

    async def items_under(
        self, tx: Transaction, owner: Scope, path: Sequence[str], *, limit: int | None = None
    ) -> list[StoredItem]:
        rows, now = await mem(tx).owned("items", owner), datetime.now(UTC)
        found = [item for name, item in rows.items() if _is_below(name, path) and _lives(item, now)]
        found = sorted(found, key=lambda item: item.name)
        return sorted(found, key=lambda item: item.updated_at, reverse=True)[:limit]

    async def item_paths(self, tx: Transaction, owner: Scope) -> list[tuple[str, ...]]:
        return sorted({from_name(item.name)[0] for item in await self.items_under(tx, owner, ())})

    async def renew_items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> None:
        rows, now = await mem(tx).owned("items", owner), datetime.now(UTC)
        for item in await self.items(tx, owner, names):
            if item.ttl is not None:
                mem(tx).put(rows, item.name, replace(item, expires_at=now + item.ttl))


def _is_below(name: str, path: Sequence[str]) -> bool:
    labels = from_name(name)[0]
    return labels[: len(path)] == tuple(path) if path else bool(labels[0])


def _lives(item: StoredItem, now: datetime) -> bool:
    return item.expires_at is None or item.expires_at > now
