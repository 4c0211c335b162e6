"""Commit an effect of an API call, so that every later recall reads it: read your writes."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aftermind.db.database_protocol import Database, Transaction
from aftermind.freshness.watermark_redelivery import WatermarkDelivery
from aftermind.types import Scope

T = TypeVar("T")


class EffectCommitter:
    """Commits effects of one database; `delivery` None: there is no replica that could lag."""

    def __init__(self, db: Database, delivery: WatermarkDelivery | None = None) -> None:
        self._db, self._delivery = db, delivery

    async def commit(self, owner: Scope, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Commit `work` for an owner; a recall that follows sees it, whichever replica serves.

        Takes up to `LONGEST_WAIT_SECONDS` longer while Redis does not answer.
        """
        rows: list[int] = []
        async with self._db.transaction(namespace=owner.namespace) as tx:
            result = await work(tx)
            if self._delivery is not None:
                rows = await self._delivery.add(tx, [owner])
        if self._delivery is not None:
            await self._delivery.deliver_or_outlast([owner], rows)
        return result
