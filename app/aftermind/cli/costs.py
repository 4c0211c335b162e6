"""`aftermind costs`: model usage by day, user, kind of job and model."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment, shorten
from aftermind.cli.terminal import Namespace
from aftermind.ledger.protocol import DailyUsage, ModelUsage
from aftermind.memory import Memory


class Label(StrEnum):
    """Columns by which usage can be added up, in their order."""

    DAY = "day"
    USER = "user"
    KIND = "kind"
    MODEL = "model"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(costs)


@terminal.with_json
def costs(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: all users.")] = None,
    namespace: Namespace = None,
    since: Annotated[str, typer.Option(help="From: 7d, 24h, or a day like 2026-01-31 (UTC).")] = "7d",
    by: Annotated[
        list[Label] | None, typer.Option(help="One line for each of these, such as --by day. May be repeated.")
    ] = None,
    wide: terminal.Wide = False,
) -> Sequence[DailyUsage]:
    """Show model usage of a user or of the whole namespace, by day, kind of job and model.

    `--by` adds up the rest; `--json` has every row.
    """
    start = moment("since", since) or datetime.now(UTC)

    async def work(memory: Memory) -> list[DailyUsage]:
        return await memory.spending(
            user_id=user, namespace=namespace, since=start.astimezone(UTC).date(), everybody=user is None
        )

    found = terminal.with_memory(work)
    table = cost_table(found, by=[each for each in Label if each in (by or Label)], wide=wide)
    terminal.show(table if found else "No model usage since then.", wide=wide)
    return found


def cost_table(found: Sequence[DailyUsage], *, by: Sequence[Label], wide: bool) -> Table:
    """A row for each value of these labels, a subtotal of each day of several, and the total."""
    labels = [each for each in by if each is not Label.MODEL]  # its column is the last
    titles = [*labels, "calls", "tokens in", "out", "USD", *(["seconds"] if wide else [])]
    titles += [Label.MODEL] if Label.MODEL in by else []
    shown = terminal.make_table(*titles, flexible=titles[-1] if Label.MODEL in by else titles[0])

    def add(values: Mapping[Label, str], spent: Sequence[ModelUsage]) -> None:
        counts = [sum(getattr(each, name) for each in spent) for name in ("calls", "tokens_in", "tokens_out")]
        usd, seconds = sum(each.cost_usd or 0 for each in spent), sum(each.latency_ms for each in spent) / 1_000
        user = values.get(Label.USER, "")
        texts = {**values, Label.USER: user if wide else shorten(user)}
        cells: list[RenderableType] = [escape(texts.get(label, "")) for label in labels]
        cells += [*(f"{count:,}" for count in counts), f"{usd:.4f}", *([f"{seconds:.1f}"] if wide else [])]
        cells += [terminal.one_line(values.get(Label.MODEL, ""))] if Label.MODEL in by else []
        shown.add_row(*cells)

    added: dict[tuple[str, ...], list[DailyUsage]] = {}
    for each in found:
        values = _values(each)
        added.setdefault(tuple(values[label] for label in by), []).append(each)
    groups = [(dict(zip(by, key, strict=True)), rows) for key, rows in added.items()]
    days = [list(group) for _, group in groupby(groups, lambda group: group[0].get(Label.DAY))]
    for of_day in days:
        for named, rows in of_day:
            add(named, [each.spent for each in rows])
        if 1 < len(of_day) < len(groups):
            subtotal = {Label.DAY: of_day[0][0].get(Label.DAY, ""), labels[1] if labels[1:] else Label.MODEL: "all"}
            add(subtotal, [each.spent for _, rows in of_day for each in rows])
    if len(groups) > 1:
        add({by[0]: "total"}, [each.spent for each in found])
    return shown


def _values(each: DailyUsage) -> Mapping[Label, str]:
    return {
        Label.DAY: each.day.isoformat(),
        Label.USER: each.owner.user_id or "anonymous",
        Label.KIND: str(each.kind),
        Label.MODEL: each.spent.model or "",
    }
