"""`aftermind costs`: model usage by day, user, kind of job and model."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment, shorten
from aftermind.cli.terminal import Namespace
from aftermind.ledger.protocol import DailyUsage, ModelUsage
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
    terminal.show(cost_table(found, wide=wide) if found else "No model usage since then.", wide=wide)
    return found


def cost_table(found: Sequence[DailyUsage], *, wide: bool) -> Table:
    """The rows, a subtotal of each day of several, and the total."""
    titles = ["day", "user", "kind", "calls", "tokens in", "out", "USD", "seconds"]
    shown = terminal.make_table(*(titles if wide else titles[:-1]), "model", flexible="model")

    def add(labels: Sequence[str], model: str, spent: Sequence[ModelUsage]) -> None:
        counts = [sum(getattr(each, name) for each in spent) for name in ("calls", "tokens_in", "tokens_out")]
        usd, seconds = sum(each.cost_usd or 0 for each in spent), sum(each.latency_ms for each in spent) / 1_000
        cells = [*labels, *(f"{count:,}" for count in counts), f"{usd:.4f}", f"{seconds:.1f}"]
        shown.add_row(*(cells if wide else cells[:-1]), terminal.one_line(model))

    days = [list(rows) for _, rows in groupby(found, key=lambda each: each.day)]
    for rows in days:
        day = rows[0].day.isoformat()
        for each in rows:
            user = each.owner.user_id or "anonymous"
            add([day, escape(user if wide else shorten(user)), each.kind], each.spent.model or "", [each.spent])
        if 1 < len(rows) < len(found):
            add([day, "all", ""], "", [each.spent for each in rows])
    if len(found) > 1:
        add(["total", "", ""], "", [each.spent for each in found])
    return shown
