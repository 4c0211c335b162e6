"""`RedisJournal`: rows in Redis, one hash for each partition; MULTI/EXEC makes a commit one step.

One process at a time: the key `owner` has the name of the connection that opened the store. Each commit watches it, so
a process whose connection was lost, and whose store another one has opened since, cannot write any more.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import redis

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
ORDERS_OF_AN_OPENING = 1 << 32  # rows that are inserted while the store is open
SEPARATOR = b"\t"  # between table and key; JSON has no tabs


class RedisJournal:
    """See `Journal`. `key` gives the names of the keys: see `wire.redis_keys.Keys.journal`."""

    def __init__(self, url: str, key: Callable[[str], str]) -> None:
        self.name = f"redis://{urlsplit(url).hostname or urlsplit(url).path}"  # without the password
        self._url, self._key = url, key
        self._client: Any = None  # Any: redis-py's types differ between its sync and async use
        self._opener, self._order = "", 0

    def open(self) -> None:
        self._opener = f"aftermind-store-{uuid4().hex}"
        try:
            with self._errors():
                self._client = redis.Redis.from_url(
                    self._url,
                    client_name=self._opener,
                    socket_timeout=TIMEOUT_SECONDS,
                    socket_connect_timeout=TIMEOUT_SECONDS,
                )
                self._take()
        except errors.AftermindError:
            self._disconnect()
            raise

    def partitions(self) -> Iterable[str]:
        with self._errors():
            return [name.decode() for name in self._open_client.smembers(self._key("partitions"))]

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        with self._errors(), self._open_client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self._key(f"rows:{partition}")).hgetall(self._key(f"order:{partition}"))
            rows, order = pipe.execute()
        fields = sorted(rows, key=lambda field: int(order.get(field, 0)))
        places = [field.partition(SEPARATOR) for field in fields]
        return [
            (table.decode(), key.decode(), rows[field]) for field, (table, _, key) in zip(fields, places, strict=True)
        ]

    def commit(self, batch: Batch) -> None:
        with self._errors(), self._mine() as pipe:
            for partition, changes in batch.items():
                rows, order = self._key(f"rows:{partition}"), self._key(f"order:{partition}")
                for (table, key), row in changes.items():
                    field = table.encode() + SEPARATOR + key.encode()
                    if row is None:
                        pipe.hdel(rows, field).hdel(order, field)
                    else:
                        self._order += 1
                        pipe.hset(rows, field, row).hsetnx(order, field, self._order)
            pipe.sadd(self._key("partitions"), *batch)
            pipe.execute()

    def compact(self, partitions: Iterable[str]) -> None:
        """Forget the names of empty partitions. The append-only file loses its old content when Redis rewrites it."""
        with self._errors():
            gone = [name for name in partitions if not self._open_client.exists(self._key(f"rows:{name}"))]
            if gone:
                self._open_client.srem(self._key("partitions"), *gone)

    def close(self) -> None:
        if self._client is None:
            return
        try:
            with self._errors(), self._mine() as pipe:
                pipe.delete(self._key("owner"))
                pipe.execute()
        except errors.StoreUnavailable:  # its connection ends, and with it the claim
            pass
        finally:
            self._disconnect()

    @property
    def _open_client(self) -> Any:
        if self._client is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
        return self._client

    def _take(self) -> None:
        client, owner = self._open_client, self._key("owner")
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(owner)
            other = (pipe.get(owner) or b"").decode()
            if other and any(each["name"] == other for each in client.client_list()):
                raise errors.StoreInUse(self.name)
            pipe.multi()
            pipe.set(owner, self._opener).incr(self._key("openings"))
            _, opening = pipe.execute()
        self._order = opening * ORDERS_OF_AN_OPENING
        with suppress(redis.exceptions.NoPermissionError):
            if client.config_get("appendonly").get("appendonly") == "no":
                why = "it has no append-only file: a restart loses accepted turns. Set `appendonly yes`"
                log.warning("Redis is not durable", extra={"store": self.name, "reason": why})

    @contextmanager
    def _mine(self) -> Iterator[Any]:
        """A transaction that runs only while this process owns the store."""
        with self._open_client.pipeline(transaction=True) as pipe:
            pipe.watch(self._key("owner"))
            if pipe.get(self._key("owner")) != self._opener.encode():
                raise errors.StoreInUse(self.name)
            pipe.multi()
            yield pipe

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.WatchError as exc:
            raise errors.StoreInUse(self.name) from exc
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as exc:
            why = f"Redis refuses the user ({exc}). Correct user, password and rights."
            raise errors.InvalidSettings("url", self.name, why) from exc
        except redis.RedisError as exc:
            raise errors.StoreUnavailable(self.name, str(exc), "Check Redis; the next call tries again.") from exc
