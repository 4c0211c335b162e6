"""The Redis client: one connection per loop, a deadline for each answer, no silent retry, errors of
`aftermind.errors`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from ssl import SSLContext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aftermind import errors
from aftermind.types import Scope
from aftermind.url_redaction import redact, why_unreadable
from aftermind.wire import redis_keys
from aftermind.wire.redis import cluster, sentinel, server_url
from aftermind.wire.redis.connection import RedisConnection
from aftermind.wire.redis.resp import Answer, Argument, ProtocolError, pack

__all__ = ["Answer", "Argument", "RedisLink", "run_all", "shard_of", "split_shards", "unavailable"]

Loop = asyncio.AbstractEventLoop
T = TypeVar("T")


class RedisLink:
    """Connections of one process to one Redis, made at first use: one for each running loop, none kept across a fork.

    `timeout` (seconds) bounds connecting and each answer. A call is never repeated behind the caller's back: a second
    LPUSH or a second claim is a different thing from the first. `url` is that of a server (`wire.redis.server_url`),
    `sentinel://` (`wire.redis.sentinel`) or `redis+cluster://` (`wire.redis.cluster`), whose primary is searched for
    each connection; `connections` are those of `client()`. Raises `InvalidSettings` for any other URL.

    `shards` are the links of a Redis Cluster, one per shard, of which this is the first; else itself alone.
    """

    def __init__(self, url: str, *, timeout: float, connections: int = 8, name: str = "aftermind") -> None:
        self.given_url = url
        self.shards: tuple[RedisLink, ...] = (self,)
        self._shard = 0
        self._node: tuple[str, int] | None = None  # of a Redis Cluster, the last one that had the shard
        self.timeout, self._connections, self._name = timeout, connections, name
        try:
            self._service = sentinel.parse_url(url) if url.startswith(f"{sentinel.SCHEME}://") else None
            self._cluster = cluster.parse_url(url) if cluster.is_cluster(url) else None
            self._address: server_url.ServerAddress
            if self._service is not None:
                known = {"username": self._service.username, "password": self._service.password, "db": self._service.db}
                self._address = {name: value for name, value in known.items() if value}
            elif self._cluster is not None:
                known = {"username": self._cluster.username, "password": self._cluster.password}
                self._address = {name: value for name, value in known.items() if value}
            else:
                self._address = server_url.parse_url(url)
        except ValueError as exc:
            raise errors.InvalidSettings("redis_url", redact(url), why_unreadable(url, exc)) from None
        self._forget_all()
        if self._cluster is not None:
            self.shards = (self, *map(self._other_shard, range(1, redis_keys.SHARDS)))

    def keys(self, prefix: str) -> redis_keys.Keys:
        """The keys under a prefix there: of a Redis Cluster, those of this link's shard."""
        keys = redis_keys.Keys(prefix)
        return keys if self._cluster is None else replace(keys, shard=self._shard)

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
        if channel is None or not channel.is_open:
            return None
        if self._cluster is not None and self._node is not None and self._cluster.is_silent(self._node):
            return None
        return channel

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
        for shard in self.shards[1:]:
            await shard.close()
        if self._pid != os.getpid():
            self._forget_all()
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        task, client = self._connecting.pop(loop, None), self._clients.pop(loop, None)
        if task is not None and not task.done():
            task.cancel()
        if channel is not None:
            channel.close()
        if client is not None:
            await client.aclose()

    def _other_shard(self, number: int) -> "RedisLink":
        other = copy(self)  # shares the map of the cluster's nodes
        other._shard, other.shards = number, (other,)
        other._forget_all()
        return other

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
            if self._cluster is not None and self._node is not None:
                self._cluster.note_silent(self._node)
            raise errors.RedisUnavailable(f"no connection within {self.timeout:g} s") from exc
        except OSError as exc:
            raise errors.RedisUnavailable(str(exc)) from exc
        for closed in [known for known in self._channels if known.is_closed()]:
            del self._channels[closed]  # a channel keeps its loop alive
        self._channels[loop] = channel
        return channel

    async def _dial(self, loop: Loop) -> RedisConnection:
        address = self._address
        if self._service is not None or self._cluster is not None:
            return await self._dial_host(*await self._find_primary())

        def made() -> RedisConnection:
            return RedisConnection(loop, timeout=self.timeout)

        if "path" in address:
            return (await loop.create_unix_connection(made, address["path"]))[1]
        host, port = address.get("host", "localhost"), address.get("port", 6379)
        return (await loop.create_connection(made, host, port, ssl=self._tls()))[1]

    async def _dial_host(self, host: str, port: int) -> RedisConnection:
        loop = asyncio.get_running_loop()
        made = partial(RedisConnection, loop, timeout=self.timeout)
        return (await loop.create_connection(made, host, port, ssl=self._tls()))[1]

    async def _find_primary(self) -> tuple[str, int]:
        if self._cluster is not None:
            self._node = await self._cluster.find_primary(redis_keys.slot(self._shard), self._dial_host)
            return self._node
        assert self._service is not None
        return await sentinel.find_primary(self._service, self._dial_host)

    def _tls(self) -> SSLContext | None:
        is_cluster_with_tls = self._cluster is not None and self._cluster.has_tls
        if not is_cluster_with_tls and not server_url.has_tls(self._address):
            return None
        return server_url.make_tls_context(self._address)

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
            "driver_info": server_url.driver_info(),
        }
        if "path" not in self._address:
            options["socket_keepalive"] = True
        if self._service is None and self._cluster is None:
            return BlockingConnectionPool(**{**options, **self._address})
        has_tls = self._cluster is not None and self._cluster.has_tls
        return BlockingConnectionPool(
            connection_class=_TlsPrimaryConnection if has_tls else _PrimaryConnection,
            find_primary=self._find_primary,
            **self._address,
            **options,
        )


class _PrimaryConnection(Connection):
    """redis-py's connection to the primary that the sentinels or the cluster name when it is opened."""

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


class _TlsPrimaryConnection(_PrimaryConnection, SSLConnection):
    """The same with TLS."""


def split_shards(link: RedisLink, keys: redis_keys.Keys) -> Iterator[tuple[RedisLink, redis_keys.Keys]]:
    """Link and keys of each shard of a Redis Cluster; of a single server those given."""
    if len(link.shards) == 1:
        yield link, keys
        return
    for number, each in enumerate(link.shards):
        yield each, replace(keys, shard=number)


def shard_of(link: RedisLink, keys: redis_keys.Keys, owner: Scope | str) -> tuple[RedisLink, redis_keys.Keys]:
    """Link and keys of the shard that has what is kept under an owner, or under another name."""
    if len(link.shards) == 1:
        return link, keys
    number = redis_keys.shard_number(owner)
    return link.shards[number], replace(keys, shard=number)


async def run_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What each returns. All end before the first failure is raised: a shard that is away stops no other."""
    found: list[T] = []
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


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
