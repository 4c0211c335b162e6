"""kombu's Redis transport with a check of what it pops and hears, before any of it is parsed.

kombu takes a message off the list, parses it, and only then hands it on. An error in between ends the worker, or puts
the message back for the next worker to fail on.
"""

from queue import Empty
from typing import Any

import orjson
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis
from redis import exceptions

from aftermind.wire import queues
from aftermind_workers.doorbell_check import check_redis_item, refusals

REPLY_KEY_SUFFIX = ".reply.celery.pidbox"  # of the list with the answers to what Flower asks workers
MAX_REPLY_BYTES = 1_000_000
PASSED_ON = (exceptions.RedisError, OSError, Empty)  # of the connection: the consumer reconnects


class DoorbellChannel(kombu_redis.Channel):
    """A channel that delivers doorbells, and well-formed broadcasts and answers of Celery's remote control."""

    def _create_client(self, asynchronous: bool = False) -> Any:  # Any: redis-py's client, made by kombu
        client = super()._create_client(asynchronous)  # type: ignore[no-untyped-call]
        client.set_response_callback("BRPOP", _only_doorbells)
        return client

    def _brpop_read(self, **options: object) -> Any:  # Any: kombu's own
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError as exc:
            if "WRONGTYPE" in str(exc):
                self._delete_mistyped_queue_keys()
            raise

    def _delete_mistyped_queue_keys(self) -> None:
        """Delete queues' keys that are no lists: nothing can be rung or popped there, and doorbells are expendable."""
        for queue in self.active_queues:
            try:
                self.client.llen(queue)
            except exceptions.ResponseError as exc:
                if "WRONGTYPE" in str(exc):
                    self.client.delete(queue)
                    refusals.note(queue, "its key is no list")

    def _receive_one(self, client: Any) -> Any:  # Any: kombu's own
        try:
            return super()._receive_one(client)  # type: ignore[no-untyped-call]
        except PASSED_ON:
            raise
        except Exception as exc:  # the border: whatever was published, it must not end the worker
            refusals.note("broadcast", type(exc).__name__)
            raise Empty from exc


class SentinelDoorbellChannel(DoorbellChannel, kombu_redis.SentinelChannel):
    """The same to the primary that sentinels name."""


class DoorbellTransport(kombu_redis.Transport):
    """kombu's Redis transport with our channel."""

    Channel = DoorbellChannel


class SentinelDoorbellTransport(kombu_redis.SentinelTransport):
    """The same for sentinels."""

    Channel = SentinelDoorbellChannel


def install() -> None:
    """Let every Redis broker URL of this process use it, unix sockets, TLS and sentinels included."""
    path = f"{__name__}:{DoorbellTransport.__name__}"
    TRANSPORT_ALIASES.update(redis=path, rediss=path, sentinel=f"{__name__}:{SentinelDoorbellTransport.__name__}")


def _only_doorbells(answer: Any, **options: object) -> Any:  # Any: [key, item], or nothing
    """The answer to BRPOP, or nothing where the item is no doorbell: it has left the list, so it is dropped."""
    if not answer:
        return None
    key, item = answer
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
    data = item if isinstance(item, bytes) else str(item).encode("utf-8", "replace")
    is_reply = name.split("\x06", 1)[0].endswith(REPLY_KEY_SUFFIX)
    why = _check_reply(data) if is_reply else check_redis_item(data, name)
    if why is None:
        return key, item
    refusals.note(next((each for each in _names(name)), None), why)
    return None


def _check_reply(item: bytes) -> str | None:
    """Why an answer of a worker cannot be parsed, None if it can."""
    if len(item) > MAX_REPLY_BYTES:
        return "too large"
    try:
        message = orjson.loads(item)
    except orjson.JSONDecodeError:
        return "not JSON"
    is_message = isinstance(message, dict) and message.get("content-type") == "application/json"
    return None if is_message and isinstance(message.get("properties"), dict) else "not a message"


def _names(key: str) -> list[str]:
    return [each for each in queues.QUEUES if key.split("\x06", 1)[0].endswith(each)]
