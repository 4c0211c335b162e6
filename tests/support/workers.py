"""Real Celery workers as processes, as operators start them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aftermind.wire import queues
from tests.support.fork_server import Process, end, start_module

APP = "aftermind_workers.celery_app"
TOUCHY = "tests.support.crashing_worker"  # the same, with a store job that stumbles over these words
DEADLY, SLOWLY = "take this worker with you", "one moment please"
HOPELESS, LOUDLY = "this can never be done", "say it aloud"


def environment(store: str, redis_url: str, **more: str) -> dict[str, str]:
    """What a worker is told: where things are, and settings of the test's own."""
    named = {
        "AFTERMIND_DATABASE_URL": store,
        "AFTERMIND_BROKER_URL": redis_url,
        "AFTERMIND_REDIS_URL": redis_url,
        "AFTERMIND_REPLICA_URLS": json.dumps([]),
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_EXTRACTOR": "rules",
    }
    return {**os.environ, **named, **more}


def start_worker(
    env: dict[str, str], log: Path, *, on: str = queues.STORE, app: str = APP, loglevel: str = "WARNING"
) -> Process:
    """A worker of one queue; its output goes to `log`."""
    command = ["celery", "--quiet", "-A", app, "worker", "-Q", on]
    command += ["-l", loglevel, "--without-gossip", "--without-mingle", "-n", f"{log.stem}@test"]
    with log.open("wb") as out:
        return start_module(command, env=env, output=out)


@contextmanager
def workers(
    env: dict[str, str],
    folder: Path,
    *,
    count: int = 1,
    on: str = queues.STORE,
    app: str = APP,
    loglevel: str = "WARNING",
) -> Iterator[list[Process]]:
    """So many workers for the block; ended by SIGTERM, as a deployment ends them."""
    logs = [folder / f"worker-{number}.log" for number in range(count)]
    started = [start_worker(env, log, on=on, app=app, loglevel=loglevel) for log in logs]
    try:
        yield started
    finally:
        end(started, timeout=30)
