"""Plain Celery with every recommended flag: each job is one message, and its effect one row. The baseline.

What a reader of Celery's documentation would build: late acknowledgement, rejection when a worker is lost, no prefetch,
a short visibility timeout that is swept often. Its job waits out an outage of Postgres: what is lost is the broker's.
"""

import asyncio
import os
import time
from typing import Any

import asyncpg
from celery import Celery

from aftermind_workers.event_loop_thread import LoopThread

QUEUE = "bare"
TASK = "bare.store"
OUTAGE = 30.0  # seconds for which a job tries again by itself
VISIBILITY = 12  # seconds: more than the longest freeze, and short enough to be seen within a run

CREATE = "CREATE TABLE IF NOT EXISTS public.bare (marker text NOT NULL, at timestamptz NOT NULL DEFAULT now())"
# Not derived from the configuration of our workers, whose consumer accepts doorbells only, and which keep no record of
# unacknowledged messages.
CONFIG: dict[str, Any] = {  # Any: Celery's own
    "task_default_queue": QUEUE,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "worker_pool": "prefork",
    "worker_concurrency": 1,
    "task_ignore_result": True,
    "task_serializer": "json",
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,
    "broker_pool_acquire_timeout": 0.5,  # the default waits for ever
    "broker_transport_options": {
        "visibility_timeout": VISIBILITY,
        "unacked_restore_interval": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "client_name": "bare-worker",
    },
}
_INSERT = "INSERT INTO public.bare (marker) VALUES ($1)"

_loops: dict[int, LoopThread] = {}
_connections: "dict[int, asyncpg.Connection[asyncpg.Record]]" = {}


def make_app() -> Celery:
    """The application, its broker and database named by the environment as ours are."""
    app = Celery("bare", set_as_current=False)
    # The runner has no broker: it imports this module for its names only.
    app.conf.update(CONFIG, broker_url=os.environ.get("AFTERMIND_BROKER_URL", "memory://"))
    app.task(store, name=TASK, ignore_result=True)
    return app


def store(marker: str) -> None:
    """The job: one row."""
    loop = _loops.get(os.getpid())
    if loop is None:
        loop = _loops[os.getpid()] = LoopThread()
        loop.start()
    deadline = time.monotonic() + OUTAGE
    while True:
        try:
            loop.run(_insert(marker), timeout=5.0)
            return
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


async def _insert(marker: str) -> None:
    """One row, over the process's own connection, which is opened anew when it has broken."""
    pid = os.getpid()
    connection = _connections.get(pid)
    if connection is None or connection.is_closed():
        connection = await asyncio.wait_for(asyncpg.connect(os.environ["AFTERMIND_DATABASE_URL"]), 3.0)
        _connections[pid] = connection
    await connection.execute(_INSERT, marker, timeout=3.0)


app = make_app()
