"""Celery's messages, built without Celery; the only file of the agent's side that imports it, for brokers but Redis.

A doorbell signals "there is work", and names one job. It can be lost, duplicated or late without harm. It has the job
id and nothing else: headers, events and Flower never show user content.
"""

import itertools
import json
import os
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakSet

from aftermind import errors, extras
from aftermind.types import JobId
from aftermind.wire.queues import TASK, queue_arguments

# Placeholders of the template: as long as their values, and placed so that base64 keeps them separate (the body begins
# with `[["`, three bytes, and an id has 36, so its base64 begins and ends with the id's characters).
_ID = b"6d8b5f0e-0000-7000-8000-1d0000000001"
_TAG = b"6d8b5f0e-0000-7000-8000-1d0000000002"
_ID_IN_BODY = b64encode(_ID)

_DOORBELLS: "WeakSet[Doorbell]" = WeakSet()


class _Template(NamedTuple):
    """A message with `%b` for the placeholders; `order` lists (id, id in base64, tag) in the order of their
    occurrences.
    """

    form: bytes
    order: Callable[[tuple[bytes, bytes, bytes]], tuple[bytes, ...]]


class Doorbell:
    """Bells for one broker."""

    def __init__(self, broker: str, *, timeout: float = 0.5) -> None:
        self._broker, self._timeout = broker, timeout
        self._templates: dict[str, _Template] = {}
        self._count = itertools.count()
        self._app: Any = None  # Any: celery.Celery, imported late
        self._producer: Any = None  # Any: kombu.Producer
        self._begin_life()
        _DOORBELLS.add(self)

    def message(self, job_id: JobId, queue: str) -> bytes:
        """What kombu would push to the queue's list for this job, byte for byte but for the delivery tag."""
        template = self._templates.get(queue)
        if template is None:
            template = self._templates[queue] = _template(_rendered(queue))
        text = str(job_id).encode()
        own = (text, b64encode(text), b"%b-%d" % (self._life, next(self._count)))
        return template.form % template.order(own)

    def ring(self, queue: str, ids: Sequence[JobId]) -> None:
        """Send bells through kombu, with the broker's confirmation of each. Blocks; for brokers other than Redis.

        Raises `BrokerUnavailable`; the accepted turns are safe then, and are sent later.
        """
        with self._lock:
            app, was_connected = self._celery(), self._producer is not None
            try:
                self._publish_all(app, queue, ids)
            except _broker_errors(app) as exc:
                self._disconnect()
                if was_connected:  # the node may have died since: others of its cluster may take the bells
                    with suppress(*_broker_errors(app)):
                        self._publish_all(app, queue, ids)
                        return
                    self._disconnect()
                raise errors.BrokerUnavailable(f"{type(exc).__name__}: {exc}") from exc

    def close(self) -> None:
        """Close the broker connection that `ring` made."""
        with self._lock:
            self._disconnect()

    def _publish_all(self, app: Any, queue: str, ids: Sequence[JobId]) -> None:  # Any: celery.Celery
        producer = self._producer or self._connect(app)
        for job_id in ids:
            _publish(app, producer, str(job_id), queue, _queue(queue, self._broker), self._timeout)

    def _connect(self, app: Any) -> Any:  # Any: celery.Celery, kombu.Producer
        # A connection of our own: kombu's pools are shared by all apps of a process that use the same broker, and a
        # user's app may well be one of them.
        connection = app.connection_for_write()
        connection.ensure_connection(max_retries=max(len(connection.alt) - 1, 0))  # one attempt per URL
        self._producer = connection.Producer(auto_declare=False)
        return self._producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(OSError):  # it may be the reason why it is closed
                producer.connection.release()

    def _begin_life(self) -> None:
        # Per process: delivery tags are unique in it, and a lock that a thread of the parent holds would never be
        # released in a fork. A fork would also use the parent's broker connections.
        self._life, self._lock = os.urandom(16).hex().encode(), threading.Lock()
        self._app = self._producer = None

    def _celery(self) -> Any:  # Any: celery.Celery
        if self._app is None:
            extras.require("celery", "a broker other than Redis")
            from celery import Celery

            self._app = Celery("aftermind", broker=self._broker, set_as_current=False)
            self._app.conf.update(
                task_serializer="json",
                accept_content=["json"],
                task_ignore_result=True,
                broker_connection_timeout=self._timeout,
                broker_transport_options=_options(self._timeout),
            )
        return self._app


def _options(timeout: float) -> dict[str, Any]:  # Any: kombu's transport options
    # Confirmed: a bell that the broker did not write down raises here, instead of being rung again much later.
    return {"confirm_publish": True, "read_timeout": timeout, "write_timeout": timeout, "max_retries": 0}


def _queue(name: str, broker: str) -> Any:  # Any: kombu.Queue
    from kombu.entity import Queue

    return Queue(name, queue_arguments=queue_arguments(broker) or None)  # type: ignore[no-untyped-call]


def _publish(app: Any, producer: Any, job_id: str, queue: str, where: Any, timeout: float) -> None:
    # Any: Celery's app, kombu's producer and queue
    message = app.amqp.as_task_v2(job_id, TASK, args=(job_id,), argsrepr=f"('{job_id}',)", ignore_result=True)
    app.amqp.send_task_message(
        producer, TASK, message, queue=where, retry=False, serializer="json", timeout=timeout, confirm_timeout=timeout
    )


def _broker_errors(app: Any) -> tuple[type[BaseException], ...]:  # Any: celery.Celery
    # The answer of a quorum queue without a leader; it is no subclass of the connection's or channel's errors.
    from amqp.exceptions import MessageNacked  # type: ignore[import-untyped]
    from kombu.exceptions import KombuError

    unconnected = app.connection_for_write()
    return (
        OSError,
        TimeoutError,
        KombuError,
        MessageNacked,
        *unconnected.connection_errors,
        *unconnected.channel_errors,
    )


def _rendered(queue: str) -> bytes:
    """The message in version 2 of Celery's protocol, as kombu's Redis transport pushes it.

    https://docs.celeryq.dev/en/stable/internals/protocol.html; a test compares it with what Celery sends.
    """
    job_id = _ID.decode()
    embedded = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    headers: dict[str, Any] = {  # Any: JSON
        "lang": "py",
        "task": TASK,
        "id": job_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": job_id,
        "parent_id": None,
        "argsrepr": f"('{job_id}',)",
        "kwargsrepr": "{}",
        "origin": f"gen{os.getpid()}@{socket.gethostname()}",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": job_id,
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": _TAG.decode(),
    }
    message = {
        "body": b64encode(json.dumps([[job_id], {}, embedded]).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(message).encode()


def _template(rendered: bytes) -> _Template:
    """The message as a format, with a position for each placeholder."""
    names = (_ID, _ID_IN_BODY, _TAG)
    found = re.findall(b"|".join(names), rendered)
    if set(found) != set(names):
        raise errors.Bug(f"the message does not have the job id at the expected position: {rendered!r}")
    form = re.sub(b"|".join(names), b"%b", rendered.replace(b"%", b"%%"))
    return _Template(form, itemgetter(*(names.index(each) for each in found)))


def _after_fork() -> None:
    for doorbell in list(_DOORBELLS):
        doorbell._begin_life()


os.register_at_fork(after_in_child=_after_fork)
