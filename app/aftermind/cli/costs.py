"""`aftermind costs`: model usage by day, user, kind of job and model."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment
from aftermind.cli.terminal import Namespace
from aftermind.ledger.protocol import DailyUsage
from aftermind.memory import Memory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(costs)


@terminal.with_json
def costs(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: all users.")] = None,
    namespace: Namespace = None,
    since: Annotated[str, typer.Option(help="From: 7d, 24h, or a day like 2026-01-31 (UTC).")] = "7d",
    wide: terminal.Wide = False,
) -> Sequence[DailyUsage]:
    """Show model usage of a user or of the whole namespace, by day, kind of job and model."""
    start = moment("since", since) or datetime.now(UTC)

    async def work(memory: Memory) -> list[DailyUsage]:
        return await memory.spending(
            user_id=user, namespace=namespace, since=start.astimezone(UTC).date(), everybody=user is None
        )

    found = terminal.with_memory(work)
    terminal.show(_spent(found) if found else "No model usage since then.", wide=wide)
    return found


def _spent(found: Sequence[DailyUsage]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("day", "user", "kind", "model"):
        shown.add_column(title, no_wrap=title in ("day", "kind"), overflow="fold")
    for title in ("calls", "tokens\nin", "tokens\nout", "USD", "seconds"):
        shown.add_column(title, justify="right", no_wrap=True)
    for each in found:
        spent = each.spent
        counts = (f"{spent.calls:,}", f"{spent.tokens_in:,}", f"{spent.tokens_out:,}")
        who, model = escape(each.owner.user_id or "anonymous"), escape(spent.model or "")
        more = (f"{spent.cost_usd:.4f}", f"{spent.latency_ms / 1_000:.1f}")
        shown.add_row(each.day.isoformat(), who, each.kind, model, *counts, *more)
    if len(found) > 1:
        usages = [each.spent for each in found]
        shown.add_section()
        shown.add_row(
            "total",
            *("", "", ""),
            f"{sum(each.calls for each in usages):,}",
            f"{sum(each.tokens_in for each in usages):,}",
            f"{sum(each.tokens_out for each in usages):,}",
            f"{sum(each.cost_usd for each in usages):.4f}",
            f"{sum(each.latency_ms for each in usages) / 1_000:.1f}",
        )
    return shown
