"""One file of the spool: appended by the process that holds its lock, readable by all processes of the host.

A record is a marker, kind (1 byte), length and CRC-32 (4 bytes each, big-endian), then the body: a turn's payload for
`T`, 16-byte job ids for `S` (sent) and `F` (forgotten). The CRC covers kind, length and body. Bytes that do not check
are damage: reading continues at the next record that checks, and a copy of the damaged bytes is kept in the folder.
"""

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID, uuid4

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, Turn
from aftermind.wire.redis_keys import owner_part
from aftermind.wire.turn_encoding import decode_turn

log = get_logger(__name__)

_MARKER = b"\xff\xfeAM"  # 0xff and 0xfe never occur in UTF-8, so no text that a user sends can imitate a record
_HEADER = struct.Struct(">4scII")
_CHECKED = struct.Struct(">cI")  # the part of the header that the CRC covers
_TURN, _SENT, _FORGOTTEN = b"T", b"S", b"F"
_KINDS = frozenset({_TURN, _SENT, _FORGOTTEN})
_ID_BYTES = 16

DAMAGED = ".damaged"  # suffix of a file that keeps damaged bytes
_CHUNK_BYTES = 2**20  # one read while searching or copying: a file of garbage may be of any size


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolEntry:
    """The place of a spooled turn in its file: `offset` and `length` of the whole record. The text stays on disk."""

    job_id: JobId
    owner: str
    session: str
    base: int
    content_hash: str | None
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Record:
    kind: bytes
    body: bytes


class Segment:
    """An open file of the spool. `turns` are those that it holds, sent or not; `gone` the ids that are done with;
    `forgotten` every id for which it records an erasure, of turns in it or in another file.

    `damaged` counts the damaged places found so far. `unreadable` counts records that check and that this release
    cannot decode, or damage that could not be copied: the file stays.
    """

    def __init__(self, path: Path, fd: int, *, is_ours: bool) -> None:
        self.path, self.is_ours = path, is_ours
        self._fd = fd
        self._end = 0
        self.turns: dict[JobId, SpoolEntry] = {}
        self.gone: set[JobId] = set()
        self.forgotten: set[JobId] = set()
        self.unreadable = self.damaged = 0

    @classmethod
    def create(cls, folder: Path, *, suffix: str = "") -> Self:
        """A new one, locked by this process; `suffix` follows the id in its name."""
        while True:
            path = folder / f"{time.time_ns() // 1000}-{uuid4().hex[:12]}{suffix}.spool"
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            if _lock(fd, path):
                _sync_folder(folder)
                return cls(path, fd, is_ours=True)
            os.close(fd)  # another process took it over before it was locked

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Take over the file of an ended process and lock it; None if the process runs, or the file was deleted."""
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if not _lock(fd, path):
            os.close(fd)
            return None
        segment = cls(path, fd, is_ours=True)
        segment.refresh()
        segment._keep_tail()
        return segment

    @classmethod
    def open_read_only(cls, path: Path) -> Self | None:
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
        """Of what has been read or written."""
        return self._end

    def refresh(self) -> None:
        """Read what was appended since. Damage is skipped; a last record that is not whole (yet) is left."""
        size = os.fstat(self._fd).st_size
        while self._end < size:
            record = self._record_at(self._end, size)
            if record is None:
                found = self._next_record(self._end + 1, size)
                if found is None:
                    return
                self._keep_damaged(self._end, found)
                self._end = found
                continue
            length = _HEADER.size + len(record.body)
            self._note(record, self._end, length)
            self._end += length

    def append(self, turns: Sequence[tuple[Turn, bytes]]) -> list[SpoolEntry]:
        """Write the turns and wait until the disk has them. All or none; raises `OSError`."""
        data, entries = bytearray(), []
        for turn, payload in turns:
            record = _packed(_TURN, payload)
            entries.append(_entry(turn, self._end + len(data), len(record)))
            data += record
        self._write(bytes(data), is_synced=True)
        for entry in entries:
            self._list(entry)
        return entries

    def mark(self, ids: Iterable[JobId], *, forgotten: bool = False) -> None:
        """Note turns as sent or forgotten. Sent is not synced: at worst a turn is sent twice, which changes nothing."""
        listed = list(ids)
        self.gone.update(listed)
        body = b"".join(job_id.bytes for job_id in listed)
        self._write(_packed(_FORGOTTEN if forgotten else _SENT, body), is_synced=forgotten)
        if forgotten:
            self.forgotten.update(listed)

    def payload(self, entry: SpoolEntry) -> bytes | None:
        """The turn's bytes; None if they were damaged since. Then a copy is kept, and the turn is not listed again."""
        record = self._record_at(entry.offset, entry.offset + entry.length)
        if record is not None:
            return record.body
        if self.turns.pop(entry.job_id, None) is not None:
            self._keep_damaged(entry.offset, entry.offset + entry.length)
        return None

    def remove(self) -> None:
        """Delete the file; only for one of ours."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close it and release the lock. Its turns wait for the next process."""
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

    def _record_at(self, offset: int, size: int) -> _Record | None:
        """The record that begins at `offset`, if it is whole before `size` and checks."""
        header = os.pread(self._fd, _HEADER.size, offset)
        if len(header) < _HEADER.size:
            return None
        marker, kind, length, crc = _HEADER.unpack(header)
        if marker != _MARKER or kind not in _KINDS or offset + _HEADER.size + length > size:
            return None
        body = os.pread(self._fd, length, offset + _HEADER.size)
        if len(body) != length or _check(kind, body) != crc or (kind != _TURN and length % _ID_BYTES):
            return None
        return _Record(kind, body)

    def _next_record(self, start: int, size: int) -> int | None:
        """The offset of the first record from `start` that checks."""
        return next((offset for offset in self._markers(start, size) if self._record_at(offset, size)), None)

    def _markers(self, start: int, size: int) -> Iterator[int]:
        while start < size:
            chunk = os.pread(self._fd, _CHUNK_BYTES, start)
            at = chunk.find(_MARKER)
            while at >= 0:
                yield start + at
                at = chunk.find(_MARKER, at + 1)
            if len(chunk) < len(_MARKER):
                return
            start += len(chunk) - len(_MARKER) + 1  # a marker may span two reads

    def _keep_tail(self) -> None:
        """The writer has ended, so an incomplete record at the end will never be completed."""
        size = os.fstat(self._fd).st_size
        if self._end < size:
            self._keep_damaged(self._end, size)
            self._end = size

    def _keep_damaged(self, start: int, end: int) -> None:
        """Copy the bytes to a file that no process deletes but `forget`; only for a file of ours."""
        self.damaged += 1
        if not self.is_ours:  # its own process reports it, or the one that takes it over
            return
        name, separator, target = self.path.stem.partition("@")
        # By offset: a second copy replaces the first.
        kept = self.path.with_name(f"{name}-{start}{separator}{target}{DAMAGED}")
        evidence = {"path": str(self.path), "offset": start, "bytes": end - start, "kept": str(kept)}
        try:
            self._copy(start, end, kept)
        except OSError as exc:
            self.unreadable += 1
            log.error("spool is damaged; the bytes could not be copied", extra={**evidence, "error": str(exc)})
        else:
            log.error("spool is damaged; the bytes are kept", extra=evidence)

    def _copy(self, start: int, end: int, target: Path) -> None:
        fd = os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        try:
            while start < end and (chunk := os.pread(self._fd, min(_CHUNK_BYTES, end - start), start)):
                start += len(chunk)
                while chunk:
                    chunk = chunk[os.write(fd, chunk) :]
            _sync(fd)
        finally:
            os.close(fd)
        _sync_folder(target.parent)

    def _note(self, record: _Record, offset: int, length: int) -> None:
        body = record.body
        if record.kind in (_SENT, _FORGOTTEN):
            ids = [JobId(UUID(bytes=body[i : i + _ID_BYTES])) for i in range(0, len(body), _ID_BYTES)]
            self.gone.update(ids)
            if record.kind == _FORGOTTEN:
                self.forgotten.update(ids)
            return
        try:
            entry = _entry(decode_turn(body), offset, length)
        except errors.UnknownPayload as exc:
            self.unreadable += 1  # a later release wrote it: the file stays until one reads it
            log.warning("spooled turn of an unknown version", extra={"path": str(self.path), "version": exc.version})
            return
        self._list(entry)

    def _list(self, entry: SpoolEntry) -> None:
        """A turn is unsent from its last record on: it may have been forgotten and remembered again with its key."""
        self.turns[entry.job_id] = entry
        self.gone.discard(entry.job_id)


def _entry(turn: Turn, offset: int, length: int) -> SpoolEntry:
    return SpoolEntry(
        job_id=turn.job_id,
        owner=owner_part(turn.scope),
        session=turn.scope.session_id or "",
        base=turn.base,
        content_hash=turn.content_hash,
        offset=offset,
        length=length,
    )


def _packed(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(_MARKER, kind, len(body), _check(kind, body)) + body


def _check(kind: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_CHECKED.pack(kind, len(body))))


def is_locked(path: Path) -> bool:
    """Whether a running process holds the file; not, where this process may not read it."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


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
