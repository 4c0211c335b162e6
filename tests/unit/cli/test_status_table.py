"""`aftermind status` on a terminal of 80 columns."""

from datetime import UTC, datetime

import pytest
from rich.console import Console

from aftermind.cli import stack, terminal
from aftermind.stack import ComponentState, ComponentStatus

SINCE = datetime(2026, 11, 23, 16, 45, tzinfo=UTC)


def test_a_long_detail_has_a_line_of_its_own_below_its_component(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {
        "postgres-replica": ("", 24787),
        "worker-store": ("exited with code 137 before it was ready", 1),
    }
    components = [
        ComponentStatus(
            name=name, state=ComponentState.RUNNING, pid=pid, port=31883, restarts=0, since=SINCE, detail=detail
        )
        for name, (detail, pid) in states.items()
    ]
    wide = Console(width=80, record=True)
    monkeypatch.setattr(terminal, "out", wide)

    terminal.show(stack.table(components))

    text = wide.export_text()
    assert "\n  exited with code 137 before it was ready" in text
    assert text.count("2026-11-23 16:45") == len(components)
    assert all(name in text for name in states)
