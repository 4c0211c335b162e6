"""Dashboard, alarms and scrape targets name what is really exported, and what really runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric

from aftermind.api.health import Component, Health, Replica, Waiting
from aftermind.telemetry.metrics import Instruments
from aftermind.web.routes.metrics import Now
from aftermind_workers import metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "aftermind.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
EXPRESSIONS = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
    *(rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]),
]
ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def _exported() -> set[str]:
    agent = CollectorRegistry()
    Instruments(agent)
    up = Component(name="store", state="ok")
    service = Now(Health(parts=(up,), replicas=(Replica(name="r", serving=True),), waiting=Waiting()))
    families: list[Metric] = [*REGISTRY.collect(), *agent.collect(), *service.collect()]
    assert metrics.JOBS, "the workers' are in the default registry"
    return {family.name + end for family in families for end in ENDS.get(family.type, ())}


EXPORTED = _exported()


@pytest.mark.parametrize("expression", sorted(set(EXPRESSIONS)))
def test_an_expression_names_only_metrics_that_are_exported(expression: str) -> None:
    named = set(re.findall(r"\baftermind_\w+", expression))

    assert named
    assert named <= EXPORTED
    assert expression.count("(") == expression.count(")")


SAMPLED = {
    name
    for path in ("app/aftermind/db/metric_history.py", "workers/aftermind_workers/reconciler.py")
    for name in re.findall(r"\baftermind_\w+", (DEPLOY.parent / path).read_text())
}


def test_alerts_about_work_and_recalls_refer_to_series_of_the_history() -> None:
    gauges = {name for name in SAMPLED if name in EXPORTED}
    buckets = {f"{name}_bucket" for name in SAMPLED if f"{name}_bucket" in EXPORTED}
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    sampled = {
        each["alert"] for each in alerts if set(re.findall(r"\baftermind_\w+", each["expr"])) <= gauges | buckets
    }

    assert {f"Aftermind{name}" for name in ("JobsOverdue", "DeadLetters", "FailuresRise", "StoringSlow")} <= sampled
    assert {"AftermindRecallSlow", "AftermindRecallDegraded"} <= sampled


def test_no_two_panels_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_what_is_scraped_runs_in_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    scraped: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    found = {
        (name, target["port"])
        for job in scraped["scrape_configs"]
        for target in job["dns_sd_configs"]
        for name in target["names"]
    }

    port = int(compose["services"]["worker-store"]["environment"]["AFTERMIND_METRICS_PORT"])
    workers = {"worker-store", "worker-embed", "worker-extract", "reconciler"}
    assert found == {("web", 8377), *((name, port) for name in workers)}
    assert {name for name, _ in found} <= set(compose["services"])


def test_each_alarm_says_what_it_means() -> None:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert len(rule["annotations"]["summary"]) > 30, rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket")
