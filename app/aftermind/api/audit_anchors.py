"""Copies of the end of a trail outside the database, so that a truncation is detected."""

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import orjson

from aftermind import errors, private_files
from aftermind.db.audit.log import Ends
from aftermind.telemetry.logger import get_logger
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys, namespace_part

log = get_logger(__name__)

DAMAGED = ".damaged"  # suffix of a file that could not be read; `aftermind doctor` names it

FIELDS_PER_CALL = 500


class FolderWitness:
    """A file for each namespace in a folder of this host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = f"the folder {self._folder}"

    async def record_end(self, namespace: str, seq: int, mac: bytes) -> None:
        """Keep it, where it is further."""
        try:
            await asyncio.to_thread(self._write_end, namespace, seq, mac)
        except OSError as exc:
            log.warning("end of the audit trail not written", extra={"namespace": namespace, "error": exc.strerror})

    async def read_ends(self) -> Ends:
        """The furthest end of each namespace that was kept here."""
        return await asyncio.to_thread(self._read_all)

    async def prune(self, heads: Mapping[str, int]) -> None:
        """Nothing to remove: a file keeps one end."""

    def _write_end(self, namespace: str, seq: int, mac: bytes) -> None:
        private_files.make_folder(self._folder)
        path = self._path(namespace)
        with private_files.open_for_append(self._folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = self._read(path)
            if there is not None and there[1] >= seq:
                return
            private_files.write(path, orjson.dumps({"namespace": namespace, "seq": seq, "mac": mac.hex()}))

    def _read_all(self) -> Ends:
        found = (self._read(path) for path in self._folder.glob("*.json"))
        return {namespace: {seq: mac} for namespace, seq, mac in filter(None, found)}

    def _read(self, path: Path) -> tuple[str, int, bytes] | None:
        try:
            kept = orjson.loads(private_files.read(path))
            return str(kept["namespace"]), int(kept["seq"]), bytes.fromhex(kept["mac"])
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):  # else the next entry would replace it, and no trace would stay
            log.error("damaged audit witness is kept", extra={"path": str(path)})
            with suppress(OSError):
                path.replace(path.with_suffix(DAMAGED))
            return None

    def _path(self, namespace: str) -> Path:
        return self._folder / f"{hashlib.sha256(namespace.encode()).hexdigest()[:40]}.json"


class RedisWitness:
    """One hash of Redis with a field for each end that was reported, `namespace/seq` → code.

    Fields are only ever added by the processes that act (HSETNX): their Redis user cannot change or remove one, see
    `wire.redis.acl`. The janitor removes those that a later end of the same trail has replaced.
    """

    name = "Redis"

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._key = link, keys.audit()

    async def record_end(self, namespace: str, seq: int, mac: bytes) -> None:
        """Keep it."""
        try:
            await self._link.call("HSETNX", self._key, f"{namespace_part(namespace)}/{seq}", mac.hex())
        except errors.RedisUnavailable as exc:
            log.warning("witness of the audit trail not updated", extra={"namespace": namespace, "error": str(exc)})

    async def read_ends(self) -> Ends:
        """The ends of each namespace that were reported to this Redis."""
        found: dict[str, dict[int, bytes]] = {}
        try:
            async for field, value in self._fields():
                end = _parse_end(field, value)
                if end is not None:
                    namespace, seq, mac = end
                    found.setdefault(namespace, {})[seq] = mac
        except errors.RedisUnavailable:
            return {}
        return found

    async def prune(self, heads: Mapping[str, int]) -> None:
        """Remove the ends before the last that the database has too. Raises `RedisUnavailable`."""
        known = await self.read_ends()
        for namespace, ends in known.items():
            kept = max((seq for seq in ends if seq <= heads.get(namespace, 0)), default=0)
            old = [f"{namespace_part(namespace)}/{seq}" for seq in ends if seq < kept]
            for start in range(0, len(old), FIELDS_PER_CALL):
                await self._link.call("HDEL", self._key, *old[start : start + FIELDS_PER_CALL])

    async def _fields(self) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor: bytes | None = None
        while cursor != b"0":
            cursor, flat = await self._link.call("HSCAN", self._key, cursor or b"0", "COUNT", FIELDS_PER_CALL)
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                yield field, value


def _parse_end(field: bytes, value: bytes) -> tuple[str, int, bytes] | None:
    """Namespace, number and code of a field; None for what is malformed."""
    try:
        part, _, seq = field.decode().rpartition("/")
        return unquote(part), int(seq), bytes.fromhex(value.decode())
    except ValueError:
        return None


def witnesses(folder: Path, link: RedisLink, keys: Keys) -> tuple[FolderWitness, RedisWitness]:
    """Those of a process with a state folder and a Redis."""
    return FolderWitness(folder), RedisWitness(link, keys)
