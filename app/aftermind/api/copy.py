"""Copy a store of one process into another: row by row, verified, and resumable."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from aftermind import errors
from aftermind.api.record_stores import make_journal
from aftermind.db.journals.protocol import Journal

Rows = dict[tuple[str, str], bytes]  # by table and key, in the order of insertion


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPartition:
    """The rows of one user, or the jobs of all, that are now the same in both stores.

    `checksum` is the SHA-256 of all rows, read back from the destination. `was_there`: by an earlier run.
    """

    rows: int
    bytes: int
    checksum: str
    was_there: bool
    number: int
    of: int


def copy_store(source: str, destination: str, *, key_prefix: str) -> Iterator[CopiedPartition]:
    """Copy everything, partition by partition, each as one commit; a repeated call continues where one was stopped.

    `source` and `destination` are URLs of stores of one process. Both are locked until then. Raises `InvalidSettings`
    for other stores, before anything is opened, and for a destination that has other rows; `StoreInUse`,
    `StoreUnavailable`, and `StoreDamaged` if the destination does not return what was written.
    """
    first, second = (
        _journal(name, url, key_prefix) for name, url in (("source", source), ("destination", destination))
    )
    if first.name == second.name and "://" not in first.name:  # of a server it does not name the database
        raise errors.InvalidSettings("destination", second.name, "it is the source. Name another store.")
    return _copy(first, second)


def _journal(name: str, url: str, key_prefix: str) -> Journal:
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        why = "only stores of one process take rows as they are. Use `aftermind export` and `aftermind ingest`."
        raise errors.InvalidSettings(name, scheme, why)
    journal = make_journal(url, key_prefix=key_prefix)
    if journal is None:
        raise errors.InvalidSettings(name, url, "it is the memory of a process, which a command cannot reach.")
    return journal


def _copy(source: Journal, destination: Journal) -> Iterator[CopiedPartition]:
    source.open()
    try:
        destination.open()
        try:
            yield from _copy_partitions(source, destination)
        finally:
            destination.close()
    finally:
        source.close()


def _copy_partitions(source: Journal, destination: Journal) -> Iterator[CopiedPartition]:
    # Sorted: the jobs, whose owner is "", come first, and a run that was stopped continues in the same order.
    wanted, there = sorted(source.partitions()), frozenset(destination.partitions())
    if strays := there.difference(wanted):
        why = f"it has rows of {len(strays):,} users that the source does not have. Copy into an empty store."
        raise errors.InvalidSettings("destination", destination.name, why)
    for number, name in enumerate(wanted, start=1):
        rows = _load(source, name)
        found = _load(destination, name) if name in there else {}
        if found and found != rows:
            why = "it has other rows of a user of the source. Copy into an empty store."
            raise errors.InvalidSettings("destination", destination.name, why)
        if rows and not found:
            destination.commit({name: rows})
            if _by_table(_load(destination, name)) != _by_table(rows):
                raise errors.StoreDamaged(destination.name, "it does not return what was written")
        yield CopiedPartition(
            rows=len(rows),
            bytes=sum(map(len, rows.values())),
            checksum=_checksum(rows),
            was_there=bool(found),
            number=number,
            of=len(wanted),
        )


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
