"""Counts the reports of handlers in `metrics`, and sends failed jobs to Flower."""

from aftermind.ledger.protocol import ModelUsage
from aftermind.types import JobKind, Lease
from aftermind.wire.pending import ClaimedTurn
from aftermind_tasks.job_observer import Observer, Stage
from aftermind_tasks.job_outcome_types import Dead, Outcome, Retry
from aftermind_workers import metrics
from aftermind_workers.flower_events import FlowerReporter


class Counting(Observer):
    """An observer of a worker process. `showing` is set once the worker has a name."""

    showing: FlowerReporter | None = None

    def fresh(self, stage: Stage, seconds: float) -> None:
        """See `Observer`. The agent's clock may be ahead of ours."""
        metrics.FRESHNESS.labels(stage).observe(max(0.0, seconds))

    def spent(self, kind: JobKind, spent: ModelUsage) -> None:
        """See `Observer`."""
        model = spent.model or "unknown"
        metrics.MODEL_CALLS.labels(kind, model).inc(spent.calls)
        metrics.MODEL_SECONDS.labels(kind, model).inc(spent.latency_ms / 1_000)
        metrics.MODEL_TOKENS.labels(kind, model, "in").inc(spent.tokens_in)
        metrics.MODEL_TOKENS.labels(kind, model, "out").inc(spent.tokens_out)
        metrics.MODEL_COST.labels(kind, model).inc(spent.cost_usd)

    def failed(self, kind: JobKind, reason_code: str) -> None:
        """See `Observer`."""
        metrics.FAILURES.labels(kind, reason_code).inc()

    def leases_lost(self, count: int) -> None:
        """See `Observer`."""
        metrics.LEASES_EXPIRED.inc(count)

    def attempt_ended(self, lease: Lease, outcome: Outcome) -> None:
        """See `Observer`."""
        if isinstance(outcome, Retry | Dead):
            self.failed(lease.job.kind, outcome.failure.reason_code)
        if self.showing is not None:
            self.showing.attempt_ended(lease.job, outcome)

    def on_dead_letter(self, turn: ClaimedTurn, reason_code: str) -> None:
        """See `Observer`."""
        self.failed(JobKind.STORE, reason_code)
        if self.showing is not None:
            self.showing.on_dead_letter(turn, reason_code)
