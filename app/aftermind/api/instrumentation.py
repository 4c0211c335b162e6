"""Metrics and spans of the calls of a `Memory`: Prometheus if it was given a registry, spans if tracing is on."""

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.outbox.protocol import Outbox, Sent
from aftermind.recall import Query, Recall
from aftermind.telemetry import tracing
from aftermind.telemetry.metrics import Instruments, instruments
from aftermind.types import RecallBlock, Turn

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Instrument:
    """Measures `remember` and `recall`. Used only while `is_on()`."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self._seen: Instruments | None = None if registry is None else instruments(registry)

    def is_on(self) -> bool:
        """Whether there are metrics or spans to write."""
        return self._seen is not None or tracing.is_on()

    async def send(self, outbox: Outbox, turn: Turn) -> Sent:
        """Hand a turn over. Its pending entry carries the span, so that the worker's are in the same trace."""
        ids = {"aftermind.job_id": str(turn.job_id), "aftermind.namespace": turn.scope.namespace}
        started = perf_counter()
        with tracing.span("aftermind.remember", **ids, **{"aftermind.messages": len(turn.messages)}) as span:
            try:
                sent = await outbox.send(turn if span is None else replace(turn, trace=tracing.carried()))
            except errors.AftermindError as exc:
                if self._seen is not None:
                    self._seen.refused.labels(type(exc).__name__).inc()
                raise
            if span is not None:
                span.set_attribute("aftermind.spooled", sent.spooled)
        if self._seen is not None:
            self._seen.remember.labels("spooled" if sent.spooled else "accepted").observe(perf_counter() - started)
        return sent

    async def recall(self, recall: Recall, query: Query) -> RecallBlock:
        """Recall, counted by the node that served it."""
        with tracing.span("aftermind.recall", **{"aftermind.namespace": query.scope.namespace}) as span:
            block = await recall.recall(query)
            if span is not None:
                span.set_attribute("aftermind.recall_id", str(block.id))
                span.set_attribute("aftermind.served_by", block.served_by)
                span.set_attribute("aftermind.chunks", block.chunks_included)
                span.set_attribute("aftermind.degraded", block.degraded is not None)
        if self._seen is not None:
            self._seen.recall.labels(block.served_by).observe(block.duration_ms / 1_000)
            if block.degraded is not None:
                self._seen.degraded.inc()
        return block
