"""Counts of feedback, each a row among the user's items; deleted with the episode or fact that it is about."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from uuid import UUID

import orjson

from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import Store, StoredItem
from aftermind.types import Scope
from aftermind.types.feedback import Feedback, FeedbackCount
from aftermind.types.items import feedback_name, from_name


async def counts(store: Store, tx: Transaction, owner: Scope, ids: Iterable[UUID]) -> dict[UUID, FeedbackCount]:
    """The counts of those that have any."""
    found = await store.items(tx, owner, [feedback_name(each) for each in ids])
    return {UUID(from_name(each.name)[1]): _read(each) for each in found}


async def add(
    store: Store,
    tx: Transaction,
    owner: Scope,
    given: Collection[Feedback],
    *,
    may_arrive: Callable[[], Awaitable[bool]],
) -> None:
    """Count feedback about episodes and facts that exist. The caller holds off a forget of the owner.

    Feedback may overtake the turn with the episode that it is about. So if there are unknown ids, `may_arrive` is
    called: whether other accepted turns of the owner are still to be stored. If so, unknown ids are counted as well.
    """
    more = Counter(id_ for each in given for id_ in set(each.helpful))
    less = Counter(id_ for each in given for id_ in set(each.unhelpful))
    named = {*more, *less}
    await store.hold(tx, owner, "feedback")
    known = await store.existing_ids(tx, owner, named)
    if known != named and not await may_arrive():
        # Again: a turn that was stored in between waits no longer.
        named = known | await store.existing_ids(tx, owner, named - known)
    if not named:
        return
    before, now = await counts(store, tx, owner, named), await store.now(tx)
    rows = []
    for id_ in sorted(named):
        count = before.get(id_, FeedbackCount())
        helpful, unhelpful = count.helpful + more[id_], count.unhelpful + less[id_]
        content = orjson.dumps({"helpful": helpful, "unhelpful": unhelpful}).decode()
        rows.append(StoredItem(name=feedback_name(id_), content=content, created_at=now, updated_at=now))
    await store.put_items(tx, owner, rows)


def _read(row: StoredItem) -> FeedbackCount:
    content = orjson.loads(row.content)
    return FeedbackCount(helpful=content["helpful"], unhelpful=content["unhelpful"])
