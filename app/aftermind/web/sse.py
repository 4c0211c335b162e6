"""Server-sent events: the response that sends a listener's pieces, and its end when the process stops.

Starlette's streaming response runs a task group of two tasks for each connection, and FastAPI's adds two streams and a
third task. With thousands of idle listeners these dominate the cost. This response uses the request's task and one that
waits for the client to disconnect.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aftermind import errors
from aftermind.web.event_fanout import StreamConnection

SEND_SECONDS = 30.0  # a client that takes nothing for so long is cut off
HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold pieces back
}


class EventStream(Response):
    """A listener's pieces as `text/event-stream`, after the first one, which has been fetched already."""

    media_type = "text/event-stream"

    def __init__(self, listener: StreamConnection, first: bytes) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._listener, self._first = listener, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For ASGI."""
        gone = asyncio.get_running_loop().create_task(self._until_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._piece(send, self._first)
            async for piece in self._listener.pieces():
                await self._piece(send, piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, OSError, errors.Unavailable):
            pass  # an unterminated response closes the connection; the client has its last id
        finally:
            self._listener.leave()
            gone.cancel()

    async def _piece(self, send: Send, piece: bytes) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _until_disconnected(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._listener.end()


@contextmanager
def before_stopping(call: Callable[[], None]) -> Iterator[None]:
    """Run `call` on the running loop at SIGTERM or SIGINT, in addition to the server's handler.

    A server waits for its connections to end before it notifies the application; streams never end by themselves.
    """
    loop = asyncio.get_running_loop()
    found: dict[int, Any] = {}  # Any: as `signal` has them

    def told(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(call)
        before = found[number]
        if callable(before):
            before(number, frame)

    if threading.current_thread() is not threading.main_thread():  # other threads do not handle signals
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        found[number] = signal.getsignal(number)
        signal.signal(number, told)
    try:
        yield
    finally:
        for which, before in found.items():
            if signal.getsignal(which) is told:
                signal.signal(which, before)
