"""Starlette and FastAPI: a user's events as server-sent events, from a route of your application.

Your route authenticates the user as the rest of your application does, so no API key is in the browser.
"""

import asyncio
from collections.abc import AsyncGenerator

import orjson

from aftermind import errors
from aftermind.api.blocking_portal import to_async
from aftermind.events.types import MemoryEvent
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory

with extra("server"):
    from starlette.requests import Request
    from starlette.responses import StreamingResponse

BEAT_SECONDS = 15.0  # a comment is sent after this time without an event, so that proxies keep the connection
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would hold pieces back
MAX_CURSOR_DIGITS = 18  # of a bigint

_endings: set[asyncio.Future[None]] = set()  # of subscriptions; the loop keeps no task alive


def event_response(
    request: Request, memory: Memory | SyncMemory, *, user_id: str | None, namespace: str | None = None
) -> StreamingResponse:
    """The user's events, for `EventSource`. A browser that reconnects gets those that it missed first.

    It sends the `id` of its last event as `Last-Event-ID`; `?after=` is the same for a first connection. Raises
    `InvalidQuery` if that is not the cursor of an event.
    """
    after = request.headers.get("last-event-id") or request.query_params.get("after")
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) <= MAX_CURSOR_DIGITS):
        raise errors.InvalidQuery(
            "after", after, "a cursor, also in the header Last-Event-ID, is the `id` that an event had."
        )
    pieces = _pieces(to_async(memory), user_id, namespace, after)
    return StreamingResponse(pieces, media_type="text/event-stream", headers=HEADERS)


async def _pieces(
    memory: Memory, user_id: str | None, namespace: str | None, after: str | None
) -> AsyncGenerator[bytes, None]:
    cursor = after or await memory.event_cursor(user_id=user_id, namespace=namespace)
    events = memory.events(user_id=user_id, namespace=namespace, after=cursor)
    upcoming: asyncio.Future[MemoryEvent | None] | None = None
    try:
        # Events from here on are sent, also to a browser that is disconnected before the first one.
        yield f"id: {cursor}\n: connected\n\n".encode()
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events, None))
            done, _ = await asyncio.wait({upcoming}, timeout=BEAT_SECONDS)
            if not done:
                yield b":\n\n"
                continue
            event, upcoming = upcoming.result(), None
            if event is None:
                return  # the memory was closed; the browser connects again
            yield _encode(event)
    finally:
        # In a separate task: that of a response whose browser has left is cancelled again at each await.
        ending = asyncio.ensure_future(_end(events, upcoming))
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        await asyncio.wait({ending})


async def _end(events: AsyncGenerator[MemoryEvent, None], upcoming: asyncio.Future[MemoryEvent | None] | None) -> None:
    if upcoming is not None:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
    await events.aclose()


def _encode(event: MemoryEvent) -> bytes:
    number = f"id: {event.cursor}\n" if event.cursor else ""
    return f"{number}event: {event.event}\ndata: ".encode() + orjson.dumps(event.to_json()) + b"\n\n"
