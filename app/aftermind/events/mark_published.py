"""Marks published events in their rows, so that the relay skips them."""

import asyncio
from collections.abc import Sequence

from aftermind import errors
from aftermind.db import event_log
from aftermind.db.database_protocol import Database
from aftermind.db.event_log import EventRow
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)


class Marking:
    """Marks published events immediately, or once for all of the next `after` seconds, in one transaction instead of
    many.

    If a process is killed before it marks them, the relay publishes them again; listeners drop events that they have
    already received. So `after` must be well below the minimum age of the relay. With `after`, use it from one running
    loop only.
    """

    def __init__(self, database: Database, *, after: float = 0.0) -> None:
        self._database, self._after = database, after
        self._waiting: list[EventRow] = []
        self._task: asyncio.Task[None] | None = None

    async def note(self, rows: Sequence[EventRow]) -> None:
        """Mark them as published. Raises `StoreUnavailable` if they are marked immediately."""
        if not rows:
            return
        if not self._after:
            await self.mark(rows)
            return
        self._waiting += rows
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._later())

    async def mark(self, rows: Sequence[EventRow]) -> None:
        """Note them now. Raises `StoreUnavailable`."""
        namespaces = {row.owner.namespace for row in rows}
        # Events of several tenants: a worker's batch, whose role may mark them together.
        async with self._database.transaction(namespace=namespaces.pop() if len(namespaces) == 1 else None) as tx:
            await event_log.mark_published(tx, rows)

    async def close(self) -> None:
        """Note what waits."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._marked()

    async def _later(self) -> None:
        await asyncio.sleep(self._after)
        await self._marked()

    async def _marked(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        try:
            await self.mark(rows)
        except asyncio.CancelledError:
            self._waiting = [*rows, *self._waiting]  # twice does no harm
            raise
        except errors.Unavailable as exc:
            log.warning("left for later", extra={"what": "mark published events", "error": str(exc)})
