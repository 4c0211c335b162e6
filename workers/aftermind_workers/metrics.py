"""What workers count, for Prometheus.

Safe with several processes: where `PROMETHEUS_MULTIPROC_DIR` is set, each writes its own file there and whoever serves
`/metrics` adds them up. Labels are kinds and outcomes, never an owner: their number must not grow with users.
"""

from prometheus_client import Counter, Gauge, Histogram

BELLS = Counter(
    "aftermind_bells",
    "Doorbells by what came of them: work, nothing (doubled, late or forged), garbage (not a bell of ours), failed.",
    ["queue", "outcome"],
)
JOBS = Counter("aftermind_jobs", "Jobs by kind and by what came of them.", ["kind", "outcome"])
BATCH = Histogram("aftermind_batch_jobs", "Jobs of one claim.", ["kind"], buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500))
SECONDS = Histogram(
    "aftermind_batch_seconds",
    "Seconds from claim to close of one batch.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
RUNNABLE = Gauge(
    "aftermind_runnable_jobs", "Jobs that could run now, by kind.", ["kind"], multiprocess_mode="mostrecent"
)
OLDEST = Gauge(
    "aftermind_oldest_runnable_seconds", "Age of the oldest of them.", ["kind"], multiprocess_mode="mostrecent"
)
RSS = Gauge("aftermind_worker_rss_bytes", "Resident memory of the worker.", multiprocess_mode="liveall")
RUNG_AGAIN = Counter("aftermind_rung_again", "Bells that the reconciler rang for what nobody held.", ["queue"])
LEASES_EXPIRED = Counter("aftermind_leases_expired", "Leases that ran out without a word from their worker.")
