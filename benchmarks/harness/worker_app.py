"""The workers of a run: Aftermind's own, with a fault planted where the environment names one.

`celery -A benchmarks.harness.worker_app worker` is a worker, `python -m benchmarks.harness.worker_app` a reconciler.
"""

import asyncio
import logging
import os

from aftermind_workers import reconciler
from aftermind_workers.celery_app import app
from benchmarks.harness import planted

__all__ = ["app"]

planted.plant(os.environ)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(reconciler._main())
