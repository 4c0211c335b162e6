"""Our worker application, whose threads come to no bell once it is open: `celery -A tests.support.paused_worker`."""

import time

from aftermind.settings import Settings
from aftermind_workers import doorbell_task, lifecycle
from aftermind_workers.celery_app import app

__all__ = ["app"]

HELD = 600.0  # seconds; longer than a test waits for a turn

_answer = doorbell_task.answer


def _held(settings: Settings, queue: str, bell: str | None) -> None:
    if lifecycle.opened() is None:
        _answer(settings, queue, bell)
    else:
        time.sleep(HELD)


setattr(doorbell_task, "answer", _held)  # noqa: B010  # mypy takes an assignment for a mistake, which it is elsewhere
