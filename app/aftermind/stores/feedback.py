"""Counts of feedback, each a row among the user's items; deleted with the episode or fact that it is about."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

import orjson

from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import Store, StoredItem
from aftermind.types import EpisodeId, FactId, Scope
from aftermind.types.feedback import Feedback, FeedbackCount
from aftermind.types.items import feedback_name, from_name
from aftermind.types.tombstone import Tombstone


async def counts(store: Store, tx: Transaction, owner: Scope, ids: Iterable[UUID]) -> dict[UUID, FeedbackCount]:
    """The counts of those that have any."""
    found = await store.items(tx, owner, [feedback_name(each) for each in ids])
    return {UUID(from_name(each.name)[1]): _read(each) for each in found}


async def add(
    store: Store, tx: Transaction, owner: Scope, given: Collection[Feedback], *, stones: Sequence[Tombstone]
) -> None:
    """Count feedback. The caller holds off a forget of the owner, whose tombstones `stones` has.

    Feedback may arrive before the episode that it is about. After an erasure only what exists is counted: no row
    remains of something forgotten.
    """
    more = Counter(id_ for each in given for id_ in set(each.helpful))
    less = Counter(id_ for each in given for id_ in set(each.unhelpful))
    named = {*more, *less}
    await store.hold(tx, owner, "feedback")
    if any(stone.owner == owner for stone in stones):
        named = await _existing(store, tx, owner, named)
    before, now = await counts(store, tx, owner, named), await store.now(tx)
    rows = []
    for id_ in sorted(named):
        count = before.get(id_, FeedbackCount())
        helpful, unhelpful = count.helpful + more[id_], count.unhelpful + less[id_]
        content = orjson.dumps({"helpful": helpful, "unhelpful": unhelpful}).decode()
        rows.append(StoredItem(name=feedback_name(id_), content=content, created_at=now, updated_at=now))
    await store.put_items(tx, owner, rows)


async def _existing(store: Store, tx: Transaction, owner: Scope, ids: Iterable[UUID]) -> set[UUID]:
    asked = list(ids)
    known: set[UUID] = {each.id for each in await store.episodes(tx, owner, [EpisodeId(each) for each in asked])}
    for id_ in asked:
        if id_ not in known and await store.fact(tx, owner, FactId(id_)) is not None:
            known.add(id_)
    return known


def _read(row: StoredItem) -> FeedbackCount:
    content = orjson.loads(row.content)
    return FeedbackCount(helpful=content["helpful"], unhelpful=content["unhelpful"])
