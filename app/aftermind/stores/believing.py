"""What was decided about facts, as rows: the same for what a model drew, what somebody told, and what was undone."""

from datetime import datetime

from aftermind.claims.decide import Changes
from aftermind.db.base import Transaction
from aftermind.stores.base import Store
from aftermind.types import FactId, Scope


async def write(store: Store, tx: Transaction, owner: Scope, changes: Changes, *, at: datetime) -> None:
    """Write the changes, under the lock that was held while they were decided (`Store.hold_beliefs`)."""
    if changes.said or changes.unsaid:
        await store.keep_said(tx, owner, changes.said, unsaid=changes.unsaid)
    await store.add_facts(tx, changes.added)
    followed: dict[FactId | None, list[FactId]] = {}
    for old, follower in changes.superseded.items():
        followed.setdefault(follower, []).append(old)
    for by, ended in followed.items():
        await store.supersede_facts(tx, owner, ended, at=at, by_id=by)
    for one in changes.strengthened:
        await store.strengthen_fact(tx, owner, one.fact_id, sources=one.sources, confidence=one.confidence)
