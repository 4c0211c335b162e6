"""What a `Memory` tells of its calls: to Prometheus where it was given a registry, and as spans where tracing is on."""

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.outbox.base import Outbox, Sent
from aftermind.recall import Query, Recall
from aftermind.telemetry import tracing
from aftermind.telemetry.metrics import Instruments, instruments
from aftermind.types import RecallBlock, Turn

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Watch:
    """Goes between a face and the room behind it; does nothing where nobody looks."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self._seen: Instruments | None = None if registry is None else instruments(registry)

    async def send(self, outbox: Outbox, turn: Turn) -> Sent:
        """Hand a turn over. Its pending entry carries the span, so that the worker's are in the same trace."""
        if not tracing.is_on():
            return await self._sent(outbox, turn)
        ids = {"aftermind.job_id": str(turn.job_id), "aftermind.namespace": turn.scope.namespace}
        with tracing.span("aftermind.remember", **ids, **{"aftermind.messages": len(turn.messages)}) as span:
            sent = await self._sent(outbox, replace(turn, trace=tracing.carried()))
            if span is not None:
                span.set_attribute("aftermind.spooled", sent.spooled)
            return sent

    async def recall(self, recall: Recall, query: Query) -> RecallBlock:
        """Recall, counted by the node that served it."""
        with tracing.span("aftermind.recall", **{"aftermind.namespace": query.scope.namespace}) as span:
            block = await recall.recall(query)
            if span is not None:
                span.set_attribute("aftermind.served_by", block.served_by)
                span.set_attribute("aftermind.chunks", block.chunks_included)
                span.set_attribute("aftermind.degraded", block.degraded is not None)
        if self._seen is not None:
            self._seen.recall.labels(block.served_by).observe(block.duration_ms / 1_000)
            if block.degraded is not None:
                self._seen.degraded.inc()
        return block

    async def _sent(self, outbox: Outbox, turn: Turn) -> Sent:
        if self._seen is None:
            return await outbox.send(turn)
        started = perf_counter()
        try:
            sent = await outbox.send(turn)
        except errors.AftermindError as exc:
            self._seen.refused.labels(type(exc).__name__).inc()
            raise
        self._seen.remember.labels("spooled" if sent.spooled else "accepted").observe(perf_counter() - started)
        return sent
