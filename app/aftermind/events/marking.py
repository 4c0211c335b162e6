"""Which events have been told: noted in their rows, so that the relay leaves them alone."""

import asyncio
import logging
from collections.abc import Sequence

from aftermind import errors
from aftermind.db import event_log
from aftermind.db.base import Database
from aftermind.db.event_log import EventRow

log = logging.getLogger(__name__)


class Marking:
    """Notes told events at once, or once for all of the next `after` seconds, in one transaction instead of many.

    What a process that is killed meanwhile has not noted, the relay tells again; whoever hears it drops what it has
    seen. So `after` must be well below the age from which the relay tells. With `after`, of one running loop alone.
    """

    def __init__(self, database: Database, *, after: float = 0.0) -> None:
        self._database, self._after = database, after
        self._waiting: list[EventRow] = []
        self._task: asyncio.Task[None] | None = None

    async def note(self, rows: Sequence[EventRow]) -> None:
        """They have been told. Raises `StoreUnavailable` where it is noted at once."""
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
        # Of several tenants: a worker's batch, whose role may mark them all at once.
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
            log.warning("left for later", extra={"what": "note told events", "error": str(exc)})
