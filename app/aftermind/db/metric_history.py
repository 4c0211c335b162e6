"""History of the metrics: a sample a minute for a day, and a sample an hour for 30 days.

A sample maps series to values, named as `/metrics` has them. Counters and buckets (`_total`, `_bucket`) hold their
increase within the interval, gauges their value at its end (of an hour: the highest). Counters come from the rows of
jobs and attempts, so a sample has the work of all processes of a deployment; recalls come from `recall_counts`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import orjson
from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.telemetry.metrics import FRESHNESS_BUCKETS, QUICK
from aftermind.types.job import LEASE_LOST
from aftermind.types.job_admin import MetricSample

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
KEPT = {MINUTE: timedelta(days=1), HOUR: timedelta(days=30)}
STAGES = {"store": "stored", "embed": "embedded", "extract": "mined"}

Series = Mapping[str, float]

_DUE = text(
    """
    SELECT date_trunc('minute', clock_timestamp()) AS until, EXISTS (
        SELECT FROM aftermind.metric_history
        WHERE seconds = 60 AND at >= date_trunc('minute', clock_timestamp())) AS is_done
    """
)
# By `jobs_created`: a turn that Redis accepted gets its row when it is stored, and was due when it was accepted.
_STORED = text(
    """
    SELECT count(*) AS jobs,
           width_bucket(extract(epoch FROM updated_at - least(created_at, run_at)), CAST(:bounds AS numeric[])) AS place
    FROM aftermind.jobs
    WHERE kind = 'store' AND state = 'done' AND created_at >= CAST(:since AS timestamptz) - interval '10 min'
      AND updated_at >= :since AND updated_at < :until GROUP BY 2
    """
)
# By `job_attempts_started`: no attempt lasts longer than 10 minutes.
_ATTEMPTS = text(
    f"""
    SELECT jobs.kind, attempts.outcome, CASE attempts.outcome WHEN 'lost' THEN '{LEASE_LOST}'
               ELSE coalesce(jobs.reason_code, attempts.error_class, 'unknown') END AS reason,
           coalesce(attempts.model, 'unknown') AS model,
           width_bucket(extract(epoch FROM attempts.ended_at - jobs.created_at), CAST(:bounds AS numeric[])) AS place,
           count(*) AS attempts, sum(attempts.calls) AS calls, sum(attempts.cost_usd) AS cost_usd,
           sum(attempts.tokens_in) AS tokens_in, sum(attempts.tokens_out) AS tokens_out
    FROM aftermind.job_attempts AS attempts JOIN aftermind.jobs AS jobs ON jobs.id = attempts.job_id
    WHERE attempts.started_at >= CAST(:since AS timestamptz) - interval '10 min'
      AND attempts.ended_at >= :since AND attempts.ended_at < :until GROUP BY 1, 2, 3, 4, 5
    """
)
# Deleted as they are counted: rows that come later count in the next minute.
_RECALLS = text(
    "DELETE FROM aftermind.recall_counts WHERE at < clock_timestamp() RETURNING served_by, degraded, buckets"
)
_COUNT_RECALLS = text(
    """
    INSERT INTO aftermind.recall_counts (namespace, served_by, degraded, buckets)
    SELECT :namespace, served_by, degraded, CAST(buckets AS bigint[])
    FROM unnest(CAST(:served_by AS text[]), CAST(:degraded AS int[]), CAST(:buckets AS text[]))
         AS given (served_by, degraded, buckets)
    """
)
_ADD = text(
    """
    INSERT INTO aftermind.metric_history (seconds, at, series)
    VALUES (CAST(:seconds AS int), :at, CAST(:series AS jsonb)) ON CONFLICT (seconds, at) DO NOTHING
    """
)
_READ = text(
    """
    SELECT at, seconds, series FROM aftermind.metric_history
    WHERE seconds = CAST(:seconds AS int) AND at > :since AND at <= :until ORDER BY at
    """
)
_PRUNE = text(
    """
    DELETE FROM aftermind.metric_history
    WHERE seconds = CAST(:seconds AS int) AND at < clock_timestamp() - CAST(:age AS interval)
    """
)


async def due(tx: Transaction) -> datetime | None:
    """End of the last whole minute, by the database's clock, if it has no sample yet."""
    row = await pg(tx).row(_DUE)
    return None if row is None or row.is_done else row.until


async def sample(tx: Transaction, until: datetime, gauges: Series) -> None:
    """Add the sample of the minute before `until`, at each full hour that of the hour, and delete old ones."""
    series = {**gauges, **await _counters(tx, until - MINUTE, until), **await _recalls(tx)}
    await _add(tx, MINUTE, until, series)
    if until.minute == 0:
        await _add(tx, HOUR, until, merge(await read(tx, MINUTE, since=until - HOUR, until=until)))
    for step, age in KEPT.items():
        await pg(tx).execute(_PRUNE, {"seconds": step.total_seconds(), "age": age})


async def read(tx: Transaction, step: timedelta, *, since: datetime, until: datetime) -> list[MetricSample]:
    """Samples of a resolution, the oldest first."""
    given = {"seconds": step.total_seconds(), "since": since, "until": until}
    return [
        MetricSample(at=row.at, over=timedelta(seconds=row.seconds), series=row.series)
        for row in await pg(tx).rows(_READ, **given)
    ]


async def count_recalls(tx: Transaction, namespace: str, counts: Mapping[str, Sequence[int]]) -> None:
    """Add recalls that a process has counted: by the node that served them, first the degraded ones, then buckets."""
    given = {
        "served_by": list(counts),
        "degraded": [each[0] for each in counts.values()],
        "buckets": [f"{{{','.join(map(str, each[1:]))}}}" for each in counts.values()],
    }
    await pg(tx).execute(_COUNT_RECALLS, {"namespace": namespace, **given})


def merge(samples: Sequence[MetricSample]) -> Series:
    """Samples of a longer interval as one: counters added, of gauges the highest value."""
    merged: dict[str, float] = {}
    for each in samples:
        for name, value in each.series.items():
            is_counter = name.split("{")[0].endswith(("_total", "_bucket"))
            merged[name] = merged.get(name, 0.0) + value if is_counter else max(merged.get(name, value), value)
    return merged


async def _add(tx: Transaction, step: timedelta, at: datetime, series: Series) -> None:
    rounded = {name: round(value, 6) for name, value in series.items()}
    given = {"seconds": step.total_seconds(), "at": at, "series": orjson.dumps(rounded).decode()}
    await pg(tx).execute(_ADD, given)


async def _counters(tx: Transaction, since: datetime, until: datetime) -> Series:
    over = {"since": since, "until": until, "bounds": list(FRESHNESS_BUCKETS)}
    found: dict[str, float] = {}
    places: dict[str, dict[int, int]] = {}

    def count(name: str, value: float) -> None:
        if value:
            found[name] = found.get(name, 0.0) + float(value)

    for row in await pg(tx).rows(_STORED, **over):
        count('aftermind_jobs_total{kind="store",outcome="done"}', row.jobs)
        places.setdefault("stored", {})[row.place] = row.jobs
    for row in await pg(tx).rows(_ATTEMPTS, **over):
        labels = f'kind="{row.kind}",model={_quoted(row.model)}'
        count(f"aftermind_model_calls_total{{{labels}}}", row.calls)
        count(f'aftermind_model_tokens_total{{{labels},direction="in"}}', row.tokens_in)
        count(f'aftermind_model_tokens_total{{{labels},direction="out"}}', row.tokens_out)
        count(f"aftermind_model_cost_usd_total{{{labels}}}", row.cost_usd)
        if row.outcome in ("failed", "dead", "lost"):
            count(f'aftermind_failures_total{{kind="{row.kind}",reason={_quoted(row.reason)}}}', row.attempts)
        if row.kind != "store":
            count(f'aftermind_jobs_total{{kind="{row.kind}",outcome="{row.outcome}"}}', row.attempts)
            stage = STAGES.get(row.kind)
            if row.outcome == "done" and stage is not None:
                of_stage = places.setdefault(stage, {})
                of_stage[row.place] = of_stage.get(row.place, 0) + row.attempts
    for stage, counts in places.items():
        ordered = [counts.get(place, 0) for place in range(len(FRESHNESS_BUCKETS) + 1)]
        found |= _buckets("aftermind_freshness_seconds", f'stage="{stage}"', FRESHNESS_BUCKETS, ordered)
    return found


async def _recalls(tx: Transaction) -> Series:
    found: dict[str, float] = {}
    by_node: dict[str, list[int]] = {}
    degraded = 0
    for row in await pg(tx).rows(_RECALLS):
        before = by_node.setdefault(row.served_by, [0] * (len(QUICK) + 1))
        if len(row.buckets) == len(before):  # of the same release
            by_node[row.served_by] = [a + b for a, b in zip(before, row.buckets, strict=True)]
            degraded += row.degraded
    for node, counts in by_node.items():
        found |= _buckets("aftermind_recall_seconds", f'served_by="{node}"', QUICK, counts)
    return found | ({"aftermind_recalls_degraded_total": float(degraded)} if degraded else {})


def _buckets(name: str, labels: str, bounds: Sequence[float], counts: Sequence[int]) -> Series:
    """Cumulative buckets, as Prometheus has them. `counts` has one more than `bounds`: what is beyond the last one."""
    found, total = {}, 0
    for bound, count in zip((*(f"{each:g}" for each in bounds), "+Inf"), counts, strict=True):
        total += count
        found[f'{name}_bucket{{{labels},le="{bound}"}}'] = float(total)
    return found if total else {}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
