"""A TCP proxy that can delay, swallow or reset what passes: a network with faults, between real programs."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536


class ProxyMode(StrEnum):
    """What happens to the bytes, in both directions."""

    PASS = "pass"
    BLACKHOLE = "blackhole"  # connections stay open and nothing arrives; what was swallowed is gone
    RESET = "reset"  # every connection, old and new, is torn down by RST


class Side(StrEnum):
    """Of which step of a process the cut is."""

    BEFORE = "before"  # the step never reaches the server
    AFTER = "after"  # the server carries it out, and its answer never arrives


class StepCounter:
    """Counts what a process sends through its proxies, and cuts all of them at one step: as if the process ended there.

    A step is a request to Redis, or a statement that Postgres executes (not one that it prepares).
    """

    def __init__(self) -> None:
        self.proxies: list[Proxy] = []
        self.sent = 0
        self.has_ended = False  # whether the connections are torn down
        self._at: int | None = None
        self._side = Side.BEFORE

    @property
    def is_cut(self) -> bool:
        """Whether the step was reached."""
        return self._at is not None and self.sent >= self._at

    def arm(self, at: int, side: Side) -> None:
        """Cut at the step of that number from now on, 1 is the next."""
        self.sent, self._at, self._side = 0, at, side

    def may_pass(self, chunk: bytes, *, is_postgres: bool) -> bool:
        """Count a request; whether it is forwarded."""
        if self.is_cut:
            return False
        if not is_postgres or chunk[:1] in _EXECUTES:
            self.sent += 1
        if self.is_cut and self._side is Side.BEFORE:
            self.cut()
            return False
        return True

    def may_return(self) -> bool:
        """Whether an answer is forwarded."""
        if self.is_cut:
            self.cut()
        return not self.is_cut

    def cut(self) -> None:
        """Tear down every connection of the process, and all that it tries from now on."""
        self.has_ended = True
        for proxy in self.proxies:
            proxy.reset()


_EXECUTES = (b"B", b"E", b"Q")  # Bind or Execute of a prepared statement, or a simple query


class Proxy:
    """Forwards a loopback port to a target; the mode can be changed at any time."""

    def __init__(self, target_host: str, target_port: int, *, steps: StepCounter | None = None) -> None:
        self._target = (target_host, target_port)
        self._steps = steps
        self.is_postgres = False
        if steps is not None:
            steps.proxies.append(self)
        self._mode = ProxyMode.PASS
        self._delay = 0.0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._server is not None, "the proxy is not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen on a free loopback port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Drop every connection and stop listening."""
        self._mode = ProxyMode.RESET
        if self._server is not None:
            await _stop_accepting(self._server)
            self._server.close()
        self._drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def url(self, target_url: str) -> str:
        """A URL of the target, rewritten to lead through here."""
        parts = urlsplit(target_url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    def let_pass(self) -> None:
        """Forward at once, both directions."""
        self._mode, self._delay = ProxyMode.PASS, 0.0

    def delay(self, seconds: float) -> None:
        """Forward each chunk this much later."""
        self._mode, self._delay = ProxyMode.PASS, seconds

    def blackhole(self) -> None:
        """Swallow everything; connections neither answer nor break."""
        self._mode = ProxyMode.BLACKHOLE

    def reset(self) -> None:
        """Tear down what is open and whatever connects from now on."""
        self._mode = ProxyMode.RESET
        self._drop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side may break at any time, which is what a proxy of faults is for
        finally:
            _reset(writer)
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is ProxyMode.RESET:
            return
        self._writers.add(writer)
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers.add(there_writer)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there_writer, is_request=True))
                both.create_task(self._pump(there_reader, writer, is_request=False))
        except* OSError:
            pass
        finally:
            _reset(there_writer)
            self._writers.discard(there_writer)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_request: bool) -> None:
        while chunk := await source.read(CHUNK):
            if not self._may_pass(chunk, is_request=is_request):
                return
            if self._delay:
                await asyncio.sleep(self._delay)
            if self._mode is not ProxyMode.BLACKHOLE:
                sink.write(chunk)
                await sink.drain()
        if self._mode is ProxyMode.PASS:  # a blackhole does not tell that the other end hung up, either
            with suppress(OSError):
                sink.write_eof()

    def _may_pass(self, chunk: bytes, *, is_request: bool) -> bool:
        if self._steps is None:
            return True
        return self._steps.may_pass(chunk, is_postgres=self.is_postgres) if is_request else self._steps.may_return()

    def _drop(self) -> None:
        for writer in list(self._writers):
            _reset(writer)
        self._writers.clear()


@asynccontextmanager
async def proxy_to(url: str, *, steps: StepCounter | None = None) -> AsyncIterator[Proxy]:
    """A proxy to the host and port of a URL, stopped with the block."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port, steps=steps)
    proxy.is_postgres = parts.scheme.startswith("postgres")
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _stop_accepting(server: asyncio.Server) -> None:
    """Accept nothing more, and let what was accepted begin.

    In Python 3.11 a connection that was accepted and not yet attached when its server closes is never closed:
    `Server._attach` fails after the transport has its socket.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    for _ in range(3):  # attached; connected; served
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        # Lingering for zero seconds turns close into RST: the other side sees an error, not an orderly end.
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
