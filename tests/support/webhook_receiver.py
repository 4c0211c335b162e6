"""An endpoint of a stranger, over real HTTP or HTTPS: it notes what is posted and answers by a script."""

import asyncio
import base64
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

REASONS = {200: "OK", 204: "No Content", 302: "Found", 400: "Bad Request", 410: "Gone", 429: "Slow", 500: "Oops"}


@dataclass(slots=True)
class Post:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def json(self) -> dict[str, Any]:  # Any: JSON
        """The body, read."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed_by(self, secret: str) -> bool:
        """Whether the signature is right, worked out anew from the specification."""
        key = base64.b64decode(secret.split("_", 1)[1])
        signed = ".".join([self.headers["webhook-id"], self.headers["webhook-timestamp"], self.body.decode()])
        right = "v1," + base64.b64encode(hmac.new(key, signed.encode(), sha256).digest()).decode()
        return right in self.headers["webhook-signature"].split(" ")


@dataclass(slots=True)
class Receiver:
    """`answer` gives the status for a post, and may wait; `more` are header lines of each answer."""

    answer: Callable[[Post], int] = lambda post: 200
    more: str = ""
    pause: float = 0.0
    posts: list[Post] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    @property
    def taken(self) -> list[Post]:
        """Posts that were answered well."""
        return [post for post in self.posts if 200 <= post.status < 300]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer.transport):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                post = Post(head[0].split()[1], headers, body, 0)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                await asyncio.sleep(self.pause)
                self.at_once -= 1
                post.status = self.answer(post)
                self.posts.append(post)
                told = f"HTTP/1.1 {post.status} {REASONS[post.status]}\r\nContent-Length: 0\r\n{self.more}\r\n"
                writer.write(told.encode())
                await writer.drain()


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port of the loopback."""
    one = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(one.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # A task that is cancelled before it runs has not entered the block that closes its connection.
        task.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    one.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield one
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
