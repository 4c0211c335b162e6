"""The baseline's agent: numbered jobs by `send_task`, in threads so that a frozen broker stops nobody else.

Run as `python -m benchmarks.harness.plain_celery_producer SPEC`, where SPEC is the JSON of the producer's `Load`.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kombu.exceptions import OperationalError

from benchmarks.harness import messages
from benchmarks.harness.history import History, Remembered, now
from benchmarks.harness.plain_celery_app import QUEUE, TASK, app
from benchmarks.harness.run_settings import Load

# What our doorbell learnt about publishing: without them a frozen broker blocks the caller for ever.
PUBLISHING = {
    "socket_timeout": 0.5,
    "socket_connect_timeout": 0.5,
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}


async def produce(load: Load) -> None:
    """Send for the load's time; then end, because nothing is kept in this process."""
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **PUBLISHING}
    app.conf.task_publish_retry_policy = {"max_retries": 0}
    numbers = itertools.count()
    with History(Path(load.folder) / f"producer-{load.producer}.jsonl") as history:
        until = now() + load.seconds
        async with asyncio.TaskGroup() as lanes:
            for lane in range(load.lanes):
                lanes.create_task(_lane(load, history, numbers, lane, until))


async def _lane(load: Load, history: History, numbers: Iterator[int], lane: int, until: float) -> None:
    pause = load.lanes / load.rate
    due = now()
    while now() < until:
        due = max(due + pause, now() - pause)
        await asyncio.sleep(max(0.0, due - now()))
        number = next(numbers)
        marker = messages.marker_of(load.producer, number)
        before = Remembered(type="invoke", marker=marker, user=f"user-{lane}", session="", number=number, at=now())
        history.append(before)
        try:
            await asyncio.to_thread(app.send_task, TASK, args=[marker], queue=QUEUE, retry=False)
        except (OperationalError, OSError) as exc:
            history.append(replace(before, type="info", at=now(), why=str(exc)))
        else:
            history.append(replace(before, type="ok", at=now()))


if __name__ == "__main__":
    asyncio.run(produce(Load(**json.loads(sys.argv[1]))))
