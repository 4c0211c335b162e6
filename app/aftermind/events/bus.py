"""`EventBus`: events stored with their effects, published live over Redis, and replayed from the stored events.

Pub/sub loses events without a listener. Therefore each event has a number per owner; a subscriber that misses one reads
the stored events from there, and drops numbers that it has already received.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson

from aftermind import errors
from aftermind.db import event_log
from aftermind.db.database_protocol import Database, Transaction, Watermark
from aftermind.db.event_log import EventRow
from aftermind.events.deduplication import EarlyEvents
from aftermind.events.mark_published import Marking
from aftermind.events.pubsub import ChannelListener, Listeners
from aftermind.events.types import MemoryEvent, MemoryGap, from_json, is_cursor
from aftermind.freshness import WatermarkDelivery
from aftermind.telemetry.logger import get_logger
from aftermind.types import Scope
from aftermind.wire.redis.client import RedisLink, run_all, shard_of, split_shards
from aftermind.wire.redis_keys import Keys
from aftermind.wire.watermark import Watermarks

log = get_logger(__name__)

PAGE_EVENTS = 500  # events of one read of the record
RELAY_AGE = timedelta(seconds=1)  # a worker publishes its events within milliseconds
POLL_SECONDS = 1.0  # between reads of the stored events while Redis is down


class EventBus:
    """Events of the store in `database`, published over `link`'s Redis. The first call connects.

    Published events are marked together every `mark_after` seconds; 0: each one immediately. See `Marking`.
    """

    def __init__(self, database: Database, link: RedisLink, keys: Keys, *, mark_after: float = 0.0) -> None:
        self._database, self._link, self._keys = database, link, keys
        self._listeners = {each: Listeners(each) for each, _ in split_shards(link, keys)}
        self._marking = Marking(database, after=mark_after)
        self.unreadable = 0  # rows and messages that were no event
        self._delivery = WatermarkDelivery(database, Watermarks(link, keys))

    async def append(self, tx: Transaction, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Store events in the effect's transaction; returns them with their cursors, to be published after the
        commit.
        """
        rows = [EventRow(owner=event.scope.owner, id=event.id, event=event.to_json()) for event in events]
        kept = await event_log.append(tx, rows)
        return [replace(event, cursor=str(row.cursor)) for event, row in zip(events, kept, strict=True)]

    async def publish(self, events: Sequence[MemoryEvent], watermark: Watermark | None = None) -> None:
        """Publish committed events, or live-only ones (no cursor); stored ones are marked as published.

        Raises `RedisUnavailable` or `StoreUnavailable`; the relay publishes the rest.
        """
        await self._marking.note(await self._publish_all(events, watermark))

    async def relay(self, *, limit: int = PAGE_EVENTS) -> int:
        """Publish what its worker did not; how many rows were handled. Called by the reconciler.

        A row is passed on as it is: an event of a kind that only a later release has reaches that release's listeners.
        One that is no event at all is marked and counted in `unreadable`, and holds up no other.
        The watermarks are raised first: the worker that wrote the events may have ended before it did.
        """
        async with self._database.transaction(read_only=True) as tx:
            rows = await event_log.unpublished(tx, older_than=RELAY_AGE, limit=limit)
        if rows:
            watermark = await self._database.watermark()  # after the read, so that it covers what was read
            shards: dict[RedisLink, list[EventRow]] = {}
            for row in rows:
                shards.setdefault(shard_of(self._link, self._keys, row.owner)[0], []).append(row)
            await run_all(self._relay(some, watermark) for some in shards.values())
        return len(rows)

    async def _relay(self, rows: Sequence[EventRow], watermark: Watermark | None) -> None:
        await self._delivery.deliver({row.owner for row in rows}, (), watermark)
        mark = None if watermark is None else watermark.encode()
        await asyncio.gather(*(self._pass_on(row, mark) for row in rows))
        await self._marking.mark(rows)

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete published events older than the age; returns their number."""
        async with self._database.transaction() as tx:
            return await event_log.prune(tx, older_than=older_than, limit=limit)

    async def subscribe(self, owner: Scope, *, after: str | None = None) -> AsyncGenerator[MemoryEvent, None]:
        """The owner's events in order, each one once; first those after the cursor `after`, if given.

        A `MemoryGap` replaces events that retention deleted before they were read, at the start or later. While Redis
        does not answer, the stored events are read once a second. While Postgres does not answer, the stream waits and
        resumes after its last event. Ends with the loop over it. Raises `StoreUnavailable` if Postgres does not answer
        at the start.
        """
        owner = owner.owner
        link, keys = shard_of(self._link, self._keys, owner)
        async with self._listeners[link].listening(keys.events(owner)) as listener:
            seen, _ = await self._start(owner, after)
            is_behind = after is not None
            early = EarlyEvents()
            while True:
                if is_behind:
                    try:
                        async with aclosing(self._record(owner, seen)) as record:
                            async for event in record:
                                seen = int(event.cursor or seen)
                                if early.is_new(event):
                                    yield event
                    except errors.Unavailable as exc:
                        log.info("events wait for the store", extra={"reason": str(exc)})
                        await asyncio.sleep(POLL_SECONDS)
                        continue
                told, is_behind = await self._next(listener, owner, seen)
                if told is not None:
                    seen = seen if told.cursor is None else int(told.cursor)
                    if early.is_new(told):
                        yield told

    async def past(self, owner: Scope, *, after: str, limit: int = PAGE_EVENTS) -> list[MemoryEvent]:
        """The owner's kept events after a cursor, oldest first; a `MemoryGap` first where some are too old to be had.

        Raises `InvalidQuery` and `StoreUnavailable`.
        """
        owner = owner.owner
        found: list[MemoryEvent] = []
        seen, _ = await self._start(owner, after)
        async with aclosing(self._record(owner, seen)) as record:
            async for event in record:
                found.append(event)
                if len(found) >= limit:
                    break
        return found

    async def last(self, owner: Scope) -> str:
        """The cursor of the owner's newest event. Raises `StoreUnavailable`."""
        async with self._database.transaction(namespace=owner.namespace, read_only=True) as tx:
            return str((await event_log.state(tx, owner.owner))[0])

    async def close(self) -> None:
        """Close the subscription's connection of the running loop, and mark published events."""
        for listeners in self._listeners.values():
            await listeners.close()
        await self._marking.close()

    async def _start(self, owner: Scope, after: str | None) -> tuple[int, int]:
        async with self._database.transaction(namespace=owner.namespace, read_only=True) as tx:
            last, pruned = await event_log.state(tx, owner)
        if after is None:
            return last, pruned
        if not is_cursor(after):
            raise errors.InvalidQuery("after", after, "it must be the `cursor` of an event.")
        return min(int(after), last), pruned

    async def _record(self, owner: Scope, seen: int) -> AsyncGenerator[MemoryEvent]:
        """What is kept after `seen`; a `MemoryGap` first if some of it was pruned."""
        while True:
            async with self._database.transaction(namespace=owner.namespace, read_only=True) as tx:
                rows = await event_log.after(tx, owner, seen, limit=PAGE_EVENTS)
                is_whole = bool(rows) and rows[0].cursor == seen + 1  # numbers have no holes but pruned ones
                pruned = seen if is_whole else (await event_log.state(tx, owner))[1]
            if pruned > seen:
                seen = pruned
                yield MemoryGap(scope=owner, at=datetime.now(UTC), cursor=str(pruned))
            mark = (await self._database.watermark()) if rows else None
            if not all(row.is_published for row in rows):
                await self._delivery.deliver_or_outlast([owner], ())
            for row in rows:
                try:
                    event = _event(row)
                except errors.UnknownPayload as exc:  # of a later release, or no event: passed over
                    self._skipped(owner, exc)
                else:
                    yield replace(event, watermark=None if mark is None else mark.encode())
                seen = row.cursor or seen
            if len(rows) < PAGE_EVENTS:
                return

    async def _next(self, listener: ChannelListener, owner: Scope, seen: int) -> tuple[MemoryEvent | None, bool]:
        """The next published event; or a signal to read the stored events, because one was missed."""
        told = await listener.next(POLL_SECONDS)
        if told is None:
            return None, listener.is_deaf
        try:
            event = _decode(told, owner)
        except errors.UnknownPayload as exc:
            self._skipped(owner, exc)
            return None, False
        number = None if event.cursor is None else int(event.cursor)
        if number is not None and number <= seen:
            return None, False  # published twice
        if number is not None and number > seen + 1:
            return None, True
        return event, False

    async def _publish_all(self, events: Sequence[MemoryEvent], watermark: Watermark | None) -> list[EventRow]:
        """Publish them; returns the rows of stored ones."""
        mark = None if watermark is None else watermark.encode()
        told = [replace(event, watermark=event.watermark or mark) for event in events]
        await asyncio.gather(*(self._publish_one(event) for event in told))
        return [_row(event) for event in told if event.cursor is not None]

    async def _pass_on(self, row: EventRow, watermark: str | None) -> None:
        if not isinstance(row.event, Mapping):
            self._skipped(row.owner, errors.UnknownPayload("event", type(row.event).__name__))
            return
        event = {**row.event, "cursor": str(row.cursor), "watermark": watermark}
        await self._send(row.owner, orjson.dumps(event))

    def _skipped(self, owner: Scope, exc: errors.UnknownPayload) -> None:
        self.unreadable += 1
        log.warning("event not understood", extra={"namespace": owner.namespace, "error": str(exc)})

    async def _publish_one(self, event: MemoryEvent) -> None:
        await self._send(event.scope.owner, orjson.dumps(event.to_json()))

    async def _send(self, owner: Scope, message: bytes) -> None:
        link, keys = shard_of(self._link, self._keys, owner)
        await link.call("PUBLISH", keys.events(owner), message)


def _row(event: MemoryEvent) -> EventRow:
    return EventRow(owner=event.scope.owner, id=event.id, event={}, cursor=int(event.cursor or 0))


def _event(row: EventRow) -> MemoryEvent:
    return replace(from_json(row.event), cursor=str(row.cursor))


def _decode(message: bytes, owner: Scope) -> MemoryEvent:
    """A message of the owner's channel as an event. Raises `UnknownPayload` for anything else than one of theirs."""
    try:
        event = from_json(orjson.loads(message))
    except orjson.JSONDecodeError as exc:
        raise errors.UnknownPayload("event", "none: it is not JSON") from exc
    if event.scope.owner != owner:
        raise errors.UnknownPayload("event", f"{event.event} of another owner")
    return event
