"""Starts the work when its doorbell arrives, in parallel with Celery's processing of the message.

Celery creates a request for each message, notifies Flower and passes it to a thread, which asks the loop for the work:
2 of the 20 ms of a turn. The work needs none of that, so it starts first, and has the interpreter for a moment; the
task then waits for it. A doorbell is still acknowledged after the work.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from celery.worker.strategy import default as received

from aftermind.wire import queues
from aftermind_workers import claim_and_run_loop, lifecycle

MAX_BELLS = 64  # bells whose work has begun and whose task has not: prefetching keeps them to one for each thread
# Seconds for which Celery waits: a turn that comes alone is stored by then, and the next bell finds another worker.
# Work that waits for models gains nothing by it, and its bells should be at it together.
HEAD_START = {queues.STORE: 0.02}


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:  # Any: Celery's own
    """As `Task.Strategy`: what Celery does with a message, once its work has begun."""
    handle = received(task, app, consumer, **options)

    def on_bell(message: Any, *rest: Any, **more: Any) -> Any:  # Any: Celery's own
        worker = lifecycle.opened()
        queue, bell = message.delivery_info.get("routing_key"), message.headers.get("id")
        if worker is not None and queue in queues.QUEUES and isinstance(bell, str) and _has_room(worker, bell):
            future = worker.begun[bell] = worker.loop.submit(claim_and_run_loop.serve(worker, queue))
            wait([future], timeout=HEAD_START.get(queue, 0))
        return handle(message, *rest, **more)  # where nothing has begun, the task does the work itself

    return on_bell


def _has_room(worker: lifecycle.Worker, bell: str) -> bool:
    """Whether the bell's work may begin here; never where the worker is to stop."""
    if (
        len(worker.begun) >= MAX_BELLS
    ):  # Celery dropped messages, as it does with forged ones: their work is not waited for
        for known, work in list(worker.begun.items()):
            if work.done():
                worker.begun.pop(known, None)
    return not worker.is_stopping and bell not in worker.begun and len(worker.begun) < MAX_BELLS


def begun(worker: lifecycle.Worker, queue: str, bell: str | None) -> "Future[int]":
    """The work of this bell: what has begun already, else begun now."""
    future = worker.begun.pop(bell, None) if bell is not None else None
    return future or worker.loop.submit(claim_and_run_loop.serve(worker, queue))
