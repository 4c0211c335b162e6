"""`Feeds`: receive an owner's events once per process, serialise them once, and pass them to all listeners.

Each listener has a bounded queue. It first reads the stored events from its cursor to the position of the feed, then
consumes its queue, so that no event is missed. A listener with a full queue is disconnected; it can resume after the
last number that it received.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

import orjson

from aftermind import errors
from aftermind.events.types import MemoryEvent, MemoryGap
from aftermind.memory import Memory
from aftermind.telemetry.logger import get_logger
from aftermind.types import Scope
from aftermind.types.api_key import ApiKey

log = get_logger(__name__)

QUEUE_FRAMES = 256  # waiting for a listener that takes nothing; frames are shared by all listeners of an owner
# concurrent reads of stored events: after a restart thousands of clients reconnect, and wait here instead of at the
# pool
READERS = 4
TURN_FRAMES = 32  # after which a feed lets its listeners have a turn of the loop
RETRY_SECONDS = 1.0  # after which a feed whose store does not answer is tried again
HEARTBEAT_SECONDS = 15.0  # between comments: shorter than what proxies close a silent connection after
HEARTBEAT_GROUPS = 15  # groups of listeners that are woken for it one after the other
KEY_CHECK_SECONDS = 5.0  # between two checks of the listeners' API keys
KEY_LIST_SECONDS = 1.0  # for those of one namespace: a database that hangs must not delay the others
CONNECTION_SECONDS = 900.0  # then a listener has to connect again: the load spreads over new processes
RETRY_MS = 1_000  # how long a browser waits before it comes again

HEARTBEAT = b": still here\n\n"
SLOW_CONSUMER = b": too slow, reconnect with Last-Event-ID\n\n"


class OwnerArguments(TypedDict):
    """The keyword arguments of `Memory` that name the owner."""

    user_id: str | None
    namespace: str


@dataclass(frozen=True, slots=True)
class EventFrame:
    """One serialised event; `number` is its position among the stored events, None for live-only events."""

    number: int | None
    wire: bytes

    @classmethod
    def of(cls, event: MemoryEvent) -> "EventFrame":
        """Serialise an event. JSON contains no raw line breaks, so one `data:` line is enough."""
        name = "gap" if isinstance(event, MemoryGap) else event.event
        mark = "" if event.cursor is None else f"id: {event.cursor}\n"
        wire = f"event: {name}\n{mark}data: ".encode() + orjson.dumps(event.to_json()) + b"\n\n"
        return cls(None if event.cursor is None else int(event.cursor), wire)


class Feed:
    """The events of one owner, from the first listener to the last. `at` is the number of the newest one heard."""

    def __init__(self, memory: Memory, owner: Scope, gate: asyncio.Semaphore) -> None:
        self._memory, self._named = memory, OwnerArguments(user_id=owner.user_id, namespace=owner.namespace)
        self._gate = gate
        self.listeners: set[StreamConnection] = set()
        self.at = 0
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def record(self, seen: int, upto: int) -> AsyncIterator[EventFrame]:
        """The frames that are kept after a number, up to another."""
        while seen < upto:
            async with self._gate:
                found = await self._memory.past_events(**self._named, after=str(seen))
            for event in found:
                yield EventFrame.of(event)
                seen = int(event.cursor or seen)
            if not found:  # the rest has been forgotten
                return

    async def _run(self) -> None:
        try:
            async with self._gate:
                self.at = int(await self._memory.event_cursor(**self._named))
        except Exception as exc:  # of whatever kind: each listener of this feed raises it as its own
            self.begun.set_exception(exc)
            self.begun.exception()  # retrieve the exception, also if every listener has left
            return
        self.begun.set_result(None)
        heard = 0
        while True:
            try:
                async for event in self._memory.events(**self._named, after=str(self.at)):
                    frame = EventFrame.of(event)
                    self.at = self.at if frame.number is None else frame.number
                    for listener in self.listeners:
                        listener.put(frame)
                    heard += 1
                    # a page of stored events arrives in one burst: let the listeners drain their queues
                    if heard % TURN_FRAMES == 0:
                        await asyncio.sleep(0)
            except errors.Unavailable as exc:
                log.info("a feed waits for its store", extra={"error": str(exc)})
            except Exception:  # a feed that ended unnoticed would send heartbeats only: its listeners reconnect
                log.exception("a feed failed")
                for listener in tuple(self.listeners):
                    listener.end()
            await asyncio.sleep(RETRY_SECONDS)


class StreamConnection:
    """One connection and its queue of frames. `open` it, iterate `pieces`, and `leave` whatever happens.

    `is_over`: no more frames will come; `is_full`: because the queue was full.
    """

    def __init__(self, feeds: "Feeds", owner: Scope, after: int | None, key: ApiKey | None) -> None:
        self._feeds, self._owner, self._after, self.key = feeds, owner, after, key
        self._frames: deque[EventFrame] = deque()
        # Set without a frame for a heartbeat: a separate timer for each wait would dominate the cost.
        self.woken = asyncio.Event()
        self.is_over = self.is_full = False
        self._feed = feeds.enter(owner, self)

    async def open(self) -> bytes:
        """The first piece: the current position, so that a client that is disconnected before any event can resume.

        Raises `StoreUnavailable`.
        """
        await asyncio.shield(self._feed.begun)
        self._upto = self._feed.at  # later events are in the queue
        self._seen = self._upto if self._after is None else min(self._after, self._upto)
        return f"retry: {RETRY_MS}\nid: {self._seen}\n\n".encode()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What is sent, until the listener has been there long enough, is too slow, or the process stops."""
        async for frame in self._feed.record(self._seen, self._upto):
            self._seen = frame.number or self._seen
            yield frame.wire
        clock = asyncio.get_running_loop().time
        # spread, so that clients do not all reconnect in the same second
        until = clock() + CONNECTION_SECONDS * random.uniform(0.8, 1.2)
        while not self.is_over and clock() < until:
            fresh = []
            for frame in await self._take():
                if frame.number is None or frame.number > self._seen:
                    self._seen = frame.number or self._seen
                    fresh.append(frame.wire)
            if fresh:
                yield b"".join(fresh)
            elif not self.is_over:
                yield HEARTBEAT
        if self.is_full:
            yield SLOW_CONSUMER

    def put(self, frame: EventFrame) -> None:
        """Add a frame. If the queue is full, end the connection; the client reads the rest from the stored events."""
        if len(self._frames) >= QUEUE_FRAMES:
            self.is_full = True
            self.end()
        elif not self.is_over:
            self._frames.append(frame)
            self.woken.set()

    def end(self) -> None:
        """Send no more frames: the client has left, or has to connect again."""
        self.is_over = True
        self._frames.clear()
        self.woken.set()

    def leave(self) -> None:
        """Give back the place; safe to repeat."""
        self._feeds.leave(self._owner, self)

    async def _take(self) -> list[EventFrame]:
        """All waiting frames; none at a heartbeat, or if the connection is over."""
        if not self._frames and not self.is_over:
            self.woken.clear()
            await self.woken.wait()
        taken = list(self._frames)
        self._frames.clear()
        return taken


class Feeds:
    """All feeds of one process and their listeners, at most `most`."""

    def __init__(self, memory: Memory, *, most: int) -> None:
        self._memory, self._most = memory, most
        self._feeds: dict[Scope, Feed] = {}
        self._gate = asyncio.Semaphore(READERS)
        self._groups: tuple[set[StreamConnection], ...] = tuple(set() for _ in range(HEARTBEAT_GROUPS))
        self._tasks: list[asyncio.Task[None]] = []  # while there are listeners: heartbeats, and checks of keys
        self._is_closed = False
        self.count = 0

    def listen(self, owner: Scope, after: int | None, *, key: ApiKey | None = None) -> StreamConnection:
        """A listener to the owner's events after a number, or from now on (None), while the API key is valid.

        Raises `TooManyListeners`.
        """
        return StreamConnection(self, owner.owner, after, key)

    def enter(self, owner: Scope, listener: StreamConnection) -> Feed:
        """Add a listener to the owner's feed."""
        if self.count >= self._most:
            raise errors.TooManyListeners(self._most)
        feed = self._feeds.get(owner)
        if feed is None:
            feed = self._feeds[owner] = Feed(self._memory, owner, self._gate)
        feed.listeners.add(listener)
        min(self._groups, key=len).add(listener)
        self.count += 1
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._beat()), loop.create_task(self._check_keys())]
        if self._is_closed:
            listener.end()
        return feed

    def leave(self, owner: Scope, listener: StreamConnection) -> None:
        """Remove a listener; with the last one the feed ends."""
        feed = self._feeds.get(owner)
        if feed is None or listener not in feed.listeners:
            return
        feed.listeners.discard(listener)
        for group in self._groups:
            group.discard(listener)
        self.count -= 1
        if not self.count:
            for task in self._tasks:
                task.cancel()
            self._tasks = []
        if not feed.listeners:
            del self._feeds[owner]
            feed.task.cancel()

    def end(self) -> None:
        """Send every listener away, to another process: this one stops."""
        self._is_closed = True
        for feed in self._feeds.values():
            for listener in feed.listeners:
                listener.end()

    async def _beat(self) -> None:
        while True:
            for group in self._groups:
                await asyncio.sleep(HEARTBEAT_SECONDS / HEARTBEAT_GROUPS)
                for listener in group:
                    listener.woken.set()

    async def _check_keys(self) -> None:
        """End the connections whose API key has been revoked or has expired. A failed check ends none."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            keyed = [(each, each.key) for each in self._listeners() if each.key is not None]
            for each, key in keyed:
                if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
                    each.end()
            for namespace in {key.namespace for _, key in keyed}:
                try:
                    async with asyncio.timeout(KEY_LIST_SECONDS):
                        keys = await self._memory.api_keys.list(namespace=namespace)
                except (errors.Unavailable, TimeoutError) as exc:
                    log.info("keys of event streams are not checked", extra={"error": str(exc)})
                except Exception:  # one namespace must not end the checks of the others
                    log.exception("keys of event streams are not checked")
                else:
                    valid = {key.id for key in keys if key.is_valid}
                    for each, key in keyed:
                        if key.namespace == namespace and key.id not in valid:
                            each.end()

    def _listeners(self) -> list[StreamConnection]:
        return [each for group in self._groups for each in group]
