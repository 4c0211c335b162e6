"""Validates doorbells before kombu and Celery parse them, since a client that may send doorbells can push anything.

A doorbell has one job id and every option at its default. All else is refused and counted: text that is not JSON,
another shape, another task, options such as `eta`, `chain` or `reply_to`. Nothing is lost by a refusal, because the
reconciler re-notifies about every job.
"""

import binascii
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from aftermind.telemetry.logger import get_logger
from aftermind.wire import queues
from aftermind_workers import metrics

log = get_logger(__name__)

MAX_MESSAGE_BYTES = 4_096  # a doorbell has 1,200
MAX_BODY_BYTES = 512  # a doorbell's has 120
MAX_LABEL_CHARS = 200  # host and process of the sender, the id as text
LOG_INTERVAL_SECONDS = 1.0  # a flood of garbage must not fill the disk with log lines

Fields = Mapping[str, Any]  # Any: JSON of an unknown sender

_LABELS = frozenset({"lang", "id", "root_id", "argsrepr", "kwargsrepr", "origin"})
_PARTS = frozenset({"body", "content-encoding", "content-type", "headers", "properties"})
_RETURNED = "redelivered"  # kombu adds it to what a worker that ends puts back
_PROPERTIES = frozenset({"correlation_id", "delivery_tag", "delivery_mode", "delivery_info", "body_encoding"})
_INERT: tuple[object, ...] = (
    None,
    0,
    "",
    False,
    [],
    {},
    [None, None],
    (),
    (None, None),
)  # an option that changes nothing


def check_redis_item(item: bytes, key: str) -> str | None:
    """Why an item of the Redis list `key` is no doorbell, None if it is one."""
    if len(item) > MAX_MESSAGE_BYTES:
        return "too large"
    try:
        message = orjson.loads(item)
    except orjson.JSONDecodeError:
        return "not JSON"
    if not isinstance(message, dict) or message.keys() - {_RETURNED} != _PARTS:
        return "not a message"
    headers, properties, body = message["headers"], message["properties"], message["body"]
    if not isinstance(headers, dict) or not isinstance(properties, dict) or not isinstance(body, str):
        return "not a message"
    if properties.get("body_encoding") != "base64" or not _is_label(properties.get("delivery_tag")):
        return "not a message"
    if not all(value in _INERT for name, value in properties.items() if name not in _PROPERTIES):
        return "options"
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, dict) or not key.split("\x06", 1)[0].endswith(str(delivery.get("routing_key"))):
        return "of another queue"
    try:
        decoded = b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return "not a message"
    return refusal(
        headers,
        decoded,
        content_type=message["content-type"],
        encoding=message["content-encoding"],
        properties=properties,
        routing_key=delivery.get("routing_key"),
    )


def refusal(
    headers: object, body: object, *, content_type: object, encoding: object, properties: Fields, routing_key: object
) -> str | None:
    """Why a message of any broker is no doorbell, None if it is one."""
    if content_type != "application/json" or encoding != "utf-8":
        return "content type"
    if routing_key not in queues.QUEUES:
        return "of another queue"
    if not isinstance(headers, Mapping) or headers.get("task") != queues.TASK:
        return "another task"
    if not _is_id(headers.get("id")) or not all(_is_label(headers.get(name, "")) for name in _LABELS):
        return "headers"
    options = {name: value for name, value in headers.items() if name not in (*_LABELS, "task", "ignore_result")}
    options |= {name: properties.get(name) for name in ("reply_to", "expiration")}
    if not all(value in _INERT for value in options.values()):
        return "options"
    return None if _is_doorbell_body(body) else "body"


def _is_doorbell_body(body: object) -> bool:
    if not isinstance(body, bytes | str | memoryview) or len(body) > MAX_BODY_BYTES:
        return False
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(parsed, list) or len(parsed) != 3:
        return False
    args, kwargs, options = parsed
    if not isinstance(args, list) or len(args) != 1 or not _is_id(args[0]) or kwargs != {}:
        return False
    return isinstance(options, dict) and all(value in _INERT for value in options.values())


def _is_id(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MAX_LABEL_CHARS:
        return False
    try:
        UUID(value)
    except ValueError:
        return False
    return True


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL_CHARS


@dataclass(slots=True)
class RefusalLog:
    """Counts refused messages, and logs at most one line per interval."""

    _next_at: float = 0.0
    _unlogged: int = 0
    _queues: frozenset[str] = field(default_factory=lambda: frozenset(queues.QUEUES))

    def note(self, queue: object, why: str) -> None:
        """One message was refused; `queue` is "unknown" in the metric if it is none of ours."""
        name = queue if isinstance(queue, str) and queue in self._queues else "unknown"
        metrics.BELLS.labels(queue=name, outcome="garbage").inc()
        self._unlogged += 1
        now = time.monotonic()
        if now >= self._next_at:
            log.warning("message refused: no doorbell", extra={"queue": name, "reason": why, "count": self._unlogged})
            self._next_at, self._unlogged = now + LOG_INTERVAL_SECONDS, 0


refusals = RefusalLog()  # of this process
