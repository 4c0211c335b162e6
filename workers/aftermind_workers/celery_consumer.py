"""Celery's consumer with a check of each message before Celery's own parsing; for brokers of every kind."""

from collections.abc import Callable
from typing import Any, ClassVar

from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from celery.worker.consumer.control import Control
from celery.worker.pidbox import Pidbox
from kombu import compression

from aftermind_workers.doorbell_check import refusal, refusals

logger = get_logger(__name__)


class ReportsMailbox(Pidbox):  # type: ignore[misc]  # Celery has no types
    """A worker's end of Celery's remote control, which drops and counts malformed commands.

    Celery subscribes again after one, and a command that is sent until then reaches no worker.
    """

    def on_message(self, body: Any, message: Any) -> None:  # Any: what someone published
        """Answer one command."""
        self._forward_clock()
        try:
            self.node.handle_message(body, message)
        except self.c.connection_errors:
            self.reset()
        except Exception as exc:  # the border: whatever was published, it must not end the worker
            refusals.note("broadcast", type(exc).__name__)


class RemoteControl(Control):  # type: ignore[misc]  # as above
    """Celery's step, with that mailbox."""

    def __init__(self, c: Any, **kwargs: Any) -> None:  # Any: Celery's own
        super().__init__(c, **kwargs)
        self.box = ReportsMailbox(c)
        self.start, self.stop, self.shutdown = self.box.start, self.box.stop, self.box.shutdown


class DoorbellConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Named by the setting `worker_consumer`."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # as above
        """Celery's steps with our remote control, and without delayed delivery, for which no message of ours asks.

        For quorum queues it declares dozens of exchanges at each broker URL in turn, before a worker takes anything:
        20 s with one node of three down.
        """

        default_steps: ClassVar[list[object]] = [
            RemoteControl if step.endswith(":Control") else step
            for step in Consumer.Blueprint.default_steps
            if not step.endswith(":DelayedDelivery")
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
