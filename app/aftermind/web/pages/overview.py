"""Overview: queues, freshness, recalls, replicas, models and errors, live."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse

from aftermind import errors
from aftermind.api.health import Work
from aftermind.ledger.protocol import DailyUsage, ModelUsage
from aftermind.telemetry import exposition, metric_series
from aftermind.telemetry.metric_series import CHARTS
from aftermind.types import JobKind, JobState
from aftermind.types.api_key import Right
from aftermind.types.job_admin import JobCount, MetricSample, ProcessInfo
from aftermind.types.replay import JobFilter
from aftermind.web.pages import metric_deltas, rendering
from aftermind.web.pages.metrics_sampler import Pulse, Sample
from aftermind.web.pages.page_permissions import Seen, Viewer

RATE_OVER = timedelta(seconds=30)  # long enough to be calm, short enough to be now
LATENCY_OVER = timedelta(minutes=5)
SHARES = (0.5, 0.99)
GROUPS = 1_000  # groups of dead letters with equal errors; beyond it the counts are lower bounds
RANGES = ((0, "Live"), (1, "1 hour"), (24, "24 hours"), (720, "30 days"))
OF_ALL_TENANTS = ("errors", "cost")  # charts that show what others fail at and pay: for the right `tenants` alone
FINISHED = "done"  # the outcome of a job that did what it was for

router = APIRouter(route_class=rendering.PageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One queue, of all tenants if the viewer may see them, else of the viewer's. None: the store does not answer."""

    kind: str
    runnable: int | None
    age_seconds: float | None
    running: int | None
    waiting: int | None
    dead: int | None
    per_second: float


@router.get("/", response_class=HTMLResponse)
async def overview(request: Request, viewer: Seen, hours: Annotated[int, Query(ge=0, le=720)] = 1) -> HTMLResponse:
    """The whole page; its numbers and charts renew themselves. `hours` of history are drawn, 0: none, live."""
    charts = [chart for chart in (CHARTS if hours else CHARTS[:3]) if _may_see(viewer, chart[0])]
    more = {"hours": hours, "ranges": RANGES, "charts": charts}
    return rendering.page(request, "overview.html", await _measures(request, viewer) | more, here="overview")


@router.get("/overview/live", response_class=HTMLResponse)
async def live(request: Request, viewer: Seen) -> HTMLResponse:
    """The numbers alone."""
    return rendering.page(request, "_overview.html", await _measures(request, viewer))


@router.get("/overview/series")
async def series(request: Request, viewer: Seen, hours: Annotated[int, Query(ge=0, le=720)] = 0) -> JSONResponse:
    """What the charts draw: of the last hours from the history, else of the last 15 minutes from this process.

    The history is used once it has two samples, so that the charts are full when the page is opened.
    """
    history = await _history(viewer, timedelta(hours=hours)) if hours else ()
    if len(history) > 1:
        drawn = await asyncio.to_thread(metric_series.series, history)
    else:
        samples = await _pulse(request).samples()
        drawn = await asyncio.to_thread(_series, samples)  # some 10 ms of a quarter of an hour: not of the loop's
    allowed = {name: values for name, values in drawn.items() if _may_see(viewer, name)}
    return JSONResponse(allowed, headers={"Cache-Control": "no-store"})


def _may_see(viewer: Viewer, chart: str) -> bool:
    return chart not in OF_ALL_TENANTS or viewer.may(Right.TENANTS)


async def _history(viewer: Viewer, over: timedelta) -> Sequence[MetricSample]:
    try:
        return await viewer.memory.job_admin.metric_history(over=over)
    except errors.Unavailable:  # the components report it
        return ()


def _series(samples: Sequence[Sample]) -> dict[str, object]:
    kinds, rates = _kinds(samples), [_finished(samples[: place + 1]) for place in range(len(samples))]
    return {
        "at": [sample.at.timestamp() for sample in samples],
        "waiting": {kind.value: [_runnable(sample, kind) for sample in samples] for kind in kinds},
        "finished": {kind.value: [rate.get(kind.value) for rate in rates] for kind in kinds},
        "recall": _recall_series(samples),
    }


async def _measures(request: Request, viewer: Seen) -> dict[str, object]:
    memory, samples = viewer.memory, await _pulse(request).samples()
    now = samples[-1]
    before = _back(samples, LATENCY_OVER)
    finished = _finished(samples)
    recalls = metric_deltas.grown(before.counts, now.counts, "aftermind_recall_seconds_count", ("served_by",))
    is_up = _is_up(now)
    is_shown = is_up and viewer.may(Right.OPERATE)  # dead letters and costs are shown to operators only
    spending = await memory.spending(namespace=viewer.namespace, everybody=True) if is_shown else []
    wanted = JobFilter(namespace=viewer.namespace)
    groups = await memory.dead_letters.groups(wanted, limit=GROUPS) if is_shown else None
    return {
        "health": now.health,
        "rows": await _rows(viewer, now, finished, is_up=is_up),
        "of_all": viewer.may(Right.TENANTS),
        "per_second": sum(finished.values()),
        "fresh": metric_deltas.quantiles(before.counts, now.counts, "aftermind_freshness_seconds", "stage", SHARES),
        "recall": metric_deltas.quantiles(before.counts, now.counts, "aftermind_recall_seconds", None, SHARES).get(""),
        "recall_by": metric_deltas.quantiles(
            before.counts, now.counts, "aftermind_recall_seconds", "served_by", SHARES
        ),
        "recalls": {key[0]: round(count) for key, count in recalls.items()},
        "degraded": _sum(metric_deltas.grown(before.counts, now.counts, "aftermind_recalls_degraded_total", ())),
        "failures": metric_deltas.grown(before.counts, now.counts, "aftermind_failures_total", ("kind", "reason"))
        if viewer.may(Right.TENANTS)
        else {},
        "over": min(LATENCY_OVER, now.at - samples[0].at).total_seconds(),
        "spending": spending,
        "models": _by_model(spending),
        "groups": groups or [],
        "processes": await _processes(viewer) if viewer.may(Right.OPERATE) else [],
        "is_shown": is_shown,
        "dead": None if groups is None else sum(group.count for group in groups),
        "is_shared": exposition.FOLDER in os.environ,
    }


async def _processes(viewer: Viewer) -> Sequence[ProcessInfo]:
    try:
        return await viewer.memory.job_admin.processes()
    except errors.RedisUnavailable:  # the components report it
        return ()


def _pulse(request: Request) -> Pulse:
    pulse: Pulse = request.app.state.pulse
    return pulse


def _is_up(sample: Sample) -> bool:
    return any(part.name == "store" and part.state != "down" for part in sample.health.parts)


async def _rows(viewer: Viewer, now: Sample, finished: dict[str, float], *, is_up: bool) -> list[Row]:
    """A row for each kind of job: what the sample has of all tenants, or what is counted of the viewer's own."""
    may_operate = viewer.may(Right.OPERATE)
    if viewer.may(Right.TENANTS) or not is_up:
        work: Sequence[Work] = now.health.work
    else:
        work = _counted(await viewer.memory.job_admin.counts(namespace=viewer.namespace))
    found = {row.kind: row for row in work}
    if is_up:  # a queue without jobs is not reported
        found = {kind: Work(kind=kind) for kind in JobKind} | found
    rows = [_row(kind, found.get(kind), finished, may_operate=may_operate) for kind in JobKind]
    if viewer.may(Right.TENANTS):
        return rows
    # Its turns in Redis are not counted apart from those of others.
    return [replace(row, runnable=None, running=None) if row.kind == JobKind.STORE else row for row in rows]


def _row(kind: JobKind, work: Work | None, finished: dict[str, float], *, may_operate: bool) -> Row:
    return Row(
        kind=kind.value,
        runnable=work.runnable if work else None,
        age_seconds=work.age_seconds if work and work.runnable and work.age_seconds else None,
        running=work.running if work else None,
        waiting=work.waiting if work else None,
        dead=work.dead if work and may_operate else None,
        per_second=finished.get(kind.value, 0.0),
    )


def _counted(counts: Sequence[JobCount]) -> list[Work]:
    found = {each.kind: Work(kind=each.kind.value) for each in counts}
    for each in counts:
        row = found[each.kind]
        if each.state is JobState.DEAD:
            found[each.kind] = replace(row, dead=row.dead + each.count)
        elif each.state is JobState.RUNNING:
            found[each.kind] = replace(row, running=row.running + each.count)
        elif not each.state.is_final:
            due = each.count - each.scheduled
            found[each.kind] = replace(row, runnable=row.runnable + due, waiting=row.waiting + each.scheduled)
    return list(found.values())


def _finished(samples: Sequence[Sample]) -> dict[str, float]:
    """Jobs finished a second, by kind, lately."""
    now, before = samples[-1], _back(samples, RATE_OVER)
    seconds = (now.at - before.at).total_seconds()
    if not seconds:
        return {}
    more = metric_deltas.grown(before.counts, now.counts, "aftermind_jobs_total", ("kind", "outcome"))
    return {kind: count / seconds for (kind, outcome), count in more.items() if outcome == FINISHED}


def _back(samples: Sequence[Sample], span: timedelta) -> Sample:
    """The sample from which to count: the oldest that is not older than `span`."""
    since = samples[-1].at - span
    return next(sample for sample in samples if sample.at >= since)


def _kinds(samples: Sequence[Sample]) -> list[JobKind]:
    """Kinds of which there is something to draw; store always, so that an idle chart is a line and not a hole."""
    done = _sum_by_kind(samples)
    return [
        kind
        for kind in JobKind
        if kind is JobKind.STORE or kind.value in done or any(_runnable(sample, kind) for sample in samples)
    ]


def _sum_by_kind(samples: Sequence[Sample]) -> set[str]:
    more = metric_deltas.grown(samples[0].counts, samples[-1].counts, "aftermind_jobs_total", ("kind",))
    return {key[0] for key in more}


def _runnable(sample: Sample, kind: JobKind) -> int:
    return next((row.runnable for row in sample.health.work if row.kind == kind), 0)


def _recall_series(samples: Sequence[Sample]) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {"p50": [], "p99": []}
    for place in range(len(samples)):
        until = samples[: place + 1]
        before, now = _back(until, RATE_OVER), until[-1]
        took = metric_deltas.quantiles(before.counts, now.counts, "aftermind_recall_seconds", None, SHARES).get("")
        for name, value in zip(found, took or (None, None), strict=True):
            found[name].append(None if value is None else round(value * 1_000, 2))
    return found


def _by_model(spending: Sequence[DailyUsage]) -> list[tuple[str, str, int, int, int, float, bool]]:
    """Model, kind of job, calls, tokens in and out, US dollars, whether a price was missing; the dearest first."""
    found: dict[tuple[str, str], list[ModelUsage]] = {}
    unknown = {(each.spent.model or "unknown", each.kind.value) for each in spending if each.is_cost_unknown}
    for each in spending:
        found.setdefault((each.spent.model or "unknown", each.kind.value), []).append(each.spent)
    rows = [
        (
            *key,
            sum(each.calls for each in spent),
            sum(each.tokens_in for each in spent),
            sum(each.tokens_out for each in spent),
            sum(each.cost_usd for each in spent),
            key in unknown,
        )
        for key, spent in found.items()
    ]
    return sorted(rows, key=lambda row: (-row[5], -row[2], row[0]))


def _sum(grown: dict[tuple[str, ...], float]) -> int:
    return round(sum(grown.values()))
