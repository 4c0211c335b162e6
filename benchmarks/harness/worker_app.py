"""The workers of a run: Aftermind's own, with a fault planted where the environment names one.

`python -m benchmarks.harness.worker_app -Q …` is a worker, without options a reconciler.
"""

import asyncio
import logging
import os
import sys

from aftermind_workers import celery_worker, reconciler
from aftermind_workers.celery_app import app
from benchmarks.harness import planted_bugs

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LabelledLines(logging.Formatter):
    """Lines with what a decision was about beside them: ids and counts."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, then what was given as `extra`."""
        extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
        return f"{super().format(record)} {extra or ''}"


def tell() -> None:
    """Write our own loggers' lines to stderr, past Celery's format."""
    handler = logging.StreamHandler()
    handler.setFormatter(LabelledLines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("aftermind", "aftermind_tasks", "aftermind_workers"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).propagate = False


tell()
planted_bugs.plant(os.environ)

if __name__ == "__main__":
    if sys.argv[1:]:
        celery_worker.run(app, sys.argv[1:])
    asyncio.run(reconciler._main())
