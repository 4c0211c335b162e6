"""Applies resolved changes of facts: writes them as rows, for extractions, API calls and undo alike."""

from datetime import datetime

from aftermind.db.database_protocol import Transaction
from aftermind.facts.bitemporal_resolution import Changes
from aftermind.stores.protocol import Store
from aftermind.types import FactId, Scope


async def write(store: Store, tx: Transaction, owner: Scope, changes: Changes, *, at: datetime) -> None:
    """Write the changes, under the lock that was held while they were decided (`Store.hold_beliefs`)."""
    if changes.said or changes.unsaid:
        await store.put_assertions(tx, owner, changes.said, unsaid=changes.unsaid)
    await store.add_facts(tx, [*changes.added, *changes.never_believed])
    followed: dict[FactId | None, list[FactId]] = {}
    for old, follower in changes.superseded.items():
        followed.setdefault(follower, []).append(old)
    for by, ended in followed.items():
        await store.supersede_facts(tx, owner, ended, at=at, by_id=by)
    for one in changes.strengthened:
        await store.strengthen_fact(tx, owner, one.fact_id, sources=one.sources, confidence=one.confidence)
