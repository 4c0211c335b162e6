"""All numbers of a process, or of all processes that share a folder, as Prometheus reads them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client: each process writes its numbers to a file there


def registry() -> "CollectorRegistry":
    """What a scrape of this process is answered from: the shared folder's sums, where there is one."""
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    folder = os.environ.get(FOLDER)
    if not folder:
        return REGISTRY
    _remove_gauges_of_dead_processes(Path(folder))
    every = CollectorRegistry()
    MultiProcessCollector(every)  # type: ignore[no-untyped-call]
    return every


def _remove_gauges_of_dead_processes(folder: Path) -> None:
    """Drop the live gauges of processes that were killed; their counters stay, so that sums never fall."""
    from prometheus_client.multiprocess import mark_process_dead

    for path in folder.glob("gauge_live*_*.db"):
        text = path.stem.rpartition("_")[2]
        with suppress(ValueError, FileNotFoundError):
            if not _lives(int(text)):
                mark_process_dead(int(text))  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
