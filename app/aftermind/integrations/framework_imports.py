"""Imports of frameworks, each with the extra that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from aftermind import errors
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory


@contextmanager
def extra(name: str, *, python: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Imports inside raise `ExtraMissing`, with the name of the extra, where a package is not installed.

    `python` is the version from which on the extra installs it.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise errors.ExtraMissing(name, exc.name or "", python=python) from exc


def to_async(memory: Memory | SyncMemory) -> Memory:
    """Return the async memory of a blocking or async `Memory`."""
    if isinstance(memory, SyncMemory):
        behind: Memory = memory._behind
        return behind
    return memory
