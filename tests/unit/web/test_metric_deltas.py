"""Rates and quantiles of the overview: what grew between two moments, and nothing that did not."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from aftermind.telemetry.metric_series import quantile
from aftermind.web.pages import metric_deltas


def test_growth_is_told_by_the_labels_asked_for() -> None:
    registry = CollectorRegistry()
    jobs = Counter("aftermind_jobs", "…", ["kind", "outcome"], registry=registry)
    jobs.labels("store", "done").inc(5)
    before = metric_deltas.read(registry)
    jobs.labels("store", "done").inc(3)
    jobs.labels("store", "dead").inc()
    jobs.labels("embed", "done").inc(2)

    grown = metric_deltas.grown(before, metric_deltas.read(registry), "aftermind_jobs_total", ("kind",))

    assert grown == {("store",): 4.0, ("embed",): 2.0}


def test_a_counter_that_began_anew_has_grown_by_what_it_is() -> None:
    key = ("aftermind_jobs_total", (("kind", "store"),))

    assert metric_deltas.grown({key: 100.0}, {key: 7.0}, "aftermind_jobs_total", ("kind",)) == {("store",): 7.0}


def test_quantiles_are_of_what_came_in_between_alone() -> None:
    registry = CollectorRegistry()
    took = Histogram("aftermind_recall_seconds", "…", ["served_by"], buckets=(0.01, 0.1, 1.0), registry=registry)
    for _ in range(1_000):
        took.labels("primary").observe(0.9)
    before = metric_deltas.read(registry)
    for _ in range(99):
        took.labels("replica").observe(0.005)
    took.labels("replica").observe(0.5)

    after = metric_deltas.read(registry)
    by_node = metric_deltas.quantiles(before, after, "aftermind_recall_seconds", "served_by", (0.5, 0.99, 1.0))
    together = metric_deltas.quantiles(before, after, "aftermind_recall_seconds", None, (0.5,))

    assert set(by_node) == {"replica"}
    assert by_node["replica"][0] == pytest.approx(0.01 * 50 / 99)
    assert by_node["replica"][1] == pytest.approx(0.01)
    assert by_node["replica"][2] == pytest.approx(1.0)
    assert together[""][0] == pytest.approx(0.01 * 50 / 99)


def test_what_lies_beyond_the_last_bound_is_told_as_that_bound() -> None:
    assert quantile([(0.01, 0.0), (1.0, 1.0), (float("inf"), 100.0)], 0.99) == 1.0
