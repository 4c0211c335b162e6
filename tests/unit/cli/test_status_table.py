"""`aftermind status` on a terminal of 80 columns."""

from datetime import UTC, datetime

from rich.console import Console

from aftermind.cli import stack
from aftermind.stack import ComponentState, ComponentStatus

SINCE = datetime(2026, 11, 23, 16, 45, tzinfo=UTC)


def test_a_long_detail_wraps_and_leaves_the_other_columns_whole() -> None:
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
    console = Console(width=80, record=True)

    console.print(stack.table(components))

    text = console.export_text()
    assert text.count("2026-11-23 16:45") == len(components)
    assert all(name in text for name in states)
