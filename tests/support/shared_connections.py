"""A proxy before a server of MongoDB's protocol that takes few connections: clients share some of its connections."""

import asyncio
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

CONNECTIONS = 4


class _SharedConnections:
    """Requests and answers have no state in their connection, so each request may take any."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        # asyncio drops its reference to the task of a connection that is lost. The garbage collector would then end the
        # task before the answer of the server is read, and the next request would get that answer.
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self, opened: "Future[str]", ended: asyncio.Event) -> None:
        for _ in range(CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection(self._host, self._port))
        server = await asyncio.start_server(self._start, "127.0.0.1", 0)
        opened.set_result(":".join(map(str, server.sockets[0].getsockname())))
        await ended.wait()
        server.close()
        while not self._free.empty():
            self._free.get_nowait()[1].close()

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _message(reader)
                upstream = await self._free.get()
                try:
                    upstream[1].write(request)
                    answer = await _message(upstream[0])
                finally:
                    self._free.put_nowait(upstream)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(struct.unpack("<i", length)[0] - 4)


@contextmanager
def sharing_connections(address: str) -> Iterator[str]:
    """The address of a proxy to `address`, which serves from a thread of its own."""
    host, _, port = address.rpartition(":")
    opened: Future[str] = Future()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        running.append((asyncio.get_running_loop(), asyncio.Event()))
        await _SharedConnections(host, int(port)).run(opened, running[0][1])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    try:
        yield opened.result(10)
    finally:
        running[0][0].call_soon_threadsafe(running[0][1].set)
        thread.join(10)
