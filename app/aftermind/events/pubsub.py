"""One Redis connection for all listeners of a loop: subscribed while there are listeners, reconnected automatically."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio.client import PubSub

from aftermind.telemetry.logger import get_logger
from aftermind.wire.redis.client import RedisLink

log = get_logger(__name__)

MAX_QUEUED_EVENTS = 1_000  # messages of a listener that does not keep up; then it is sent to the record
RECONNECT_SECONDS = 0.5
PING_SECONDS = 5.0  # of silence; without an answer for the same time again the connection is lost
CANCEL_SECONDS = 0.1


class ChannelListener:
    """The messages of one channel for one listener. `is_deaf`: something may have been missed; read the record."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._woken = asyncio.Event()
        self._missed = True  # nothing was received before the subscription was confirmed
        self.is_connected = False

    @property
    def is_deaf(self) -> bool:
        """Whether something may have been missed since this was last asked."""
        missed, self._missed = self._missed or not self.is_connected, False
        return missed

    def hear(self, message: bytes) -> None:
        """One more message; what does not fit is missed."""
        if len(self._waiting) < MAX_QUEUED_EVENTS:
            self._waiting.append(message)
        else:
            self._missed = True
        self._woken.set()

    def interrupted(self, *, is_connected: bool) -> None:
        """Called when the connection was lost or restored."""
        self.is_connected = is_connected
        self._missed = True
        self._woken.set()

    async def next(self, seconds: float) -> bytes | None:
        """The next message, or None where something was missed, or none came in `seconds` without a connection.

        While it is connected it waits without a clock: thousands of idle listeners cost no turn of the loop.
        """
        if not self._waiting and not self._missed:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.is_connected else seconds):
                    await self._woken.wait()
        return self._waiting.popleft() if self._waiting else None


class Listeners:
    """The listeners of each running loop, and their one connection."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[ChannelListener]:
        """A listener of the channel for the block. Never waits for Redis: until it answers, the listener is deaf."""
        loop = asyncio.get_running_loop()
        hub = self._hubs.get(loop)
        if hub is None:
            hub = self._hubs[loop] = _Hub(self._link)
        listener = ChannelListener()
        await hub.add(channel, listener)
        try:
            yield listener
        finally:
            await hub.remove(channel, listener)

    async def close(self) -> None:
        """End the running loop's connection."""
        hub = self._hubs.pop(asyncio.get_running_loop(), None)
        if hub is not None:
            await hub.close()


class _Hub:
    """One loop's connection: a task that reads it, and its listeners by channel."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._by_channel: dict[str, set[ChannelListener]] = {}
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None

    async def add(self, channel: str, listener: ChannelListener) -> None:
        is_first = channel not in self._by_channel
        self._by_channel.setdefault(channel, set()).add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._pubsub is not None:
            if is_first:
                await self._quietly(self._pubsub.subscribe(channel))
            else:
                listener.interrupted(is_connected=True)

    async def remove(self, channel: str, listener: ChannelListener) -> None:
        listeners = self._by_channel.get(channel, set())
        listeners.discard(listener)
        if not listeners and self._by_channel.pop(channel, None) is not None and self._pubsub is not None:
            await self._quietly(self._pubsub.unsubscribe(channel))
        if not self._by_channel:
            await self.close()

    async def close(self) -> None:
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()  # again, where the client took one cancellation for a broken connection
            await asyncio.wait([task], timeout=CANCEL_SECONDS)

    async def _run(self) -> None:
        while not _is_cancelled():
            try:
                await self._listen()
            except (exceptions.RedisError, OSError) as exc:
                log.info("events are read from the record", extra={"reason": type(exc).__name__})
            self._report_connection(is_connected=False)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        pubsub = self._link.client().pubsub()
        try:
            await pubsub.subscribe(*self._by_channel)
            self._pubsub, is_asked = pubsub, False
            late = self._by_channel.keys() - {_text(name) for name in pubsub.channels}
            if late:  # listeners that were added during the subscription
                await pubsub.subscribe(*late)
            while not _is_cancelled():
                message = await pubsub.get_message(timeout=PING_SECONDS)
                if message is not None:
                    is_asked = False
                    self._on_message(message)
                elif is_asked:
                    raise exceptions.ConnectionError("no answer to a ping")
                else:  # a connection can be dead without a word
                    is_asked = True
                    await pubsub.ping()
        finally:
            self._pubsub = None
            with suppress(exceptions.RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _on_message(self, message: dict[str, object]) -> None:
        for listener in self._by_channel.get(_text(message["channel"]), ()):
            if message["type"] == "subscribe":
                listener.interrupted(is_connected=True)
            elif message["type"] == "message" and isinstance(message["data"], bytes):
                listener.hear(message["data"])

    def _report_connection(self, *, is_connected: bool) -> None:
        for listeners in self._by_channel.values():
            for listener in listeners:
                listener.interrupted(is_connected=is_connected)

    async def _quietly(self, work: object) -> None:
        with suppress(exceptions.RedisError, OSError):
            await work  # type: ignore[misc]  # redis-py types it as maybe not awaitable


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _is_cancelled() -> bool:
    """Whether this task was cancelled, also where the client took the cancellation for a broken connection."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
