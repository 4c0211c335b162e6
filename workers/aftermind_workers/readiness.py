"""Tells whoever started this process that it takes work: a file that is there as soon as it does."""

from pathlib import Path

from aftermind.settings import Settings


def tell(settings: Settings) -> None:
    """Write the file of `settings.ready_file`, if one is named. Who starts the process removes it beforehand."""
    path: Path | None = settings.ready_file
    if path is not None:
        path.touch()
