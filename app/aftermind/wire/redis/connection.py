"""One connection to Redis, shared by all tasks of a loop: commands are sent when they arrive, answers return in order.

redis-py's asyncio client spends more time on a call than Redis and the kernel together, and its pool uses a separate
connection for each concurrent call. It is still used for streams and subscriptions.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from aftermind import errors
from aftermind.wire.redis.resp import Answer, ErrorReply, ProtocolError, Reader

# Error codes of Redis for a temporary refusal to write or read.
_REFUSALS = frozenset(
    {
        *("OOM", "READONLY", "LOADING", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM", "MASTERDOWN", "BUSY", "NOREPLICAS"),
        *("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"),
    }
)


# The node was demoted, or has lost its replicas: after a failover the primary is another node, which may have the name
# or the address now that this connection was opened with. MOVED is of a Redis Cluster's node without the slot.
_DEMOTED = ("READONLY", "NOREPLICAS", "MOVED", "CLUSTERDOWN")

Landing = Callable[[Answer, Exception | None], None]  # an answer, or an error


class RedisConnection(asyncio.Protocol):
    """Commands in flight, each with its pending answer.

    If no answer, or no further part of it, arrives for `timeout` seconds, the connection is closed: all commands in
    flight raise `RedisUnavailable`, and may or may not have been executed. The answer to a cancelled caller is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, timeout: float) -> None:
        self._loop, self.timeout = loop, timeout
        self._reader = Reader()
        self._waiting: deque[tuple[Landing, float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._cut: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether a command can be sent."""
        return self._transport is not None

    def send(self, packed: bytes) -> asyncio.Future[Answer]:
        """Write a command now; its answer. A refusal to serve raises `RedisUnavailable`, a wrong command `Bug`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.submit(packed, partial(_settle, future))
        return future

    def submit(self, packed: bytes, landing: Landing) -> None:
        """Write a command now, and call `landing` with its answer or error as it arrives, out of the read itself.

        Saves the two rounds of the loop that a future and its callback cost; `landing` must not raise nor block.
        """
        if self._transport is None:
            landing(None, errors.RedisUnavailable("the connection is closed"))
            return
        deadline = self._loop.time() + self.timeout
        self._waiting.append((landing, deadline))
        self._transport.write(packed)
        if self._watch is None:
            self._watch = self._loop.call_at(deadline, self._poll)

    def close(self, why: str = "the connection was closed") -> None:
        """Cut it; what is in flight raises `RedisUnavailable`."""
        self._cut = self._cut or why
        if self._transport is not None:
            if self._waiting:
                _discard_unsent(self._transport)
            self._transport.abort()
            self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """For asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class

    def data_received(self, data: bytes) -> None:
        """For asyncio."""
        try:
            answers = self._reader.feed(data)
        except (ProtocolError, ValueError) as exc:
            self.close(f"no Redis: {exc}")
            return
        is_demoted = False
        for answer in answers:
            if not self._waiting:
                self.close("an unexpected answer arrived")
                return
            landing = self._waiting.popleft()[0]
            if isinstance(answer, ErrorReply):
                landing(None, _error(answer))
                is_demoted = is_demoted or answer.startswith(_DEMOTED)
            else:
                landing(answer, None)
        if is_demoted:
            self.close("the node takes no writes")
            return
        # a long answer is arriving: it may take longer as long as it progresses
        if self._waiting and self._reader.is_midway:
            self._waiting[0] = self._waiting[0][0], self._loop.time() + self.timeout

    def connection_lost(self, exc: Exception | None) -> None:
        """For asyncio."""
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        why = self._cut or f"the connection was lost ({exc or 'closed by the server'})"
        waiting, self._waiting = self._waiting, deque()
        for landing, _ in waiting:
            landing(None, errors.RedisUnavailable(why))

    def _poll(self) -> None:
        self._watch = None
        if not self._waiting:
            return
        if self._waiting[0][1] <= self._loop.time():
            self.close(f"no answer within {self.timeout:g} s")
        else:
            self._watch = self._loop.call_at(self._waiting[0][1], self._poll)


def _discard_unsent(transport: asyncio.Transport) -> None:
    """Let the kernel drop what the server has not acknowledged.

    Else it sends commands for minutes after they were given up: a turn that was sent again, stored and forgotten in the
    meantime would be accepted once more.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _error(answer: ErrorReply) -> Exception:
    if answer.startswith("ERR Function not found"):
        return UnknownScriptError()
    if answer.split(" ", 1)[0] in _REFUSALS or answer.startswith("ERR max number of clients"):
        return errors.RedisUnavailable(str(answer))
    return errors.Bug(f"Redis: {answer}")


def _settle(future: asyncio.Future[Answer], answer: Answer, error: Exception | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


class UnknownScriptError(Exception):
    """Redis does not have the library of that function: load it."""
