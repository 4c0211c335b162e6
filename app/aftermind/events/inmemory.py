"""`LocalBus`: events of one store, stored with their effects and delivered to tasks and threads of its processes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from aftermind import errors
from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.db.inmemory_database import MemoryDatabase, mem
from aftermind.db.record_store_journals.row_codec import Table
from aftermind.events.deduplication import EarlyEvents
from aftermind.events.types import MemoryEvent, MemoryGap, from_json, is_cursor
from aftermind.types import Json, Scope

MAX_KEPT_EVENTS = 10_000  # events of an owner; a cursor before them gets a gap
MAX_QUEUED_EVENTS = 1_000
POLL_SECONDS = 0.1  # between checks for events of other processes
LAST = "last"  # the key of an owner's counter
TABLES = {
    "events": Table(int, dict[str, Json], to_json=MemoryEvent.to_json, from_json=from_json),
    "event_counters": Table(str, int),
}


class LocalBus:
    """Events of a `MemoryDatabase`, as `EventBus` has them of Postgres and Redis."""

    unreadable = 0  # events never leave this process, so none can be

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._listeners: dict[Scope, set[_Listener]] = {}
        self.on_append: Callable[[Transaction, MemoryEvent], None] = lambda tx, event: None  # in the same transaction

    async def append(self, tx: Transaction, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Keep events in the effect's transaction; the same with their cursors."""
        kept = []
        for event in events:
            run, counters = mem(tx), await mem(tx).owned("event_counters", event.scope)
            rows = await run.owned("events", event.scope)
            run.put(counters, LAST, counters.get(LAST, 0) + 1)
            kept.append(replace(event, cursor=str(counters[LAST])))
            run.put(rows, counters[LAST], kept[-1])
            run.drop(rows, counters[LAST] - MAX_KEPT_EVENTS)
            self.on_append(tx, kept[-1])
        return kept

    async def publish(self, events: Sequence[MemoryEvent], watermark: Watermark | None = None) -> None:
        """Publish committed events, or live-only ones."""
        for event in events:
            for listener in list(self._listeners.get(event.scope.owner, ())):
                with suppress(RuntimeError):  # its loop has ended
                    listener.loop.call_soon_threadsafe(listener.hear, event)

    async def relay(self, *, limit: int = 500) -> int:
        """Nothing to do: publishing cannot fail here."""
        return 0

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Nothing to do: the record is bounded by itself."""
        return 0

    async def subscribe(self, owner: Scope, *, after: str | None = None) -> AsyncGenerator[MemoryEvent, None]:
        """The owner's events in order, each one once; first those after the cursor `after`, if given.

        A slow subscriber reads missed events from the stored ones. A `MemoryGap` replaces events that are no longer
        stored.
        """
        owner = owner.owner
        listener = _Listener(asyncio.get_running_loop())
        self._listeners.setdefault(owner, set()).add(listener)
        try:
            early = EarlyEvents()
            seen = int(await self.last(owner))
            if after is not None and is_cursor(after):  # another one is refused below
                seen = min(seen, int(after))
            is_behind = after is not None
            while True:
                if is_behind:
                    for event in await self._read_kept(owner, after if after is not None else str(seen)):
                        seen = int(event.cursor or seen)
                        if early.is_new(event):
                            yield event
                    after = None
                heard, is_behind = await self._next(listener, owner, seen)
                if heard is not None:
                    seen = seen if heard.cursor is None else int(heard.cursor)
                    if early.is_new(heard):
                        yield heard
        finally:
            self._listeners[owner].discard(listener)

    async def past(self, owner: Scope, *, after: str, limit: int = 500) -> list[MemoryEvent]:
        """The owner's stored events after a cursor, oldest first; a `MemoryGap` first if some were deleted."""
        return (await self._read_kept(owner.owner, after))[:limit]

    async def last(self, owner: Scope) -> str:
        """The cursor of the owner's newest event."""
        async with self._database.transaction(read_only=True) as tx:
            return str((await mem(tx).owned("event_counters", owner)).get(LAST, 0))

    async def close(self) -> None:
        """Nothing to close."""

    async def _next(self, listener: "_Listener", owner: Scope, seen: int) -> tuple[MemoryEvent | None, bool]:
        """As `_Listener.next`; events of other processes are found by reading the counter."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if self._database.is_shared else None):
                    return await listener.next(seen)
            if int(await self.last(owner)) > seen:
                return None, True

    async def _read_kept(self, owner: Scope, after: str | None) -> list[MemoryEvent]:
        if after is None:
            return []
        if not is_cursor(after):
            raise errors.InvalidQuery("after", after, "it must be the `cursor` of an event.")
        async with self._database.transaction(read_only=True) as tx:
            kept: list[MemoryEvent] = list((await mem(tx).owned("events", owner)).values())
        later = [event for event in kept if int(event.cursor or 0) > int(after)]
        if later and int(later[0].cursor or 0) > int(after) + 1:
            gap = MemoryGap(scope=owner, at=datetime.now(UTC), cursor=str(int(later[0].cursor or 0) - 1))
            return [gap, *later]
        return later


class _Listener:
    """The events of one subscriber that it has not read yet; all methods are for its own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[MemoryEvent] = deque()
        self._woken = asyncio.Event()
        self._has_missed = False

    def hear(self, event: MemoryEvent) -> None:
        """One more event; one that does not fit is missed."""
        if len(self._waiting) < MAX_QUEUED_EVENTS:
            self._waiting.append(event)
        else:
            self._has_missed = True
        self._woken.set()

    async def next(self, seen: int) -> tuple[MemoryEvent | None, bool]:
        """The next event after `seen`; or None, and whether the record has to be read because some were missed."""
        while not self._waiting and not self._has_missed:
            self._woken.clear()
            await self._woken.wait()
        if not self._waiting:
            self._has_missed = False
            return None, True
        event = self._waiting.popleft()
        if event.cursor is None:
            return event, False
        number = int(event.cursor)
        return (event if number == seen + 1 else None), number > seen + 1
