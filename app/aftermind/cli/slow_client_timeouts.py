"""HTTP/1.1 connections with deadlines: a client that sends or reads too slowly is disconnected.

uvicorn bounds the time between requests (`timeout_keep_alive`) and nothing else: a connection that never finishes its
headers or its body stays open, and so does one that never reads its answer. Based on h11: uvicorn's protocol for
httptools bounds neither headers nor trailers.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MESSAGE = (
    b'{"type":"urn:problem-type:http-408","title":"Request timeout","status":408,'
    b'"detail":"the client took too long to send the request."}'
)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a deadline for headers, one for the body and one for reading the answer."""

    header_seconds = 10.0
    body_seconds = 60.0
    read_seconds = 30.0

    _receiving: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _phase: str = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._enter("headers")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every deadline."""
        self._enter("")
        self._stop_reading_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Move on to the deadline of the request's part that is missing now."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Between requests uvicorn's own keep-alive deadline is in force."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """The client reads slower than the answer is written."""
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self._stop_reading_deadline()

    def _follow(self) -> None:
        if self.transport.is_closing():
            self._enter("")
        elif self.conn.their_state is h11.SEND_BODY:
            self._enter("body")
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._enter("headers")
        else:
            self._enter("")

    def _enter(self, phase: str) -> None:
        """A deadline runs from the begin of its phase: bytes that trickle in do not extend it."""
        if phase == self._phase:
            return
        self._phase = phase
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None
        if phase:
            seconds = self.header_seconds if phase == "headers" else self.body_seconds
            self._receiving = self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._receiving = None
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=MESSAGE),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _stop_reading_deadline(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def protocol_class(*, header_seconds: float, body_seconds: float) -> type[asyncio.Protocol]:
    """The protocol with these deadlines; uvicorn takes a class."""
    deadlines: dict[str, Any] = {"header_seconds": header_seconds, "body_seconds": body_seconds}  # Any: a namespace
    return type("Deadlines", (TimedProtocol,), deadlines)
