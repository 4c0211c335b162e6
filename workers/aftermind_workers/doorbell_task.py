"""The only Celery task: on a doorbell, the worker claims pending jobs.

A doorbell means "there is work of this queue's kinds" and nothing else. It has a job id only for display in Flower; the
work is claimed, so a doorbell that is lost, duplicated, late, forged or for a finished job does no harm.
"""

import asyncio
from typing import Any
from uuid import UUID

from celery import Celery, Task

from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.wire import queues
from aftermind_tasks.runtime import NOT_READY
from aftermind_workers import early_doorbell_strategy, lifecycle, metrics

log = get_logger(__name__)

EARLY = "aftermind_workers.early_doorbell_strategy:strategy"  # by name: a function would become a method of the task


def add_task(app: Celery, settings: Settings) -> None:
    """Register `aftermind.run`. Its name never changes: workers discard unknown names."""

    def run(task: Task, *args: object, **kwargs: object) -> None:
        queue = queue_name(task)
        if queue is None or not is_bell(args, kwargs):
            metrics.BELLS.labels(queue=queue or "unknown", outcome="garbage").inc()
            log.warning("doorbell refused", extra={"queue": queue})
            return
        answer(settings, queue, task.request.id)

    app.task(run, name=queues.TASK, bind=True, ignore_result=True, typing=False, Strategy=EARLY)


def answer(settings: Settings, queue: str, bell: str | None) -> None:
    """Wait for the queue's work on this process's loop, which may have begun as the bell came."""
    try:
        worker = lifecycle.current(settings)
        done = worker.loop.wait(early_doorbell_strategy.begun(worker, queue, bell))
    except asyncio.CancelledError:  # the grace time of a shutdown is over; leases were handed back
        log.info("doorbell ended early", extra={"queue": queue})
        return
    except NOT_READY as exc:
        metrics.BELLS.labels(queue=queue, outcome="failed").inc()
        log.warning("doorbell failed", extra={"queue": queue, "error": str(exc)})
        return
    except Exception:
        # Nothing is lost: what was not done is rung for again. An error must not reach Celery, which would log it
        # with its arguments and count the bell as a failed task.
        metrics.BELLS.labels(queue=queue, outcome="failed").inc()
        log.exception("doorbell failed", extra={"queue": queue})
        return
    metrics.BELLS.labels(queue=queue, outcome="work" if done else "nothing").inc()


def queue_name(task: Task) -> str | None:
    """The queue that the bell came by, or None where it names none of ours."""
    info: dict[str, Any] = task.request.delivery_info or {}  # Any: Celery's own mixed values
    name = info.get("routing_key")
    return name if name in queues.QUEUES else None


def is_bell(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether the message has the shape of ours: one job id."""
    if kwargs or len(args) != 1 or not isinstance(args[0], str):
        return False
    try:
        UUID(args[0])
    except ValueError:
        return False
    return True
