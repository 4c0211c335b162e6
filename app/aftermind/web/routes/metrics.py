"""`/metrics`: gauges taken at the scrape, and the counters of processes."""

import hmac
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from aftermind import errors
from aftermind.api import local_web_token
from aftermind.api.health import Health
from aftermind.telemetry import exposition
from aftermind.types import JobKind
from aftermind.web.auth import Authenticator, admit, presented_credential
from aftermind.web.cached_health_check import SharedHealth

router = APIRouter()

REMEDY = (
    "Set AFTERMIND_METRICS_TOKEN for the service, and send `Authorization: Bearer TOKEN`. Until the first API key "
    "exists, the local token (`web.token` in the state folder) works too."
)

WORK = {
    "runnable": (
        "aftermind_runnable_jobs",
        "Jobs that could run now, also if an operator has paused them; with store, turns that wait in Redis.",
    ),
    "running": ("aftermind_running_jobs", "Running jobs: those with a lease."),
    "waiting": (
        "aftermind_waiting_jobs",
        "Jobs that are scheduled for later: a debounce, a back-off, the pause of a provider.",
    ),
    "dead": (
        "aftermind_dead_letters",
        "Dead letters: jobs that have used all attempts and were not replayed or discarded.",
    ),
    "age_seconds": (
        "aftermind_oldest_runnable_seconds",
        "For how long the oldest of the runnable could run, without the time of a pause; jobs that are paused or wait "
        "for a provider are left out.",
    ),
}


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """For Prometheus: counts and ages of all tenants together, no content. Raises `KeyRefused`.

    It takes AFTERMIND_METRICS_TOKEN, and before the first API key the local token. A key of one namespace does not do:
    the counts are of all of them.
    """
    await _check_token(request)
    health: SharedHealth = request.app.state.health
    now = CollectorRegistry()
    now.register(Now(await health.get()))
    body = generate_latest(now) + generate_latest(exposition.registry())
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _check_token(request: Request) -> None:
    door: Authenticator = request.app.state.door
    text, _ = presented_credential(request, is_api=True)
    given = door.memory.settings.metrics_token
    wanted = "" if given is None else given.get_secret_value()
    if text and wanted and hmac.compare_digest(text.encode("utf-8", "replace"), wanted.encode()):
        return
    if text and text.startswith(local_web_token.PREFIX):
        try:
            await admit(request, text)
        except errors.KeyRefused as exc:
            raise errors.KeyRefused(exc.why, REMEDY) from exc
        return
    raise errors.KeyRefused("/metrics accepts no API key: it has counts of all tenants.", REMEDY)


class Now:
    """Collects the current state for one scrape."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families; a family without an answer is left out, so that it is not read as zero."""
        up = GaugeMetricFamily("aftermind_component_up", "Whether a component answers.", labels=["component"])
        for part in self._health.parts:
            is_left_replica = part.name.startswith("replica ") and part.state != "ok"
            up.add_metric([part.name], float(part.state != "down" and not is_left_replica))
        yield up
        degraded = GaugeMetricFamily(
            "aftermind_component_degraded",
            "Whether a component answers with a warning: `/readyz` and `aftermind status` have its text.",
            labels=["component"],
        )
        for part in self._health.parts:
            degraded.add_metric([part.name], float(part.state == "degraded"))
        yield degraded
        if any(part.name == "store" and part.state != "down" for part in self._health.parts):
            yield from self._work()
        yield from self._waiting()
        yield from self._replicas()
        paused = GaugeMetricFamily(
            "aftermind_provider_paused_seconds",
            "How long a model provider is not called; 0 while a call tests it. Absent if it is not paused.",
            labels=["provider"],
        )
        for name, seconds in self._health.paused.items():
            paused.add_metric([name], seconds)
        yield paused
        yield CounterMetricFamily(
            "aftermind_texts_refused",
            "Encrypted texts that the service refused: changed, replaced, or plain where all are encrypted.",
            self._health.refused_texts,
        )

    def _work(self) -> Iterator[Metric]:
        rows = {row.kind: row for row in self._health.work}
        for field, (name, help_) in WORK.items():
            family = GaugeMetricFamily(name, help_, labels=["kind"])
            for kind in JobKind:
                family.add_metric([kind.value], float(getattr(rows.get(kind.value), field, 0)))
            yield family

    def _waiting(self) -> Iterator[Metric]:
        waiting = self._health.waiting
        if waiting is None:
            return
        if waiting.is_known:
            help_ = "Turns in Redis that no store job has committed."
            yield GaugeMetricFamily("aftermind_pending_turns", help_, waiting.turns)
            yield GaugeMetricFamily("aftermind_pending_bytes", "Their size.", waiting.size_bytes)
        yield GaugeMetricFamily(
            "aftermind_spool_bytes", "Turns on the disk of the service's host.", waiting.spooled_bytes
        )
        yield GaugeMetricFamily(
            "aftermind_spool_damaged", "Damaged places of that spool, kept as .damaged files.", waiting.spool_damaged
        )
        bells = GaugeMetricFamily("aftermind_waiting_bells", "Doorbells that no worker has taken.", labels=["queue"])
        for queue, count in waiting.bells.items():
            bells.add_metric([queue], count)
        yield bells

    def _replicas(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily("aftermind_replica_lag_seconds", "How far a replica is behind.", labels=["replica"])
        serving = GaugeMetricFamily(
            "aftermind_replica_serving", "Whether recalls may read a replica.", labels=["replica"]
        )
        for replica in self._health.replicas:
            if replica.lag_seconds is not None:
                lag.add_metric([replica.name], replica.lag_seconds)
            serving.add_metric([replica.name], float(replica.serving))
        yield lag
        yield serving
