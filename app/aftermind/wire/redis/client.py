"""The Redis client: one connection per loop, a deadline for each answer, no silent retry, errors of
`aftermind.errors`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, RedisSSLContext, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aftermind import errors
from aftermind.wire.redis import sentinel
from aftermind.wire.redis.connection import RedisConnection
from aftermind.wire.redis.resp import Answer, Argument, ProtocolError, pack

__all__ = ["Answer", "Argument", "RedisLink", "unavailable"]

Loop = asyncio.AbstractEventLoop


class RedisLink:
    """Connections of one process to one Redis, made at first use: one for each running loop, none kept across a fork.

    `timeout` (seconds) bounds connecting and each answer. A call is never repeated behind the caller's back: a second
    LPUSH or a second claim is a different thing from the first. `url` is `redis://`, `rediss://` or `unix://`, as
    redis-py reads them, or `sentinel://` (`wire.redis.sentinel`), whose primary is searched for each connection;
    `connections` are those of `client()`. Raises `InvalidSettings` for any other URL.
    """

    def __init__(self, url: str, *, timeout: float, connections: int = 8, name: str = "aftermind") -> None:
        self.given_url = url
        self.url = url.replace("redis+socket://", "unix://", 1)  # as Celery spells a socket
        self.timeout, self._connections, self._name = timeout, connections, name
        try:
            self._service = sentinel.parse_url(url) if url.startswith(f"{sentinel.SCHEME}://") else None
            self._address: dict[str, Any]  # Any: redis-py's keyword arguments
            if self._service is None:
                self._address = dict(parse_url(self.url))
            else:
                known = {"username": self._service.username, "password": self._service.password, "db": self._service.db}
                self._address = {name: value for name, value in known.items() if value}
        except ValueError as exc:
            raise errors.InvalidSettings("redis_url", url.split("@")[-1], str(exc)) from exc
        self._forget_all()

    def set_timeout(self, seconds: float) -> None:
        """Another bound, for connections to come and for commands that are sent from now on."""
        self.timeout = seconds
        for channel in list(self._channels.values()):
            channel.timeout = seconds

    async def call(self, *command: Argument) -> Answer:
        """One command, one answer (bytes are not decoded). Raises `RedisUnavailable`; `Bug` for a wrong command."""
        channel = self.channel() or await self.connect()
        return await channel.send(pack(command))

    def channel(self) -> RedisConnection | None:
        """The running loop's connection, None where there is none (any more)."""
        if self._pid != os.getpid():  # a fork shares the sockets: two processes would read each other's answers
            self._forget_all()
        channel = self._channels.get(asyncio.get_running_loop())
        return channel if channel is not None and channel.is_open else None

    async def connect(self) -> RedisConnection:
        """The running loop's connection, made where there is none; concurrent callers wait for the same one."""
        channel = self.channel()
        if channel is not None:
            return channel
        loop = asyncio.get_running_loop()
        task = self._connecting.get(loop)
        if task is None or task.done():
            task = self._connecting[loop] = loop.create_task(self._connect(loop))
            task.add_done_callback(_discard_result)
        return await asyncio.shield(task)

    def client(self) -> Redis:
        """redis-py's own client for the running loop, for streams and subscriptions; wrap calls in `unavailable`."""
        if self._pid != os.getpid():
            self._forget_all()
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = Redis.from_pool(self._pool())
        return client

    async def close(self) -> None:
        """Close the running loop's connections. The link can be used again afterwards: it reconnects."""
        channel = self.channel()
        loop = asyncio.get_running_loop()
        task, client = self._connecting.pop(loop, None), self._clients.pop(loop, None)
        if task is not None and not task.done():
            task.cancel()
        if channel is not None:
            channel.close()
        if client is not None:
            await client.aclose()

    def _forget_all(self) -> None:
        self._pid = os.getpid()
        self._channels: WeakKeyDictionary[Loop, RedisConnection] = WeakKeyDictionary()
        self._connecting: WeakKeyDictionary[Loop, asyncio.Task[RedisConnection]] = WeakKeyDictionary()
        self._clients: WeakKeyDictionary[Loop, Redis] = WeakKeyDictionary()

    async def _connect(self, loop: Loop) -> RedisConnection:
        try:
            async with asyncio.timeout(self.timeout):
                channel = await self._dial(loop)
                try:
                    await asyncio.gather(*(channel.send(pack(command)) for command in self._greeting()))
                except BaseException:
                    channel.close()
                    raise
        except TimeoutError as exc:
            raise errors.RedisUnavailable(f"no connection within {self.timeout:g} s") from exc
        except OSError as exc:
            raise errors.RedisUnavailable(str(exc)) from exc
        for closed in [known for known in self._channels if known.is_closed()]:
            del self._channels[closed]  # a channel keeps its loop alive
        self._channels[loop] = channel
        return channel

    async def _dial(self, loop: Loop) -> RedisConnection:
        address = self._address
        if self._service is not None:
            return await self._dial_host(*await self._find_primary())

        def made() -> RedisConnection:
            return RedisConnection(loop, timeout=self.timeout)

        if "path" in address:
            return (await loop.create_unix_connection(made, address["path"]))[1]
        host, port = address.get("host", "localhost"), address.get("port", 6379)
        return (await loop.create_connection(made, host, port, ssl=self._tls()))[1]

    async def _dial_host(self, host: str, port: int) -> RedisConnection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: RedisConnection(loop, timeout=self.timeout), host, port))[1]

    async def _find_primary(self) -> tuple[str, int]:
        assert self._service is not None
        return await sentinel.find_primary(self._service, self._dial_host)

    def _tls(self) -> Any:  # Any: an SSLContext, or None
        if not self.url.startswith("rediss:"):
            return None
        given = {name.removeprefix("ssl_"): value for name, value in self._address.items() if name.startswith("ssl_")}
        given = {"cert_reqs": "required", "check_hostname": True, **given}
        return RedisSSLContext(**given).get()

    def _greeting(self) -> list[tuple[Argument, ...]]:
        address = self._address
        greeting: list[tuple[Argument, ...]] = []
        if "password" in address:
            user = (address["username"],) if "username" in address else ()
            greeting.append(("AUTH", *user, address["password"]))
        if address.get("db"):
            greeting.append(("SELECT", address["db"]))
        greeting.append(("CLIENT", "SETNAME", self._name))  # also the first answer: a frozen Redis is noticed here
        return greeting

    def _pool(self) -> BlockingConnectionPool:
        options: dict[str, Any] = {  # Any: redis-py's keyword arguments
            "max_connections": self._connections,
            "timeout": self.timeout,
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            "retry": Retry(NoBackoff(), 0),
            "client_name": self._name,
        }
        if not self.url.startswith("unix:"):
            options["socket_keepalive"] = True
        if self._service is None:
            return BlockingConnectionPool.from_url(self.url, **options)
        return BlockingConnectionPool(
            connection_class=_PrimaryConnection, find_primary=self._find_primary, **self._address, **options
        )


class _PrimaryConnection(Connection):
    """redis-py's connection to the primary that the sentinels name when it is opened."""

    def __init__(self, *, find_primary: Callable[[], Awaitable[tuple[str, int]]], **options: Any) -> None:
        # Any: redis-py's keyword arguments
        super().__init__(**options)
        self._find_primary = find_primary

    async def _connect(self) -> None:
        try:
            self.host, self.port = await self._find_primary()
        except errors.RedisUnavailable as exc:
            raise exceptions.ConnectionError(str(exc)) from exc
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **options: Any) -> Any:  # Any: redis-py's own
        try:
            return await super().read_response(*args, **options)
        except exceptions.ReadOnlyError:  # it was demoted: the next command searches the primary again
            await self.disconnect()
            raise


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn what redis-py raises while Redis is away or refuses into `RedisUnavailable`."""
    try:
        yield
    except (exceptions.RedisError, ProtocolError, OSError, TimeoutError) as exc:
        raise errors.RedisUnavailable(str(exc) or type(exc).__name__) from exc


def _discard_result(task: asyncio.Task[RedisConnection]) -> None:
    # All waiting callers may have been cancelled: asyncio would then warn that the error was never retrieved.
    if not task.cancelled():
        task.exception()
