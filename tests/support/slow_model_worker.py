"""Our worker application, slow to come back from what follows a commit: `celery -A tests.support.slow_model_worker`."""

import asyncio
from typing import Any

from aftermind_tasks.runtime import Runtime
from aftermind_workers.celery_app import app

__all__ = ["app"]

TELLING = 2.0  # seconds: several heartbeats of the test's worker

_after_commit = Runtime.after_commit


async def _slowly(self: Runtime, *given: Any, **named: Any) -> int:  # Any: as `after_commit`
    runnable = await _after_commit(self, *given, **named)
    await asyncio.sleep(TELLING)
    return runnable


setattr(Runtime, "after_commit", _slowly)  # noqa: B010  # mypy takes an assignment for a mistake, which it is elsewhere
