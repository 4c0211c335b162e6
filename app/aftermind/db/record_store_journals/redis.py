"""`RedisJournal`: rows in Redis for several processes, one hash for each partition; a commit is one Lua script.

`changed` of a partition has the version of each field that was set or deleted, so that a process reads what others have
changed. A process that has read nothing for a long time, or whose partition was erased, reads all rows again.
"""

import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import redis

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch, PartitionChange, Snapshot, StoreState
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

TIMEOUT_SECONDS = 5.0
KEPT_VERSIONS = 4_096  # for which the fields of deleted rows are kept
SEPARATOR = "\t"  # between table and key; JSON has no tabs


class RedisJournal:
    """See `SharedJournal`. `key` gives the names of the keys: see `wire.redis_keys.Keys.journal`."""

    def __init__(self, url: str, key: Callable[[str], str], *, shared: str) -> None:
        parts = urlsplit(url)
        self.name = f"redis://{parts.netloc.rpartition('@')[2] or parts.path}"  # without the password
        self.shared = shared
        self._url, self._key = url, key
        self._client: Any = None  # Any: redis-py's types differ between its sync and async use

    def open(self) -> None:
        try:
            with self._errors():
                limits = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
                self._client = redis.Redis.from_url(self._url, **limits)
                self._check()
        except errors.AftermindError:
            self.close()
            raise

    def state(self) -> StoreState:
        with self._errors():
            found = self._open_client.hmget(self._key("state"), "version", "holder", "waiting")
        version, holder, waiting = (each or b"" for each in found)
        return StoreState(version=int(version or 0), holder=holder.decode(), waiting=waiting.decode())

    def stamp(self) -> object | None:
        """None: only a command could show it."""
        return None

    def read(self, since: int, cached: Container[str], wanted: str | None = None) -> Snapshot:
        asked: dict[str, bool] = {} if wanted is None else {wanted: True}  # by partition: whether all of its rows
        with self._errors():
            while True:  # until one transaction has everything; each round asks for more of the cached partitions
                version, changed, erased, rows = self._read(since, asked)
                if since > version:  # a server that was restarted has lost its last commits
                    since = -1
                    continue
                is_behind = since < 0 or since < version - KEPT_VERSIONS
                due = {name: is_behind or name in erased for name in changed if name in cached and name != wanted}
                if wanted is not None:
                    due[wanted] = True
                if due.items() <= asked.items():
                    break
                asked |= due
        changes = [PartitionChange(partition=name, rows=rows[name], is_whole=due[name]) for name in due]
        return Snapshot(version=version, partitions=changed, changes=changes)

    def commit(
        self, batch: Batch, expected: StoreState, *, holder: str, erased: Collection[str] = ()
    ) -> StoreState | None:
        version = expected.next(batch, holder).version
        changes = [
            (name, [(SEPARATOR.join(place), row and row.decode()) for place, row in rows.items()], name in erased)
            for name, rows in batch.items()
        ]
        keys = [self._key(each) for each in ("state", "versions", "erasures")]
        keys += [key for name in batch for key in self._keys_of(name)]
        swap = (expected.version, expected.holder, version, holder, version - KEPT_VERSIONS)
        with self._errors():
            call = self._open_client.register_script(_script("redis_commit"))
            waiting = call(keys, (*swap, json.dumps(changes, ensure_ascii=False)))
        return None if waiting is None else StoreState(version=version, holder=holder, waiting=waiting.decode())

    def ask(self, name: str) -> None:
        with self._errors():
            self._open_client.hsetnx(self._key("state"), "waiting", name)

    def compact(self, partitions: Iterable[str]) -> None:
        """The append-only file loses its old content when Redis rewrites it."""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _open_client(self) -> Any:
        if self._client is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
        return self._client

    def _keys_of(self, partition: str) -> tuple[str, str, str]:
        rows, order, changed = (self._key(f"{each}:{partition}") for each in ("rows", "order", "changed"))
        return rows, order, changed

    def _read(
        self, since: int, asked: dict[str, bool]
    ) -> tuple[int, list[str], set[str], dict[str, list[tuple[str, str, bytes | None]]]]:
        """The version, the partitions that were changed and erased since, and the rows that are asked for."""
        with self._open_client.pipeline(transaction=True) as pipe:
            pipe.hget(self._key("state"), "version")
            for each in ("versions", "erasures"):
                pipe.zrange(self._key(each), f"({since}", "+inf", byscore=True)
            for name, is_whole in asked.items():
                rows, order, changed = self._keys_of(name)
                if is_whole:
                    pipe.hgetall(rows)
                    pipe.hgetall(order)
                else:
                    pipe.eval(_script("redis_changes"), 3, rows, order, changed, since)
            version, changed, erased, *answers = pipe.execute()
        found, left = {}, iter(answers)
        for name, is_whole in asked.items():
            if is_whole:
                rows, order = next(left), next(left)
                found[name] = _rows((field, row, order[field]) for field, row in rows.items())
            else:
                found[name] = _rows(next(left))
        return int(version or 0), [name.decode() for name in changed], {name.decode() for name in erased}, found

    def _check(self) -> None:
        client = self._open_client
        if client.exists(self._key("partitions")):
            why = "an earlier version wrote it for one process. Name another `key_prefix` or database number."
            raise errors.InvalidSettings("url", self.name, why)
        with suppress(redis.exceptions.NoPermissionError):
            if client.config_get("appendonly").get("appendonly") == "no":
                why = "it has no append-only file: a restart loses accepted turns. Set `appendonly yes`"
                log.warning("Redis is not durable", extra={"store": self.name, "reason": why})

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as exc:
            why = f"Redis refuses the user ({exc}). Correct user, password and rights."
            raise errors.InvalidSettings("url", self.name, why) from exc
        except redis.RedisError as exc:
            raise errors.StoreUnavailable(self.name, str(exc), "Check Redis; the next call tries again.") from exc


def _rows(found: Iterable[tuple[bytes, bytes | None, bytes | None]]) -> list[tuple[str, str, bytes | None]]:
    """Table, key and row, in the order of insertion."""
    ordered = sorted(found, key=lambda each: int(each[2] or 0))
    places = [(field.decode().partition(SEPARATOR), row) for field, row, _ in ordered]
    return [(table, key, row) for (table, _, key), row in places]


@cache
def _script(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
