"""Celery's consumer with a check of each message before Celery's own parsing; for brokers of every kind."""

from collections.abc import Callable
from typing import Any, ClassVar

from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from kombu import compression

from aftermind_workers.doorbell_check import refusal, refusals

logger = get_logger(__name__)


class DoorbellConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Named by the setting `worker_consumer`."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # as above
        """Celery's steps without delayed delivery, for which no message of ours asks.

        For quorum queues it declares dozens of exchanges at each broker URL in turn, before a worker takes anything:
        20 s with one node of three down.
        """

        default_steps: ClassVar[list[str]] = [
            step for step in Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")
        ]

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:  # Any: Celery's own
        """As Celery's, for doorbells. What is no doorbell is refused, and the broker drops it."""
        handle = super().create_task_handler(*args, **kwargs)

        def on_message(message: Any) -> Any:  # Any: kombu's message
            routing_key = (message.delivery_info or {}).get("routing_key")
            why = refusal(
                message.headers,
                message.body,
                content_type=message.content_type,
                encoding=message.content_encoding,
                properties=message.properties or {},
                routing_key=routing_key,
            )
            if why is None:
                return handle(message)
            refusals.note(routing_key, why)
            message.reject_log_error(logger, self.connection_errors)
            return None

        return on_message

    def on_decode_error(self, message: Any, exc: Exception) -> None:  # Any: kombu's message
        """A message that kombu could not make. Celery would log its content."""
        refusals.note((message.delivery_info or {}).get("routing_key"), type(exc).__name__)
        message.ack()


def refuse_compression() -> None:
    """Decompress no message in this process: kombu would do it before any check, and a few KB can become gigabytes."""
    for content_type in compression.encoders():  # type: ignore[no-untyped-call]
        compression.register(_refuse, _refuse, content_type)  # type: ignore[no-untyped-call]


def _refuse(body: bytes) -> bytes:
    raise ValueError("doorbells are not compressed")
