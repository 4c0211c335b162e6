"""The `Journal` protocol: a durable place for partitions of rows; `SharedJournal`: one that several processes open."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a dependency of pydantic; the standard library has it from Python 3.13 on
    from typing_extensions import TypeIs


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """The row that each commit compares and replaces."""

    version: int
    holder: str  # the process that may commit; empty: any may become it
    waiting: str  # a process that asks for its turn

    def next(self, batch: Batch, holder: str) -> "StoreState":
        """The state after a commit. A holder that commits nothing and stays renews its turn: the version shows it."""
        waiting = "" if self.waiting == holder else self.waiting
        version = self.version + int(bool(batch) or holder == self.holder)
        return StoreState(version=version, holder=holder, waiting=waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """Table, key and row of what changed in a partition (None: deleted), or of all its rows."""

    partition: str
    rows: Sequence[tuple[str, str, bytes | None]]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What has changed up to a version: the names of all partitions, and the rows of those that were asked for."""

    version: int
    partitions: Collection[str] = ()
    changes: Sequence[PartitionChange] = ()


class SharedJournal(Protocol):
    """A journal of several processes. `state` and `read` come from a separate thread, concurrently with `commit`.

    It keeps deleted keys for some thousand versions, so that `read` can report the deletion.
    """

    name: str
    shared: str  # the partition of what belongs to no owner

    def open(self) -> None:
        """Connect and create what is missing."""

    def state(self) -> StoreState:
        """The state now."""

    def stamp(self) -> object | None:
        """A value that is equal as long as nothing was committed, read without waiting; None if there is none."""

    def read(self, since: int, cached: Container[str], wanted: str | None = None) -> Snapshot:
        """The changes after a version, of one moment: those of cached partitions, and all rows of the wanted one."""

    def commit(
        self, batch: Batch, expected: StoreState, *, holder: str, erased: Collection[str] = ()
    ) -> StoreState | None:
        """Write rows and the next state in one step, if version and holder are the expected ones; else None.

        A batch survives a power failure when this returns. Without one, only the holder changes, which may be lost by
        a power failure. `erased` are partitions of which deleted keys, too, are removed.
        """

    def ask(self, name: str) -> None:
        """Note that a process waits for its turn, if none is noted."""

    def compact(self, partitions: Iterable[str]) -> None:
        """Remove what deleted and replaced rows of these partitions held."""

    def close(self) -> None:
        """Give back the connections."""


AnyJournal = Journal | SharedJournal


def is_shared(journal: AnyJournal) -> "TypeIs[SharedJournal]":
    """Whether several processes may open it."""
    return hasattr(journal, "ask")
