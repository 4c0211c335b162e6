"""Prometheus metrics of workers.

Safe with several processes: if `PROMETHEUS_MULTIPROC_DIR` is set, each writes a separate file there and the process
with `/metrics` adds them up. Labels are kinds and outcomes, never an owner: their number must not grow with users. The
service reads queue lengths at the moment of a scrape (`aftermind.web`).
"""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from aftermind.settings import Settings
from aftermind.telemetry import exposition
from aftermind.telemetry.logger import get_logger
from aftermind.telemetry.metrics import FRESHNESS_BUCKETS

log = get_logger(__name__)

BELLS = Counter(
    "aftermind_bells",
    "Doorbells by outcome: work, nothing (duplicated, late or forged), garbage (not a valid doorbell), failed.",
    ["queue", "outcome"],
)
JOBS = Counter("aftermind_jobs", "Jobs by kind and outcome.", ["kind", "outcome"])
BATCH = Histogram("aftermind_batch_jobs", "Jobs of one claim.", ["kind"], buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500))
SECONDS = Histogram(
    "aftermind_batch_seconds",
    "Seconds from claim to close of one batch.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 45, 60, 120),
)
FRESHNESS = Histogram(
    "aftermind_freshness_seconds",
    "Seconds from remember() until a turn was stored, embedded, mined for facts.",
    ["stage"],
    buckets=FRESHNESS_BUCKETS,
)
FAILURES = Counter("aftermind_failures", "Attempts that failed, by kind of job and reason.", ["kind", "reason"])
MODEL_CALLS = Counter("aftermind_model_calls", "Calls of models, by kind of job.", ["kind", "model"])
MODEL_SECONDS = Counter("aftermind_model_seconds", "Seconds that these calls took.", ["kind", "model"])
MODEL_TOKENS = Counter("aftermind_model_tokens", "Tokens of these calls, in and out.", ["kind", "model", "direction"])
MODEL_COST = Counter(
    "aftermind_model_cost_usd", "US dollars of these calls, for models with a price.", ["kind", "model"]
)
RSS = Gauge("aftermind_worker_rss_bytes", "Resident memory of the worker.", multiprocess_mode="liveall")
RUNG_AGAIN = Counter("aftermind_rung_again", "Doorbells that the reconciler sent for unclaimed jobs.", ["queue"])
WEBHOOK_POSTS = Counter(
    "aftermind_webhook_posts", "Events posted to webhooks: taken, refused, or unreadable.", ["outcome"]
)
EVENTS_UNREADABLE = Counter(
    "aftermind_events_unreadable", "Rows of the record that were no event, and were passed over."
)
LEASES_EXPIRED = Counter("aftermind_leases_expired", "Leases that ran out without a word from their worker.")


def count_webhook_post(outcome: str) -> None:
    """Count a post of an event to a webhook."""
    WEBHOOK_POSTS.labels(outcome=outcome).inc()


def serve(settings: Settings) -> None:
    """Serve metrics on `settings.metrics_port`, in a thread. An occupied port is logged, and is no reason to stop."""
    if not settings.metrics_port:
        return
    try:
        start_http_server(settings.metrics_port, addr=settings.metrics_host, registry=exposition.registry())
    except OSError as exc:
        log.error("metrics are not served", extra={"port": settings.metrics_port, "error": exc.strerror})
