"""Lines of the overview's charts and of `aftermind metrics`, from samples of the history. Pure."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from aftermind.types.job_admin import MetricSample

Lines = dict[str, list[float | None]]
Labelled = list[tuple[dict[str, str], float]]

CHARTS = (
    ("waiting", "Pending jobs", "count"),
    ("finished", "Throughput", "jobs per second"),
    ("recall", "Recall latency", "milliseconds"),
    ("age", "Oldest pending job", "seconds"),
    ("stages", "Latency p95 by stage", "seconds"),
    ("errors", "Failed attempts", "per minute"),
    ("served", "Recalls by node", "per minute"),
    ("cost", "Model cost", "US dollars per hour"),
)
STAGES = {"mined": "extracted"}  # the label in /metrics, and the word of the screens

_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


def series(samples: Sequence[MetricSample]) -> dict[str, Any]:  # Any: a list of times, and lines by name
    """What each of `CHARTS` draws, by its key; `at` are the times. A missing sample is a gap in every line."""
    rows = list(_without_gaps(samples))
    parsed = [None if each is None else _parsed(each) for _, each in rows]
    seconds = samples[0].over.total_seconds()
    per_minute, per_hour = 60 / seconds, 3_600 / seconds
    return {
        "at": [at for at, _ in rows],
        "waiting": _lines(parsed, "aftermind_runnable_jobs", "kind"),
        "finished": _lines(parsed, "aftermind_jobs_total", "kind", times=1 / seconds, only=("outcome", "done")),
        "age": _lines(parsed, "aftermind_oldest_runnable_seconds", "kind"),
        "recall": _recall(parsed),
        "stages": {
            STAGES.get(name, name): line
            for name, line in _quantiles(parsed, "aftermind_freshness_seconds_bucket", "stage", 0.95).items()
        },
        "errors": _lines(parsed, "aftermind_failures_total", "reason", times=per_minute),
        "served": _lines(parsed, "aftermind_recall_seconds_bucket", "served_by", times=per_minute, only=("le", "+Inf")),
        "cost": _lines(parsed, "aftermind_model_cost_usd_total", "model", times=per_hour),
    }


def quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """The value below which `share` of the observations are, from (upper bound, cumulative count) pairs; linear within
    a bucket.

    Observations beyond the last bound are reported as that bound.
    """
    total = buckets[-1][1]
    wanted = share * total
    for (low, below), (high, upto) in pairwise([(0.0, 0.0), *buckets]):
        if upto >= wanted:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (upto - below) if upto > below else high
    return buckets[-1][0]


def _without_gaps(samples: Sequence[MetricSample]) -> Iterable[tuple[float, MetricSample | None]]:
    """Each sample with its time; where some are missing, one without a sample, so that lines break there."""
    before = None
    for each in samples:
        if before is not None and each.at - before.at > 1.5 * each.over:
            yield (before.at + each.over).timestamp(), None
        yield each.at.timestamp(), each
        before = each


def _parsed(sample: MetricSample) -> dict[str, Labelled]:
    found: dict[str, Labelled] = {}
    for name, value in sample.series.items():
        family, _, labels = name.partition("{")
        found.setdefault(family, []).append((dict(_LABEL.findall(labels)), value))
    return found


def _lines(
    parsed: Sequence[dict[str, Labelled] | None],
    family: str,
    label: str,
    *,
    times: float = 1.0,
    only: tuple[str, str] | None = None,
) -> Lines:
    """A line for each value of a label that is ever above 0."""
    totals: list[dict[str, float] | None] = []
    for each in parsed:
        if each is None:
            totals.append(None)
            continue
        total: dict[str, float] = {}
        for labels, value in each.get(family, ()):
            if only is None or labels.get(only[0]) == only[1]:
                name = labels.get(label, "")
                total[name] = total.get(name, 0.0) + value * times
        totals.append(total)
    names = sorted({name for total in totals if total for name, value in total.items() if value > 0})
    return {name: [None if total is None else round(total.get(name, 0.0), 4) for total in totals] for name in names}


def _recall(parsed: Sequence[dict[str, Labelled] | None]) -> Lines:
    """p50 and p99 of all recalls, in milliseconds."""
    found: Lines = {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        values = _quantiles(parsed, "aftermind_recall_seconds_bucket", None, share).get("", [])
        found[name] = [None if value is None else round(value * 1_000, 2) for value in values]
    return found if found["p50"] else {"p50": [None] * len(parsed), "p99": [None] * len(parsed)}


def _quantiles(
    parsed: Sequence[dict[str, Labelled] | None], family: str, label: str | None, share: float
) -> dict[str, list[float | None]]:
    """A quantile of cumulative buckets by a label, or of all together."""
    found: list[dict[str, dict[float, float]]] = []
    for each in parsed:
        by_name: dict[str, dict[float, float]] = {}
        for labels, value in (each or {}).get(family, ()):
            buckets = by_name.setdefault(labels.get(label, "") if label else "", {})
            bound = float(labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + value
        found.append(by_name)
    names = sorted({name for by_name in found for name in by_name})
    return {
        name: [
            round(quantile(sorted(by_name[name].items()), share), 4) if by_name.get(name) else None for by_name in found
        ]
        for name in names
    }
