"""Metadata of sessions: a JSON object each, kept among the items of the user."""

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

from aftermind import errors
from aftermind.api import conversation_history
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import StoredItem
from aftermind.types import Json, Scope
from aftermind.types.items import SESSIONS, internal_path, to_name
from aftermind.types.validation import Limits, json_object

KEY = "metadata"


async def get(parts: Parts, scope: Scope) -> dict[str, Json]:
    """The metadata of a session; empty if it has none."""
    return await conversation_history.read(parts, scope.owner, lambda tx: _read(parts, tx, scope))


async def update(
    parts: Parts, scope: Scope, values: Mapping[str, Json], limits: Limits, *, replace: bool
) -> dict[str, Json]:
    """Set fields, None removes one; with `replace` the given object takes the place of the whole. The new metadata."""
    try:
        given = json_object(values, limits)
    except errors.InvalidMessage as exc:
        raise errors.InvalidItem("metadata", exc.value, exc.why) from exc
    owner = scope.owner

    async def write(tx: Transaction) -> dict[str, Json]:
        await parts.store.tombstones(tx, [owner])  # holds a forget of this user off until the end
        await parts.store.hold(tx, owner, _name(scope))
        before = {} if replace else await _read(parts, tx, scope)
        merged = {name: value for name, value in {**before, **given}.items() if value is not None}
        content = orjson.dumps(merged)
        if len(content) > limits.metadata_bytes:
            why = f"metadata has at most {limits.metadata_bytes:,} bytes as JSON, this has {len(content):,}."
            raise errors.InvalidItem("metadata", f"{len(content)} bytes", why)
        now = datetime.now(UTC)
        item = StoredItem(name=_name(scope), content=content.decode(), created_at=now, updated_at=now)
        await parts.store.put_items(tx, owner, [item])
        return merged

    return await parts.effects.commit(owner, write)


async def _read(parts: Parts, tx: Transaction, scope: Scope) -> dict[str, Json]:
    found = await parts.store.items(tx, scope.owner, [_name(scope)])
    return dict(orjson.loads(found[0].content)) if found else {}


def _name(scope: Scope) -> str:
    return to_name(internal_path(SESSIONS, scope), KEY)
