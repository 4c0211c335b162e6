"""The one way to Redis: few connections, a deadline on each answer, no silent retry, its errors as ours."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aftermind import errors

Argument = str | bytes | int | float
Answer = Any  # what Redis answers: bytes, int, None or lists of them; each caller knows its command

# Words with which Redis says that it does not write or read now, and may later.
_REFUSALS = (
    "OOM",
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "MASTERDOWN",
    "BUSY",
    "NOREPLICAS",
    "CLUSTERDOWN",
)


class RedisLink:
    """Connections of one process to one Redis, made at first use: a set for each running event loop, none kept
    across a fork.

    `timeout` (seconds) bounds connecting and each answer. A call is never repeated behind the caller's back: a second
    LPUSH or a second claim is a different thing from the first.
    """

    def __init__(self, url: str, *, timeout: float, connections: int = 4, name: str = "aftermind") -> None:
        self.url = url
        self._timeout, self._connections, self._name = timeout, connections, name
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Redis] = WeakKeyDictionary()
        self._pid = os.getpid()

    async def call(self, *command: Argument) -> Answer:
        """One command, one answer (bytes are not decoded). Raises `RedisUnavailable`, and `redis` errors of a wrong
        command as they are."""
        with unavailable():
            return await self.client().execute_command(*command)  # type: ignore[no-untyped-call]

    def client(self) -> Redis:
        """redis-py's own client for the running loop, for streams and subscriptions; wrap calls in `unavailable`."""
        if self._pid != os.getpid():  # a fork shares the sockets: two processes would read each other's answers
            self._clients, self._pid = WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = Redis.from_pool(self._pool())
        return client

    async def close(self) -> None:
        """Close the running loop's connections. The link can be used again afterwards: it connects anew."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None and self._pid == os.getpid():
            await client.aclose()

    def _pool(self) -> BlockingConnectionPool:
        network = {} if self.url.startswith("unix:") else {"socket_keepalive": True}
        return BlockingConnectionPool.from_url(
            self.url,
            max_connections=self._connections,
            timeout=self._timeout,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),
            client_name=self._name,
            **network,
        )


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn what redis-py raises while Redis is away or refuses into `RedisUnavailable`."""
    try:
        yield
    except exceptions.ResponseError as exc:
        if str(exc).split(" ", 1)[0] in _REFUSALS or _refuses(exc):
            raise errors.RedisUnavailable(str(exc)) from exc
        raise
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError) as exc:
        raise errors.RedisUnavailable(str(exc) or type(exc).__name__) from exc


def _refuses(exc: exceptions.ResponseError) -> bool:
    # redis-py cuts the word off where it has a class for it; a script's error carries it in the middle.
    if isinstance(exc, exceptions.ReadOnlyError | exceptions.OutOfMemoryError | exceptions.NoPermissionError):
        return True
    return any(f"{word} " in str(exc) for word in _REFUSALS)
