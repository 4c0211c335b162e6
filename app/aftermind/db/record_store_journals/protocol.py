"""The `Journal` protocol: a durable place for partitions of rows."""

from collections.abc import Iterable, Mapping
from typing import Protocol

Batch = Mapping[str, Mapping[tuple[str, str], bytes | None]]  # by partition, then by table and key; None deletes


class Journal(Protocol):
    """Rows as JSON, by partition, table and key. One process at a time; its calls come from one thread, one by one.

    All raise `StoreUnavailable`; `StoreDamaged` for content that cannot be read.
    """

    name: str  # the store in messages

    def open(self) -> None:
        """Connect, lock against other processes, create what is missing. Raises `StoreInUse`."""

    def partitions(self) -> Iterable[str]:
        """The partitions with rows."""

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        """Table, key and row of each row of a partition; rows of a table in the order in which they were inserted."""

    def commit(self, batch: Batch) -> None:
        """Write rows of any partitions, all of them or none. They survive a power failure when this returns."""

    def compact(self, partitions: Iterable[str]) -> None:
        """Remove what deleted and replaced rows of these partitions held."""

    def close(self) -> None:
        """Give back the connection and the lock."""
