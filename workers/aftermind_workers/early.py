"""Work that begins as its bell arrives, beside what Celery does for the bell.

Celery makes a request of each message, tells Flower of it and hands it to a thread, which asks the loop for the work:
2 of the 20 ms that a turn took. The work needs none of that, so it begins first, and for a moment it has the
interpreter to itself; the task then waits for what has begun. A bell is still acknowledged after the work.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from celery.worker.strategy import default as received

from aftermind.wire import queues
from aftermind_workers import lifecycle, shift

MOST = 64  # bells whose work has begun and whose task has not: prefetching keeps them to one for each thread
# Seconds for which Celery waits: a turn that comes alone is stored by then, and the next bell finds another worker.
# Work that waits for models gains nothing by it, and its bells should be at it together.
HEAD_START = {queues.STORE: 0.02}


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:  # Any: Celery's own
    """As `Task.Strategy`: what Celery does with a message, once its work has begun."""
    handle = received(task, app, consumer, **options)

    def on_bell(message: Any, *rest: Any, **more: Any) -> Any:  # Any: Celery's own
        begin(message.delivery_info.get("routing_key"), message.headers.get("id"))
        return handle(message, *rest, **more)

    return on_bell


def begin(queue: object, bell: object) -> None:
    """Begin the queue's work on this process's loop, where it has one and is not to stop. Never raises."""
    worker = lifecycle.opened()
    if worker is None or worker.is_stopping or queue not in queues.QUEUES or not isinstance(bell, str):
        return  # the task looks closer, and does the work itself
    if len(worker.begun) >= MOST:  # Celery dropped messages, as it does with forged ones: nobody waits for their work
        for known, work in list(worker.begun.items()):
            if work.done():
                worker.begun.pop(known, None)
    if bell in worker.begun or len(worker.begun) >= MOST:
        return
    future = worker.begun[bell] = worker.loop.submit(shift.serve(worker, str(queue)))
    wait([future], timeout=HEAD_START.get(str(queue), 0))


def begun(worker: lifecycle.Worker, queue: str, bell: str | None) -> "Future[int]":
    """The work of this bell: what has begun already, else begun now."""
    future = worker.begun.pop(bell, None) if bell is not None else None
    return future or worker.loop.submit(shift.serve(worker, queue))
