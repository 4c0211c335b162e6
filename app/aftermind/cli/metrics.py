"""`aftermind metrics`: the history of the deployment, as the charts of the console have it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment, shorten
from aftermind.cli.terminal import out
from aftermind.memory import Memory
from aftermind.telemetry.metric_series import CHARTS, series
from aftermind.types.job_admin import MetricSample

MAX_NAME_CHARACTERS = 18  # of a model, reason or node: with the widest numbers, a row has 80 columns


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(metrics)


@terminal.with_json
def metrics(
    *,
    since: Annotated[str, typer.Option(help="From: 30m, 6h, 7d, or a time like 2026-01-31T12:00. At most 30d.")] = "1h",
    wide: terminal.Wide = False,
) -> Sequence[MetricSample]:
    """Show what the charts of the console draw: jobs, latencies, failures, recalls and costs.

    The reconciler samples every minute. Each line has the latest value, the mean, and the highest value with its time.
    """
    start = moment("since", since) or datetime.now(UTC)
    over = datetime.now(UTC) - start
    if over <= timedelta(0):
        raise errors.InvalidFilter("since", since, "it is a time that has passed.")

    async def work(memory: Memory) -> Sequence[MetricSample]:
        return await memory.job_admin.metric_history(over=over)

    found = terminal.with_memory(work)
    if not found:
        out.print("No samples since then: the reconciler samples once a minute, unless AFTERMIND_METRIC_HISTORY=false.")
        return found
    drawn = series(found)
    shown = terminal.make_table("metric", "of", "latest", "mean", "highest", "at", "unit", flexible="unit")
    for key, title, unit in CHARTS:
        for name, line in drawn[key].items():
            values = [(value, at) for value, at in zip(line, drawn["at"], strict=True) if value is not None]
            if values:
                highest, at = max(values)
                mean = sum(value for value, _ in values) / len(values)
                numbers = (_short(value) for value in (values[-1][0], mean, highest))
                peak_at = datetime.fromtimestamp(at, UTC)
                is_recent = over <= timedelta(days=1)
                when = f"{peak_at:%H:%M}" if is_recent else terminal.when(peak_at)
                of = escape(name if wide else shorten(name, MAX_NAME_CHARACTERS))
                shown.add_row(title, of, *numbers, when, terminal.one_line(unit))
    terminal.show(shown, wide=wide)
    period = f"{terminal.when(found[0].at)} to {terminal.when(found[-1].at)}"
    out.print(f"[dim]{terminal.count_of(len(found), 'sample')}, {period} UTC, of all namespaces.[/]")
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"
