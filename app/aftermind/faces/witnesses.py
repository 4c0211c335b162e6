"""Where the end of a trail is known beside the database, so that cutting it off there is found."""

import asyncio
import fcntl
import hashlib
import logging
from pathlib import Path

import orjson

from aftermind import errors
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.script import Script

log = logging.getLogger(__name__)


class FolderWitness:
    """A file for each namespace in the state folder of this host."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "audit"
        self.name = f"the folder {self._folder}"

    async def tell(self, namespace: str, seq: int, mac: bytes) -> None:
        """Keep it, where it is further."""
        try:
            await asyncio.to_thread(self._tell, namespace, seq, mac)
        except OSError as exc:
            log.warning("end of the audit trail not written", extra={"namespace": namespace, "error": exc.strerror})

    async def known(self, namespace: str) -> tuple[int, bytes] | None:
        """The furthest that was told here."""
        return await asyncio.to_thread(self._read, namespace)

    def _tell(self, namespace: str, seq: int, mac: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(namespace)
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = self._read(namespace)
            if there is not None and there[0] >= seq:
                return
            beside = path.with_suffix(".part")
            beside.write_bytes(orjson.dumps({"namespace": namespace, "seq": seq, "mac": mac.hex()}))
            beside.replace(path)

    def _read(self, namespace: str) -> tuple[int, bytes] | None:
        try:
            told = orjson.loads(self._path(namespace).read_bytes())
            return int(told["seq"]), bytes.fromhex(told["mac"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, namespace: str) -> Path:
        return self._folder / f"{hashlib.sha256(namespace.encode()).hexdigest()[:40]}.json"


class RedisWitness:
    """A field for each namespace in one hash of Redis."""

    name = "Redis"

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._key, self._further = link, keys.audit(), Script("further", keys)

    async def tell(self, namespace: str, seq: int, mac: bytes) -> None:
        """Keep it, where it is further."""
        try:
            await self._further(self._link, namespace.encode(), seq, mac.hex())
        except errors.RedisUnavailable as exc:
            log.warning("end of the audit trail not told", extra={"namespace": namespace, "error": str(exc)})

    async def known(self, namespace: str) -> tuple[int, bytes] | None:
        """The furthest that was told to this Redis."""
        try:
            told = await self._link.call("HGET", self._key, namespace.encode())
        except errors.RedisUnavailable:
            return None
        if not isinstance(told, bytes):
            return None
        try:
            seq, _, mac = told.decode().partition(" ")
            return int(seq), bytes.fromhex(mac)
        except ValueError:
            return None


def witnesses(state_dir: Path, link: RedisLink, keys: Keys) -> tuple[FolderWitness, RedisWitness]:
    """Those of a process with a state folder and a Redis."""
    return FolderWitness(state_dir), RedisWitness(link, keys)
