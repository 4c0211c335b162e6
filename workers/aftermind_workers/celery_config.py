"""All Celery settings, each with its reason."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from kombu.entity import Queue

from aftermind import errors
from aftermind.settings import Settings
from aftermind.wire import queues
from aftermind.wire.redis import sentinel, server_url

# 5.7 fixed workers that stop consuming after a Redis reconnect; older workers appear alive and do nothing.
OLDEST = {"celery": (5, 7), "kombu": (5, 7)}

# Threads that wait for the one loop of the process, so each is a bell at work, not a CPU.
# store: two, so that one batch is decoded while the other waits for its commit, and a third that the same tenant cannot
# have (`fair_share`), so that another's turn need not wait for these.
# extract: model calls are waits of seconds, and each thread holds one.
CONCURRENCY: Mapping[str, int] = {queues.STORE: 3, queues.EMBED: 2, queues.EXTRACT: 8, queues.REPLAY: 2}

TASK_SECONDS = 150  # of one bell, where the pool enforces it (prefork); threads rely on the deadline of each await


def check_versions(found: Mapping[str, str] | None = None) -> None:
    """Raise `InvalidSettings` where Celery or kombu is older than what the promises were measured on."""
    for name, oldest in OLDEST.items():
        is_version = (found or {}).get(name) or version(name)
        numbers = tuple(int(part) for part in re.findall(r"\d+", is_version)[:2])
        if numbers < oldest:
            wanted = ".".join(str(part) for part in oldest)
            raise errors.InvalidSettings(name, is_version, f"workers need {wanted} or later: pip install -U {name}.")


def celery_config(settings: Settings, *, broker: str) -> dict[str, Any]:  # Any: Celery's own mixed values
    """What `app.conf` is updated with."""
    return {**_delivery(), **_queues(broker), **_safety(), **_process(settings), **_broker(settings, broker)}


def _delivery() -> dict[str, Any]:
    return {
        "task_acks_late": True,  # after the work: an early acknowledgement forgets the bell of a killed worker
        "task_reject_on_worker_lost": False,  # True redelivers a poison job every second; the lease's end does it
        "task_retry_on_worker_lost": False,  # publishes with a countdown, which Redis redelivers while it waits
        "task_acks_on_failure": True,  # failures are rows of the ledger, not messages of the broker
        "task_acks_on_timeout": True,  # False would redeliver immediately, without back-off
        "task_ignore_result": True,  # the ledger has the result of a job
        "result_backend": None,  # no results, so no growth and no canvas state that can expire
        "worker_prefetch_multiplier": 1,  # nothing is reserved beyond what runs
        "worker_enable_prefetch_count_reduction": True,
        "worker_eta_task_limit": 100,  # only a precaution: no task has an ETA; `run_at` is a column
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # a blip must not burn paid model calls
        "task_send_sent_event": False,  # the agent's process would pay for it
    }


def _queues(broker: str) -> dict[str, Any]:
    arguments = dict(queues.queue_arguments(broker)) or None
    return {
        # Plain direct queues use the anonymous exchange: no binding table that could be lost. Declared like the
        # doorbell's: RabbitMQ refuses different declarations of a queue.
        "task_queues": [Queue(name, queue_arguments=arguments) for name in queues.QUEUES],  # type: ignore[no-untyped-call]
        "task_default_queue": queues.STORE,
        "task_create_missing_queues": False,  # a typo raises, instead of creating a queue without consumers
    }


def _safety() -> dict[str, Any]:
    return {
        "task_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],  # pickle from a broker is code from a broker
        "task_repr_maxlevels": 1,  # arguments travel in headers and events; ours is one job id
        "worker_hijack_root_logger": False,  # our logger names ids and counts only
    }


def _process(settings: Settings) -> dict[str, Any]:
    return {
        # Threads: one loop a process serves them all, so batches are larger and connections fewer; with prefork each
        # child has its own loop, pool and batch (see benchmarks/README.md).
        "worker_pool": "threads",
        "worker_consumer": "aftermind_workers.celery_consumer:DoorbellConsumer",  # refuses what is no doorbell
        "worker_max_tasks_per_child": 500,  # prefork only, as are the next three; threads have the memory watchdog
        "worker_max_memory_per_child": 400_000,  # KB
        "task_time_limit": TASK_SECONDS + 30,
        "task_soft_time_limit": TASK_SECONDS,
        "worker_soft_shutdown_timeout": settings.lease_seconds,  # a lease lasts longer, so the job never runs twice
        "worker_enable_soft_shutdown_on_idle": False,  # only matters with ETA tasks
        "worker_lost_wait": 10.0,
        "worker_send_task_events": True,  # Flower
    }


def _broker(settings: Settings, broker: str) -> dict[str, Any]:
    service = sentinel.parse_url(broker) if broker.startswith(f"{sentinel.SCHEME}://") else None
    is_server = broker.startswith(("redis", "unix"))
    options = _redis_options(settings) if is_server or service else {}
    if service is not None:
        options |= sentinel.kombu_options(service, timeout=2.0)
    return {
        **(_server(broker) if is_server else {"broker_url": sentinel.kombu_url(service) if service else broker}),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # the default gives up after 100, and the worker exits
        # A Redis that answers READONLY, OOM, LOADING, MASTERDOWN or NOPERM is away; by default the worker exits.
        "broker_channel_error_retry": True,
        "broker_heartbeat": 10,  # RabbitMQ: a node that is cut off is left within 20 s; the default is 120
        "broker_pool_limit": 10,
        "broker_pool_acquire_timeout": 0.5,  # new in 5.7; the default waits for ever
        "broker_transport_options": options,
    }


def _server(broker: str) -> dict[str, Any]:
    made: dict[str, Any] = {"broker_url": server_url.kombu_url(broker)}
    address = server_url.parse_url(broker)
    if server_url.has_tls(address):  # by default kombu verifies no server
        made["broker_use_ssl"] = server_url.tls_options(address)
    return made


def _redis_options(settings: Settings) -> dict[str, Any]:
    return {
        # Unacknowledged messages are recorded in the process only. A record in Redis was one more synced write before
        # any work began, only for a doorbell: the reconciler re-notifies about jobs of a killed worker within seconds,
        # long before a visibility timeout; a warm stop returns doorbells to their list anyway.
        "ack_emulation": False,
        "socket_timeout": 5,  # the default waits for ever; must exceed the 1 s of a pop
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "health_check_interval": 5,  # a half-open connection is noticed within 1 + 2 x 5 s
        "retry_on_timeout": False,  # a push that is sent again is a duplicate doorbell
        "global_keyprefix": settings.redis_prefix,
        "client_name": "aftermind-worker",
    }
