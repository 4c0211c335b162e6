"""`aftermind metrics` has what the charts draw; `aftermind costs` adds up by what is asked for."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from aftermind import errors
from aftermind.cli import make_app_for, metrics, terminal
from tests.support.servers import Database, psql

HISTORY = """
    INSERT INTO aftermind.metric_history (seconds, at, series)
    SELECT 60, date_trunc('minute', now()) - minute * interval '1 min', jsonb_build_object(
        'aftermind_runnable_jobs{kind="extract"}', CASE minute WHEN 2 THEN 37002 ELSE 1 END,
        'aftermind_freshness_seconds_bucket{le="1.0",stage="stored"}', 1,
        'aftermind_freshness_seconds_bucket{le="+Inf",stage="stored"}', 1)
    FROM generate_series(1, 3) AS minute
"""
LONG_NAMES = """
    INSERT INTO aftermind.metric_history (seconds, at, series)
    SELECT 60, date_trunc('minute', now()) - minute * interval '1 min', jsonb_build_object(
        'aftermind_model_cost_usd_total{model="openai:gpt-4.1-mini-2025-04-14"}', 0.000012345 * (minute * minute),
        'aftermind_freshness_seconds_bucket{le="1.0",stage="stored"}', 1,
        'aftermind_freshness_seconds_bucket{le="+Inf",stage="stored"}', 1)
    FROM generate_series(1, 3) AS minute
"""
SPENDING = """
    INSERT INTO aftermind.spending (namespace, user_id, day, kind, model, calls, tokens_in, tokens_out, cost_usd)
    SELECT 'default', user_id, current_date - day, kind, 'small', 1, 100, 10, 0.5
    FROM unnest(ARRAY['tenant-4711/customer-1', 'tenant-4711/customer-2']) AS user_id,
         unnest(ARRAY['extract', 'profile']) AS kind,
         generate_series(0, 1) AS day
"""

Run = Callable[..., Result]


@pytest.fixture
def run(database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on this module's database."""
    named = {"DATABASE_URL": database.app_url, "RELAY_URL": database.relay_url, "BROKER_URL": redis_url}
    for name, value in {**named, "STATE_DIR": str(tmp_path), "NAMESPACE": "default"}.items():
        monkeypatch.setenv(f"AFTERMIND_{name}", value)
    return lambda *arguments: CliRunner().invoke(make_app_for(["metrics", "costs"]), list(arguments))


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


def test_each_line_has_its_latest_mean_and_highest_value(database: Database, run: Run) -> None:
    psql(database.url, HISTORY)

    found = run("metrics", "--wide")

    [pending] = [row for row in rows(found) if row[:3] == ["Pending", "jobs", "extract"]]
    assert pending[3:6] == ["1", "12,335", "37,002"]
    assert pending[-1] == "count"
    [stored] = [row for row in rows(found) if row[:3] == ["Latency", "p95", "by"]]
    assert stored[4:8] == ["stored", "0.95", "0.95", "0.95"]
    assert "3 samples" in found.output


def test_the_time_of_the_highest_value_is_whole_at_80_columns(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(database.url, "DELETE FROM aftermind.metric_history", LONG_NAMES)
    narrow = Console(width=80, soft_wrap=False)
    for module in (terminal, metrics):
        monkeypatch.setattr(module, "out", narrow)

    found, wide = run("metrics").output, run("metrics", "--wide").output

    rows_shown = [line for line in found.splitlines() if line.startswith(("Model cost", "Latency"))]
    assert len(rows_shown) == 2, found
    assert all(re.search(r" \d\d:\d\d *$", line) for line in rows_shown), found
    assert "openai:gpt-4.1-mini-2025-04-14" in wide
    psql(database.url, "DELETE FROM aftermind.metric_history")


@pytest.mark.parametrize(
    ("since", "why"), [("2999-01-01", "a time that has passed"), ("soon", "30m"), ("40d", "30 days")]
)
def test_a_period_without_a_history_is_refused(run: Run, since: str, why: str) -> None:
    refused = run("metrics", "--since", since)

    assert isinstance(refused.exception, errors.InvalidFilter)
    assert why in str(refused.exception)


def test_costs_are_added_up_by_what_is_asked_for(database: Database, run: Run) -> None:
    psql(database.url, SPENDING)

    by_kind = rows(run("costs", "--by", "kind"))
    by_day_and_user = rows(run("costs", "--by", "day", "--by", "user"))
    everything = rows(run("costs", "--wide"))
    as_json = {by: json.loads(run("costs", "--json", *by).stdout) for by in ((), ("--by", "kind"), ("--by", "user"))}

    assert by_kind[1:] == [
        ["extract", "4", "400", "40", "2.0000"],
        ["profile", "4", "400", "40", "2.0000"],
        ["total", "8", "800", "80", "4.0000"],
    ]
    assert [row[1] == "all" for row in by_day_and_user[1:-1]] == [False, False, True] * 2
    assert [row[2] for row in by_day_and_user[1:]] == ["2", "2", "4"] * 2 + ["800"]
    assert len(everything) == 1 + 8 + 2 + 1
    assert len(as_json[()]) == 8
    assert [(each["kind"], each["spent"]["calls"], each["spent"]["cost_usd"]) for each in as_json["--by", "kind"]] == [
        ("extract", 4, 2.0),
        ("profile", 4, 2.0),
    ]
    assert [each.keys() for each in as_json["--by", "user"]] == [{"user", "spent", "is_cost_unknown"}] * 2
