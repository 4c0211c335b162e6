"""Fill the external vector index again, user by user, and compare it with the store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from aftermind import errors
from aftermind.api import conversation_history
from aftermind.api.memory_services import Parts
from aftermind.indexes.sync_with_record_store import compare
from aftermind.types import Scope

USERS = 100  # listed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexed:
    """A user whose entries agree with the store: how many there are now, were missing, and had no episode."""

    user_id: str | None
    entries: int
    added: int
    removed: int


async def reindex(
    parts: Parts, owner: Scope | None, namespace: Scope, *, after: str | None, recreate: bool
) -> AsyncIterator[Reindexed]:
    """Rewrite the entries of one user, or of all of a namespace after the id `after`."""
    if parts.index is None:
        why = "there is no vector index. Name one: Memory(url, index='qdrant://…'), or set AFTERMIND_INDEX_URL."
        raise errors.InvalidSettings("index", None, why)
    embedder = await parts.identify_embedder()
    if recreate:
        await parts.index.recreate(embedder)
    while True:
        page = [owner.user_id] if owner else await _list_users(parts, namespace, after)
        for user_id in page:
            scope = replace(namespace, user_id=user_id)
            made = await compare(parts.db, parts.store, parts.index, scope, embedder, rewrite=True)
            yield Reindexed(user_id=user_id, entries=made.entries, added=made.added, removed=made.removed)
            after = user_id or ""
        if owner or len(page) < USERS:
            return


async def _list_users(parts: Parts, namespace: Scope, after: str | None) -> list[str | None]:
    page = await conversation_history.users(parts, namespace, "", after, limit=USERS, groups=True)
    return [each.user_id for each in page]
