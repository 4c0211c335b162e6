"""The courier of a store of one process: it runs while deliveries wait."""

import asyncio
from dataclasses import dataclass, field

from aftermind.db import webhook_deliveries_inmemory as rows
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.events.types import MemoryEvent
from aftermind.outbox.single_background_task import OneTask
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

SHORTEST_SECONDS, LONGEST_SECONDS = 0.02, 0.1  # between checks whether a post is due, or the store is closed


@dataclass(slots=True)
class InProcessCourier:
    """Posts the events of a database to webhooks while any of them waits."""

    db: MemoryDatabase
    settings: Settings
    _task: OneTask = field(default_factory=OneTask)
    _is_closing: bool = False
    _is_woken: bool = False
    _is_empty: bool = False

    def note(self, tx: Transaction, event: MemoryEvent) -> None:
        """Add the deliveries of a stored event to its transaction, and post them after the commit."""
        if event.cursor is not None and rows.add_deliveries(tx, event.scope.owner, int(event.cursor), event.event):
            tx.after_commit.append(self.wake)

    def wake(self) -> None:
        """Post what waits, in the background."""
        self._is_closing, self._is_woken = False, True
        self._task.start(self._deliver)

    async def close(self) -> None:
        """Let running posts end; what waits stays with the store."""
        self._is_closing = True
        await self._task.wait()

    async def _deliver(self) -> None:
        try:
            while self._is_woken and not self._is_closing:  # again if an event was added after the last check
                self._is_woken = False
                async with self.db.transaction(read_only=True) as tx:
                    self._is_empty = rows.next_due(tx) is None
                if not self._is_empty:
                    from aftermind.api import webhook_courier  # it loads an HTTP client

                    await webhook_courier.run(self, until=self._is_over, pause=self._pause, rows=rows)
        except Exception:  # the edge of a background task; the next event starts it again, and no row is lost
            log.exception("delivery to webhooks stopped")

    def _is_over(self) -> bool:
        return self._is_empty or self._is_closing

    async def _pause(self, seconds: float) -> None:
        """Wait until the next post may begin, in short steps; see whether any is left."""
        async with self.db.transaction(read_only=True) as tx:
            due, now = rows.next_due(tx), self.db.now()
        self._is_empty = due is None
        if due is not None:
            wait = (due - now).total_seconds()
            await asyncio.sleep(min(seconds, LONGEST_SECONDS, max(SHORTEST_SECONDS, wait)))
