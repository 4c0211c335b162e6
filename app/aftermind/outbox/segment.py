"""One file of the spool: appended by the process that holds its lock, readable by all, cut where it was torn.

A record is kind (1 byte), length and CRC-32 of what follows (4 bytes each, big-endian), then that: a turn's payload for
`T`, 16-byte job ids for `S` (sent) and `F` (forgotten).
"""

import fcntl
import logging
import os
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID, uuid4

from aftermind import errors
from aftermind.types import JobId, Turn
from aftermind.wire.keys import owner_part
from aftermind.wire.payloads import decode_turn

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">cII")
_TURN, _SENT, _FORGOTTEN = b"T", b"S", b"F"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a spooled turn lies; its text stays on disk until it is wanted."""

    job_id: JobId
    owner: str
    session: str
    base: int
    content_hash: str | None
    offset: int
    length: int


class Segment:
    """An open file of the spool. `turns` are those that it holds, sent or not; `gone` the ids it says are done with."""

    def __init__(self, path: Path, fd: int, *, is_ours: bool) -> None:
        self.path, self.is_ours = path, is_ours
        self._fd = fd
        self._end = 0
        self.turns: dict[JobId, Entry] = {}
        self.gone: set[JobId] = set()
        self.unreadable = 0

    @classmethod
    def create(cls, folder: Path) -> Self:
        """A new one, locked by this process."""
        while True:
            path = folder / f"{time.time_ns() // 1000}-{uuid4().hex[:12]}.spool"
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            if _lock(fd, path):
                _sync_folder(folder)
                return cls(path, fd, is_ours=True)
            os.close(fd)  # somebody took it for an orphan before it was locked

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """One whose process is gone, locked by ours from now on; None where its process lives, or it is gone."""
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if not _lock(fd, path):
            os.close(fd)
            return None
        segment = cls(path, fd, is_ours=True)
        segment.refresh()
        return segment

    @classmethod
    def look(cls, path: Path) -> Self | None:
        """Another process's, to be read only."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        segment = cls(path, fd, is_ours=False)
        segment.refresh()
        return segment

    @property
    def size_bytes(self) -> int:
        """Of what is whole."""
        return self._end

    def refresh(self) -> None:
        """Read what was appended since. A record that is not whole (yet) ends it."""
        size = os.fstat(self._fd).st_size
        while self._end + _HEADER.size <= size:
            kind, length, crc = _HEADER.unpack(os.pread(self._fd, _HEADER.size, self._end))
            start = self._end + _HEADER.size
            if start + length > size:
                return
            body = os.pread(self._fd, length, start)
            if len(body) != length or zlib.crc32(body) != crc:
                return
            self._note(kind, body, start)
            self._end = start + length

    def append(self, turns: Sequence[tuple[Turn, bytes]]) -> list[Entry]:
        """Write the turns and wait until the disk has them. All or none; raises `OSError`."""
        data, entries = bytearray(), []
        for turn, payload in turns:
            start = self._end + len(data) + _HEADER.size
            entries.append(_entry(turn, start, len(payload)))
            data += _record(_TURN, payload)
        self._write(bytes(data), is_synced=True)
        self.turns.update((entry.job_id, entry) for entry in entries)
        return entries

    def mark(self, ids: Iterable[JobId], *, forgotten: bool = False) -> None:
        """Note turns as sent or forgotten. Sent is not synced: at worst a turn is sent twice, which changes nothing."""
        listed = list(ids)
        self.gone.update(listed)
        body = b"".join(job_id.bytes for job_id in listed)
        self._write(_record(_FORGOTTEN if forgotten else _SENT, body), is_synced=forgotten)

    def payload(self, entry: Entry) -> bytes:
        """The turn's bytes."""
        return os.pread(self._fd, entry.length, entry.offset)

    def remove(self) -> None:
        """Delete the file; only for one of ours."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of it, lock included. What it holds waits for the next process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes, *, is_synced: bool) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
            if is_synced:
                _sync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)  # a torn record would hide what is appended after it
            raise
        self._end += len(data)

    def _note(self, kind: bytes, body: bytes, start: int) -> None:
        if kind in (_SENT, _FORGOTTEN):
            self.gone.update(JobId(UUID(bytes=body[i : i + 16])) for i in range(0, len(body), 16))
            return
        try:
            entry = _entry(decode_turn(body), start, len(body))
        except errors.UnknownPayload as exc:
            self.unreadable += 1  # a later release wrote it: the file stays until one reads it
            log.warning("spooled turn of an unknown version", extra={"path": str(self.path), "version": exc.version})
            return
        self.turns[entry.job_id] = entry


def _entry(turn: Turn, offset: int, length: int) -> Entry:
    return Entry(
        job_id=turn.job_id,
        owner=owner_part(turn.scope),
        session=turn.scope.session_id or "",
        base=turn.base,
        content_hash=turn.content_hash,
        offset=offset,
        length=length,
    )


def _record(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(kind, len(body), zlib.crc32(body)) + body


def _lock(fd: int, path: Path) -> bool:
    """Whether the file is ours now: locked, and still the one of that name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(fd).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _sync(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync() leaves the data in the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
