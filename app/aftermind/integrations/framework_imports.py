"""Imports of frameworks, each with the extra that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from aftermind import errors


@contextmanager
def extra(name: str, *, python: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Imports inside raise `ExtraMissing`, with the name of the extra, where a package is not installed.

    `python` is the version from which on the extra installs it.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise errors.ExtraMissing(name, exc.name or "", python=python) from exc
