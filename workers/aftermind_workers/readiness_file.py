"""Signals readiness to the process that started this one, with a file."""

from pathlib import Path

from aftermind.settings import Settings


def write_ready_file(settings: Settings) -> None:
    """Write the file of `settings.ready_file`, if it is set. The starting process removes it beforehand."""
    path: Path | None = settings.ready_file
    if path is not None:
        path.touch()
