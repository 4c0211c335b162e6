"""A client of server-sent events, as a browser reads them; on a raw socket, so that a test can cut it or not read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 60.0  # seconds for what is to come


@dataclass(slots=True)
class Event:
    """One event as it came: its name, its id and its data."""

    name: str = ""
    id: str | None = None
    data: str = ""

    @property
    def json(self) -> dict[str, Any]:  # Any: JSON
        """The data, read."""
        found: dict[str, Any] = json.loads(self.data)
        return found


@dataclass(slots=True)
class Listening:
    """An open stream. `last_id` is what a browser would send when it comes again."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int
    headers: dict[str, str]
    last_id: str | None = None
    comments: list[str] = field(default_factory=list)

    async def next(self, count: int = 1) -> list[Event]:
        """The next events; fewer where the stream ended."""
        found: list[Event] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                event = await self._event()
                if event is None:
                    break
                if event.data:
                    found.append(event)
        return found

    async def ended(self) -> bool:
        """Read to the end of the stream; raises `TimeoutError` where there is none."""
        async with asyncio.timeout(PATIENCE):
            while await self._event() is not None:
                pass
        return True

    async def _event(self) -> Event | None:
        event = Event()
        while line := await self._line():
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not key:
                self.comments.append(value)
            elif key == "event":
                event.name = value
            elif key == "id":
                event.id = value
            elif key == "data":
                event.data += value
        if line is None:
            return None  # an event without its end does not count
        self.last_id = self.last_id if event.id is None else event.id
        return event

    async def _line(self) -> str | None:
        """One line of the body; None at its end. Chunks of HTTP are never split within a line here."""
        while True:
            raw = await self.reader.readline()
            if not raw:
                return None
            if raw == b"\r\n" or (raw.endswith(b"\r\n") and _is_chunk_size(raw)):
                if raw == b"0\r\n":
                    return None
                continue
            return raw.decode().removesuffix("\n")


def _is_chunk_size(raw: bytes) -> bool:
    try:
        int(raw, 16)
    except ValueError:
        return False
    return True


@asynccontextmanager
async def listening(
    base: str, path: str, *, last_id: str | None = None, headers: dict[str, str] | None = None, buffer: int = 2**16
) -> AsyncIterator[Listening]:
    """A stream of a service, for the block; cut off at its end."""
    at = urlsplit(base)
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=buffer)
    told = {"Host": f"{at.hostname}:{at.port}", "Accept": "text/event-stream", **(headers or {})}
    if at.username is not None:  # a key or a token
        told["Authorization"] = f"Bearer {at.username}"
    if last_id is not None:
        told["Last-Event-ID"] = last_id
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, min(buffer, 2**16))
    writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    try:
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        yield Listening(reader, writer, status=int(head[0].split()[1]), headers=found)
    finally:
        writer.transport.abort()
