"""`WatermarkDelivery`: raises the watermark of each committed effect, at the first attempt or later.

An effect's transaction writes a row (`add`), which is deleted once the watermark was raised. If the process ends in
between, the row stays: the reconciler delivers it, and so does a recall before it trusts a replica
(`freshness.replica_read_lease`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction, Watermark
from aftermind.telemetry.logger import get_logger
from aftermind.types import Scope
from aftermind.wire.redis_keys import TRUST_MS
from aftermind.wire.watermark import Watermarks

log = get_logger(__name__)

# A lease on replicas in force at the commit was taken before it, and has ended by then; the rest is for clocks that do
# not run at the same speed.
LONGEST_WAIT_SECONDS = TRUST_MS / 1000 * 1.05
RETRY_SECONDS = 0.1
LATE = timedelta(seconds=1)  # a row's own process delivers it within milliseconds
PAGE_ROWS = 500  # rows of one transaction


class WatermarkDelivery:
    """Of one primary and one Redis. Usable from any number of tasks.

    `floor` is the latest committed position that this process could not deliver: its own recalls require it of
    replicas.
    """

    def __init__(self, database: Database, watermarks: Watermarks) -> None:
        self._database, self._watermarks = database, watermarks
        self.floor: Watermark | None = None

    async def add(self, tx: Transaction, owners: Iterable[Scope]) -> list[int]:
        """In an effect's transaction: note that the owners' watermarks are to be raised; the ids of the rows."""
        from aftermind.db import undelivered_watermarks

        return await undelivered_watermarks.add(tx, sorted(set(owners), key=_key))

    async def deliver(self, owners: Iterable[Scope], rows: Sequence[int], watermark: Watermark | None = None) -> None:
        """After the COMMIT: raise the watermarks, then delete the rows. Raises `Unavailable`; the rows stay then.

        `watermark` was taken after the commit; None takes one now.
        """
        from aftermind.db import undelivered_watermarks

        owners = list(owners)
        mark = watermark or await self._database.watermark()
        try:
            await self._watermarks.raise_to(mark, owners)
        except errors.RedisUnavailable:
            self._note(mark)
            raise
        if rows:
            with suppress(errors.StoreUnavailable):  # raised twice does no harm
                spaces = {owner.namespace for owner in owners}
                async with self._database.transaction(namespace=spaces.pop() if len(spaces) == 1 else None) as tx:
                    await undelivered_watermarks.delete(tx, rows)

    async def deliver_or_outlast(self, owners: Iterable[Scope], rows: Sequence[int]) -> None:
        """After the COMMIT: return as soon as no recall can miss the effect. Raises nothing.

        That is when the watermarks are raised, or when every lease at the time of the commit has ended: the next one is
        given only to a process that has read the rows.
        """
        owners, committed = list(owners), monotonic()
        while True:
            try:
                await self.deliver(owners, rows)
                return
            except errors.Unavailable as exc:
                left = committed + LONGEST_WAIT_SECONDS - monotonic()
                if left <= 0:
                    log.warning("watermark left to be raised", extra={"error": str(exc)})
                    return
                await asyncio.sleep(min(RETRY_SECONDS, left))

    async def confirm(self, owner: Scope) -> None:
        """What the primary has just shown of an owner is shown by recalls from now on. Raises nothing.

        Without Redis by those of this process alone.
        """
        with suppress(errors.Unavailable):
            await self.deliver([owner], ())

    async def deliver_late(self) -> int:
        """Deliver rows that their own process left behind; how many. Raises `Unavailable`."""
        from aftermind.db import undelivered_watermarks

        async with self._database.transaction(read_only=True) as tx:
            late = await undelivered_watermarks.list_older(tx, older_than=LATE, limit=PAGE_ROWS)
        if late:
            mark = await self._database.watermark()
            await self._watermarks.raise_to(mark, {row.owner for row in late})
            async with self._database.transaction() as tx:
                await undelivered_watermarks.delete(tx, [row.id for row in late])
        return len(late)

    def _note(self, mark: Watermark | None) -> None:
        floor = self.floor
        is_behind = (
            mark is not None
            and floor is not None
            and (mark.system, mark.timeline) == (floor.system, floor.timeline)
            and mark.lsn <= floor.lsn
        )
        if not is_behind:
            self.floor = mark


def _key(owner: Scope) -> tuple[str, str]:
    return owner.namespace, owner.user_column
