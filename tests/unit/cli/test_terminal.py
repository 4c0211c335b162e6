"""Tables for people, at widths that are too narrow for them."""

from datetime import date

import pytest
from rich.console import Console

from aftermind.cli import costs, terminal
from aftermind.ledger.protocol import DailyUsage, ModelUsage
from aftermind.types import JobKind, Scope


def test_rows_of_several_lines_keep_their_details_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Console(width=40, record=True, soft_wrap=True)
    monkeypatch.setattr(terminal, "out", printed)
    table = terminal.make_table("job", "facts", "state", "detail", flexible="detail")
    table.add_row("588d126b", "user lives in Oslo\nuser is a nurse", "done", terminal.one_line("the first detail"))
    table.add_row("588d126c", "user lives in Rome", "done", terminal.one_line("the second detail"))

    terminal.print_table(table, wide=False)

    lines = [line.strip() for line in printed.export_text().splitlines()]
    assert "user is a nurse" in lines[2]
    assert lines[3] == "the first detail"
    assert "588d126c" in lines[4]
    assert lines[5] == "the second detail"


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "price unknown"),
        (0.0, "no cost"),
        (0.00003, "under $0.0001"),
        (0.00042, "$0.00042"),
        (0.01, "$0.01"),
        (1234.5, "$1,234.50"),
    ],
)
def test_a_price_below_a_cent_is_not_shown_as_nothing(usd: float | None, text: str) -> None:
    assert terminal.dollars(usd) == text


def test_costs_of_several_days_have_a_subtotal_for_each_day_with_several_rows() -> None:
    usage = [
        DailyUsage(
            day=date(2026, 11, day),
            owner=Scope(user_id=user),
            kind=JobKind.EMBED,
            spent=ModelUsage(calls=calls, tokens_in=10, tokens_out=0, cost_usd=0.5, model="m"),
        )
        for day, user, calls in ((2, "ann", 1), (2, "bob", 2), (1, "ann", 4))
    ]
    printed = Console(width=100, record=True)

    labels = list(costs.Label)
    printed.print(costs.cost_table(costs.add_up(usage, by=labels), by=labels, wide=False))

    lines = [line.split()[:4] for line in printed.export_text().splitlines() if line.strip()]
    assert ["2026-11-02", "all", "3"] in [line[:3] for line in lines]
    assert not any(line[:2] == ["2026-11-01", "all"] for line in lines)
    assert lines[-1][:2] == ["total", "7"]
