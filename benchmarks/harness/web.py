"""A service and its clients. The clients are bare sockets: a library would cost more than what is measured."""

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from aftermind.api.local_web_token import read_token
from aftermind.stack.ports import choose
from tests.support.waiting import wait_until_sync

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@contextmanager
def service(env: dict[str, str], log: Path, *, module: str = "aftermind.cli") -> Iterator[tuple[str, int]]:
    """`aftermind web` for the block: its address, with the local token as the user, and its process id."""
    port = choose(1)[0]
    with log.open("wb") as out:
        argv = [sys.executable, "-m", module, "web", "--port", str(port)]
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_sync(lambda: _is_ready(url), timeout=180, description=f"the service answers; see {log}")
        yield f"http://{read_token(Path(env['AFTERMIND_STATE_DIR']))}@127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def allow_files(count: int) -> None:
    """Let this process have so many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(count, hard)))


class KeptConnection:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        self._at = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
        """The answer's JSON. Ends the benchmark where it is no success."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._at.hostname, self._at.port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._at.hostname}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {self._at.username}\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(answer)
        assert length is not None, answer
        told = await reader.readexactly(int(length[1]))
        if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            raise SystemExit(f"the service answered {answer[:40]!r}: {told[:500]!r}")
        found: dict[str, Any] = json.loads(told)
        return found

    def close(self) -> None:
        """Let go of it."""
        if self._streams is not None:
            self._streams[1].transport.abort()


class Ear(asyncio.Protocol):
    """A listener to events that notes when each number arrived."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.heard: dict[int, float] = {}
        self.opened = asyncio.get_running_loop().create_future()
        self.is_lost = self._is_answered = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._is_answered and not data.startswith(b"HTTP/1.1 200"):
            self.opened.set_exception(ConnectionError(data.decode(errors="replace")[:600]))
            self.close()
            return
        self._is_answered = True
        numbers = [int(number) for number in _ID.findall(data)]
        if numbers and not self.opened.done():
            self.opened.set_result(None)  # the first id says where the stream begins
            numbers = numbers[1:]
        for number in numbers:
            self.heard.setdefault(number, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the service closed the connection"))

    def close(self) -> None:
        """Go away."""
        if self._transport is not None:
            self._transport.abort()


async def listen(url: str, user: str) -> Ear:
    """A listener whose stream has begun."""
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    head = f"GET /v1/users/{user}/events HTTP/1.1\r\nHost: {at.hostname}\r\nAuthorization: Bearer {at.username}\r\n"
    request = f"{head}Accept: text/event-stream\r\n\r\n".encode()
    _, ear = await asyncio.get_running_loop().create_connection(lambda: Ear(request), at.hostname, at.port)
    await asyncio.wait_for(ear.opened, 60)
    return ear
