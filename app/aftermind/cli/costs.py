"""`aftermind costs`: model usage by day, user, kind of job and model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from aftermind.llm import prices
from aftermind.memory import Memory


class Label(StrEnum):
    """Columns by which usage can be added up, in their order."""

    DAY = "day"
    USER = "user"
    KIND = "kind"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Usage that was added up, and the values that its rows share. The user None is the anonymous one."""

    values: Mapping[Label, str | None]
    spent: ModelUsage
    is_cost_unknown: bool


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
) -> Sequence[DailyUsage | Mapping[str, object]]:
    """Show model usage of a user or of the whole namespace, by day, kind of job and model.

    `--by` adds up the rest; `--json` without it has every row. In it, `is_cost_unknown`
    means that `cost_usd` leaves out a model without a price.
    """
    start = moment("since", since) or datetime.now(UTC)

    async def work(memory: Memory) -> list[DailyUsage]:
        return await memory.spending(
            user_id=user, namespace=namespace, since=start.astimezone(UTC).date(), everybody=user is None
        )

    found = terminal.with_memory(work)
    if unpriced_models := sorted({str(each.spent.model) for each in found if each.is_cost_unknown}):
        terminal.warn(f"No price: {', '.join(unpriced_models)}. {prices.SETTING} sets prices of later calls.")
    labels = [each for each in Label if each in (by or Label)]
    groups = add_up(found, by=labels)
    terminal.show(cost_table(groups, by=labels, wide=wide) if found else "No model usage since then.", wide=wide)
    return [_to_row(each) for each in groups] if by else found


def add_up(found: Sequence[DailyUsage], *, by: Sequence[Label]) -> list[Group]:
    """A group for each combination of values of these labels, in the order of the rows."""
    added: dict[tuple[str | None, ...], list[DailyUsage]] = {}
    for each in found:
        values = _values(each)
        added.setdefault(tuple(values[label] for label in by), []).append(each)
    return [
        Group(values=dict(zip(by, key, strict=True)), spent=_sum(rows), is_cost_unknown=_is_unknown(rows))
        for key, rows in added.items()
    ]


def _to_row(group: Group) -> dict[str, object]:
    spent = asdict(group.spent)
    if group.is_cost_unknown and not group.spent.cost_usd:
        spent["cost_usd"] = None
    return {
        **{label.value: value for label, value in group.values.items()},
        "spent": spent,
        "is_cost_unknown": group.is_cost_unknown,
    }


def _is_unknown(rows: Sequence[DailyUsage | Group]) -> bool:
    return any(each.is_cost_unknown for each in rows)


def _sum(rows: Sequence[DailyUsage | Group]) -> ModelUsage:
    spent = [each.spent for each in rows]
    models = {each.model for each in spent}
    return ModelUsage(
        model=models.pop() if len(models) == 1 else None,
        calls=sum(each.calls for each in spent),
        tokens_in=sum(each.tokens_in for each in spent),
        tokens_out=sum(each.tokens_out for each in spent),
        cost_usd=sum(each.cost_usd for each in spent),
        latency_ms=sum(each.latency_ms for each in spent),
    )


def cost_table(groups: Sequence[Group], *, by: Sequence[Label], wide: bool) -> Table:
    """A row for each value of these labels, a subtotal of each day of several, and the total."""
    labels = [each for each in by if each is not Label.MODEL]  # its column is the last
    titles = [*labels, "calls", "tokens in", "out", "USD", *(["seconds"] if wide else [])]
    titles += [Label.MODEL] if Label.MODEL in by else []
    shown = terminal.make_table(*titles, flexible=titles[-1] if Label.MODEL in by else titles[0])

    def add(values: Mapping[Label, str | None], rows: Sequence[Group]) -> None:
        spent = _sum(rows)
        user = (values[Label.USER] or "anonymous") if Label.USER in values else ""
        texts = {**values, Label.USER: user if wide else shorten(user)}
        cells: list[RenderableType] = [escape(texts.get(label) or "") for label in labels]
        cells += [f"{count:,}" for count in (spent.calls, spent.tokens_in, spent.tokens_out)]
        cells += [
            prices.describe_cost(spent.cost_usd, is_cost_unknown=_is_unknown(rows)),
            *([f"{spent.latency_ms / 1_000:.1f}"] if wide else []),
        ]
        cells += [terminal.one_line(values.get(Label.MODEL) or "")] if Label.MODEL in by else []
        shown.add_row(*cells)

    days = [list(group) for _, group in groupby(groups, lambda group: group.values.get(Label.DAY))]
    for of_day in days:
        for each in of_day:
            add(each.values, [each])
        if 1 < len(of_day) < len(groups):
            day = of_day[0].values.get(Label.DAY)
            subtotal = {Label.DAY: day, labels[1] if labels[1:] else Label.MODEL: "all"}
            add(subtotal, of_day)
    if len(groups) > 1:
        add({by[0]: "total"}, groups)
    return shown


def _values(each: DailyUsage) -> Mapping[Label, str | None]:
    return {
        Label.DAY: each.day.isoformat(),
        Label.USER: each.owner.user_id,
        Label.KIND: str(each.kind),
        Label.MODEL: each.spent.model,
    }
