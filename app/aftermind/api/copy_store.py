"""Copy a store into another: row by row, verified, resumable, and repeatable for what has changed since."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from aftermind import errors
from aftermind.api.store_from_url import make_journal
from aftermind.db.record_store_journals import process_liveness
from aftermind.db.record_store_journals.protocol import Batch, Journal, SharedJournal, is_shared
from aftermind.db.record_store_journals.row_codec import SHARED, dump_owner
from aftermind.settings import Settings

Rows = dict[tuple[str, str], bytes]  # by table and key, in the order of insertion
POSTGRES = ("postgresql", "postgres", "postgresql+asyncpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPartition:
    """The rows of one user, or the jobs of all, that are now the same in both stores.

    `checksum` is the SHA-256 of all rows of the source; those read back from the destination were compared with them.
    `was_there`: by an earlier run.
    """

    rows: int
    bytes: int
    checksum: str
    was_there: bool
    number: int
    of: int


def copy_store(source: str, destination: str, *, settings: Settings, update: bool = False) -> Iterator[CopiedPartition]:
    """Copy everything, partition by partition, each as one commit; a repeated call continues where one was stopped.

    `source` and `destination` are URLs. Stores of one process are locked until then; Postgres is not, and its URL is
    that of the owner of the tables. With `update`, users that have changed in the source since an earlier run are
    copied again; what the source has erased is erased. Raises `InvalidSettings` for stores without a lasting place,
    before anything is opened, and for a destination with rows that the source never had; `StoreInUse`,
    `StoreUnavailable`, `EmbedderMismatch`, and `StoreDamaged` if the destination does not return what was written.
    """
    (first, _), (second, resume) = (
        _open_later(name, url, settings) for name, url in (("source", source), ("destination", destination))
    )
    if first.name == second.name and "://" not in first.name:  # of such a server it does not name the database
        raise errors.InvalidSettings("destination", second.name, "it is the source. Name another store.")
    is_postgres = any(url.partition(":")[0] in POSTGRES for url in (source, destination))
    return _copy(_Copy(first, second, is_postgres=is_postgres, update=update), resume)


def _open_later(name: str, url: str, settings: Settings) -> tuple[Journal, Callable[[], None]]:
    """A store, and what ends the pause of its workers when it is complete."""
    if url.partition(":")[0] in POSTGRES:
        from aftermind.api.copy_postgres import PostgresPartitions  # SQLAlchemy: loaded only for Postgres

        postgres = PostgresPartitions(url, settings)
        return postgres, postgres.resume
    journal = make_journal(url, key_prefix=settings.redis_prefix)
    if journal is None:
        raise errors.InvalidSettings(name, url, "it is the memory of a process, which a command cannot reach.")
    return _SharedPartitions(journal) if is_shared(journal) else journal, lambda: None


def _copy(copy: "_Copy", resume: Callable[[], None]) -> Iterator[CopiedPartition]:
    copy.source.open()
    try:
        copy.destination.open()
        try:
            yield from copy.partitions()
            resume()
        finally:
            copy.destination.close()
    finally:
        copy.source.close()


class _SharedPartitions:
    """A store that other processes may have open: it is read as it is, and each commit follows theirs."""

    def __init__(self, journal: SharedJournal) -> None:
        self.name, self._journal = journal.name, journal
        self.open, self.compact, self.close = journal.open, journal.compact, journal.close

    def partitions(self) -> Iterable[str]:
        return [name for name in self._journal.read(-1, ()).partitions if any(True for _ in self.load(name))]

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        (found,) = self._journal.read(-1, (), partition).changes
        return [(table, key, row) for table, key, row in found.rows if row is not None]

    def commit(self, batch: Batch) -> None:
        state = self._journal.state()
        is_busy = state.holder and not process_liveness.has_ended(state.holder)
        if is_busy or self._journal.commit(batch, state, holder="") is None:
            raise errors.StoreInUse(self.name)


class _Copy:
    """Two open stores. Between Postgres and a store of one process rows are compared by their meaning."""

    def __init__(self, source: Journal, destination: Journal, *, is_postgres: bool, update: bool) -> None:
        self.source, self.destination = source, destination
        self._is_postgres, self._update = is_postgres, update
        self._active_vectors: str | None = None  # the table of the source that has them, when it has been read

    def partitions(self) -> Iterator[CopiedPartition]:
        # Sorted: the jobs, whose owner is "", come first. A running source may do a job in between, which the copy then
        # repeats; the other order could lose one. A run that was stopped continues in the same order.
        wanted, there = sorted(self.source.partitions()), frozenset(self.destination.partitions())
        if strays := there.difference(wanted):
            why = f"it has rows of {len(strays):,} users that the source does not have. Copy into an empty store."
            raise errors.InvalidSettings("destination", self.destination.name, why)
        load = self._load_active if self._is_postgres else partial(_load, self.source)
        for number, name in enumerate(wanted, start=1):
            rows = load(name)
            found = _load(self.destination, name) if name in there else {}
            was_there = bool(found) and self._are_same(rows, found)
            if not was_there and (rows or found):
                self._replace(name, rows, found)
            yield CopiedPartition(
                rows=len(rows),
                bytes=sum(map(len, rows.values())),
                checksum=_checksum(rows),
                was_there=was_there,
                number=number,
                of=len(wanted),
            )

    def _load_active(self, partition: str) -> Rows:
        """Postgres gets the vectors of the active embedder, in whichever table a store of one process has them."""
        from aftermind.api.copy_postgres import decode
        from aftermind.stores.inmemory.vector_tables_by_embedder import VECTOR_TABLES, find_table

        if self._active_vectors is None:
            shared = decode(self.source.name, _load(self.source, dump_owner(SHARED)))
            self._active_vectors = find_table(shared.get("embedders", {})) or VECTOR_TABLES[0]
        standby = [each for each in VECTOR_TABLES if each != self._active_vectors]
        rows = {place: row for place, row in _load(self.source, partition).items() if place[0] not in standby}
        return {
            (VECTOR_TABLES[0] if table == self._active_vectors else table, key): row
            for (table, key), row in rows.items()
        }

    def _replace(self, name: str, rows: Rows, found: Rows) -> None:
        if found:
            self._check_update(rows, found)
            self.destination.commit({name: dict.fromkeys(found)})  # rows keep the order in which they are inserted
        self.destination.commit({name: rows})
        if found:
            self.destination.compact([name])
        if not self._are_same(rows, _load(self.destination, name), is_ordered=True):
            raise errors.StoreDamaged(self.destination.name, "it does not return what was written")

    def _check_update(self, rows: Rows, found: Rows) -> None:
        if not self._update:
            why = "it has other rows of a user of the source. Copy into an empty store, or update a copy with --update."
            raise errors.InvalidSettings("destination", self.destination.name, why)
        gone = found.keys() - rows.keys()
        lost = {key for table, key in gone if table == "episodes" and ("expiring", key) not in gone}
        erasures = [sum(table == "tombstones" for table, _ in each) for each in (rows, found)]
        if lost and erasures[0] <= erasures[1]:
            why = f"it has {len(lost):,} messages of a user that the source never had. Copy into an empty store."
            raise errors.InvalidSettings("destination", self.destination.name, why)

    def _are_same(self, rows: Rows, found: Rows, *, is_ordered: bool = False) -> bool:
        if not self._is_postgres:
            return _by_table(rows) == _by_table(found) if is_ordered else rows == found
        from aftermind.api.copy_postgres import comparable, decode

        return comparable(decode(self.source.name, rows)) == comparable(decode(self.destination.name, found))


def _load(journal: Journal, partition: str) -> Rows:
    return {(table, key): row for table, key, row in journal.load(partition)}


def _by_table(rows: Rows) -> list[tuple[tuple[str, str], bytes]]:
    """Rows, in their order within each table, which is part of a store."""
    return sorted(rows.items(), key=lambda item: item[0][0])


def _checksum(rows: Rows) -> str:
    made = hashlib.sha256()
    for (table, key), row in sorted(rows.items()):
        for part in (table.encode(), key.encode(), row):
            made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()
