"""`FileJournal`: rows in a folder, as lines of text with a checksum.

`log` gets each commit as one line, synced. When it is large, and when the journal is opened or closed, its rows are
appended to `partitions/`, one file for each partition, and it is emptied. A file whose lines are mostly outdated is
replaced by a new one. Repeating an append after a crash changes nothing, because the last line of a row counts.
"""

import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aftermind import errors, private_files
from aftermind.db.record_store_journals.protocol import Batch
from aftermind.telemetry.logger import get_logger

FORMAT = b"aftermind 1\n"
MAX_LOG_BYTES = 16 << 20
SLACK_BYTES = 64 << 10  # a file is replaced when it is twice as long as at its last replacement, and by this longer
_FIELDS = 4  # of each row in the log: partition, table, key, row; JSON has no tabs

Rows = dict[tuple[str, str], bytes]
log = get_logger(__name__)


class FileJournal:
    """See `Journal`. The folder is created if it does not exist."""

    def __init__(self, folder: Path) -> None:
        self.name, self._folder, self._log_path = f"json:{folder}", folder, folder / "log"
        self._log: int | None = None  # descriptor
        self._log_bytes = 0  # of whole lines; what follows is the rest of a failed write
        self._recent: dict[str, list[tuple[str, str, bytes | None]]] = {}  # rows of the log, by partition
        self._lengths: dict[str, tuple[int, int]] = {}  # of a partition's file: now, and after its last replacement
        self._lock: int | None = None

    def open(self) -> None:
        try:
            with self._errors():
                self._open()
        except errors.AftermindError:
            self._release()
            raise

    def partitions(self) -> Iterable[str]:
        with self._errors():
            return [self._read_name(path) for path in (self._folder / "partitions").glob("*.rows")]

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        with self._errors():
            return [(table, key, row) for (table, key), row in self._read(partition).items()]

    def commit(self, batch: Batch) -> None:
        fields = [
            field
            for partition, rows in batch.items()
            for (table, key), row in rows.items()
            for field in (partition.encode(), table.encode(), key.encode(), row or b"")
        ]
        line = _line(*fields)
        with self._errors():
            _append(self._open_log, line, after=self._log_bytes)
            self._log_bytes += len(line)
            self._note(fields)
        if self._log_bytes > MAX_LOG_BYTES:
            try:
                self._empty_log()
            except OSError as exc:  # the commit is in the log; the next one tries again
                log.warning("the log is not emptied", extra={"store": self.name, "error": str(exc)})

    def compact(self, partitions: Iterable[str]) -> None:
        with self._errors():
            for partition in partitions:
                self._replace(partition)
                self._recent.pop(partition, None)
            self._empty_log()

    def close(self) -> None:
        try:
            if self._log is not None:
                with self._errors():
                    self._empty_log()
        finally:
            self._release()

    @property
    def _open_log(self) -> int:
        if self._log is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
        return self._log

    def _open(self) -> None:
        private_files.make_folder(self._folder)
        marker = self._folder / "format"
        if any(self._folder.iterdir()) and (not marker.is_file() or marker.read_bytes() != FORMAT):
            why = "the folder belongs to another program, or to a later release. Name another folder."
            raise errors.InvalidSettings("url", self.name, why)
        private_files.create(marker, FORMAT)
        self._lock = os.open(marker, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except BlockingIOError as exc:
            raise errors.StoreInUse(self.name) from exc
        private_files.make_folder(self._folder / "partitions")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._log = os.open(self._log_path, flags, private_files.PRIVATE_MODE)
        _sync_folder(self._folder)
        self._recent, self._lengths = {}, {}
        for fields in self._parse(self._log_path, is_torn=True):
            self._note(fields)
        self._empty_log()

    def _release(self) -> None:
        for descriptor in (self._log, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._log = self._lock = None

    def _note(self, fields: "list[bytes]") -> None:
        for at in range(0, len(fields), _FIELDS):
            partition, table, key, row = fields[at : at + _FIELDS]
            self._recent.setdefault(partition.decode(), []).append((table.decode(), key.decode(), row or None))

    def _path(self, partition: str) -> Path:
        # Hashed: a name may be longer than a file system allows, and some do not distinguish upper and lower case.
        return self._folder / "partitions" / f"{hashlib.sha256(partition.encode()).hexdigest()[:40]}.rows"

    def _read(self, partition: str) -> Rows:
        rows: Rows = {}
        path, recent = self._path(partition), self._recent.get(partition, ())
        lines = self._parse(path, is_torn=bool(recent)) if path.exists() else [[partition.encode()]]
        if lines[:1] != [[partition.encode()]]:
            raise errors.StoreDamaged(self.name, f"{path} does not begin with the name of its partition")
        changes = [(table.decode(), key.decode(), row or None) for table, key, row in lines[1:]]
        for table, key, row in [*changes, *recent]:
            if row is None:
                rows.pop((table, key), None)
            else:
                rows[table, key] = row
        return rows

    def _empty_log(self) -> None:
        """Move the rows of the log to the files of their partitions."""
        for partition, rows in self._recent.items():
            length, replaced = self._lengths.get(partition, (0, None))
            if replaced is None or length > 2 * replaced + SLACK_BYTES:
                self._replace(partition)
            else:
                data = b"".join(_line(table.encode(), key.encode(), row or b"") for table, key, row in rows)
                with private_files.open_for_append(self._path(partition)) as file:
                    _append(file.fileno(), data, after=length)
                self._lengths[partition] = length + len(data), replaced
        self._recent.clear()
        os.ftruncate(self._open_log, 0)
        os.fsync(self._open_log)
        self._log_bytes = 0

    def _replace(self, partition: str) -> None:
        path, rows = self._path(partition), self._read(partition)
        if rows:
            lines = (_line(table.encode(), key.encode(), row) for (table, key), row in rows.items())
            private_files.write(path, b"".join([_line(partition.encode()), *lines]))
            self._lengths[partition] = (path.stat().st_size,) * 2
        else:
            self._lengths.pop(partition, None)
            path.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def _read_name(self, path: Path) -> str:
        with path.open("rb") as file:
            return file.readline().rstrip(b"\n").partition(b"\t")[2].decode()

    def _parse(self, path: Path, *, is_torn: bool) -> "list[list[bytes]]":
        """The fields of each line. If the last write may have been interrupted, its line may be incomplete."""
        *lines, rest = path.read_bytes().split(b"\n")
        found: list[list[bytes]] = []
        for number, line in enumerate(lines, 1):
            checksum, _, text = line.partition(b"\t")
            if checksum != b"%08x" % zlib.crc32(text):
                if is_torn and number == len(lines):
                    return found
                raise errors.StoreDamaged(self.name, f"line {number} of {path} does not fit its checksum")
            found.append(text.split(b"\t"))
        if rest and not is_torn:
            raise errors.StoreDamaged(self.name, f"the last line of {path} is incomplete")
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            hint = "Free disk space, or make the folder readable and writable for this user; the next call tries again."
            raise errors.StoreUnavailable(self.name, exc.strerror or str(exc), hint) from exc


def _line(*fields: bytes) -> bytes:
    text = b"\t".join(fields)
    return b"%08x\t%s\n" % (zlib.crc32(text), text)


def _append(descriptor: int, data: bytes, *, after: int) -> None:
    """Append synced; `after` is the length of what counts: what follows is the rest of a write that failed."""
    if os.fstat(descriptor).st_size != after:
        os.ftruncate(descriptor, after)
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems have no sync of a folder
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
