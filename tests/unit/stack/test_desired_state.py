"""State files that lack a field or have one of the wrong type: a named error that names the file."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermind.errors import StackError
from aftermind.stack import desired_state
from aftermind.stack.component_types import Command, ComponentState, ComponentStatus
from aftermind.stack.desired_state import DesiredState, Report
from aftermind.stack.state_dir import StateFolder

READERS: dict[str, Callable[[StateFolder], object]] = {
    "wanted.json": desired_state.read_desired_state,
    "status.json": desired_state.read_report,
}


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    state = StateFolder(tmp_path)
    command = Command(name="web", argv=("true",))
    desired_state.write_desired_state(state, DesiredState(run="one", commands=(command,)))
    now = datetime(2025, 1, 1, tzinfo=UTC)
    component = ComponentStatus(name="redis", state=ComponentState.RUNNING, pid=None, port=1, restarts=0, since=now)
    desired_state.write_report(state, Report(run="one", revision=0, pid=1, phase="up", components=(component,)))
    return state


def fields_of(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of all fields of a JSON object."""
    if isinstance(value, dict):
        own = [(*path, name) for name in value]
        return [*own, *(each for name, inner in value.items() for each in fields_of(inner, (*path, name)))]
    if isinstance(value, list):
        return [each for number, inner in enumerate(value) for each in fields_of(inner, (*path, number))]
    return []


def is_refused(folder: StateFolder, name: str) -> bool:
    """Whether reading raises; every other error than `StackError` fails the test, as does one without the file."""
    try:
        READERS[name](folder)
        desired_state.remembered_processes(folder)
    except StackError as exc:
        return name in str(exc)
    return False


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", ["missing", "of another type"])
def test_a_damaged_field_raises_a_named_error_with_the_name_of_the_file(
    folder: StateFolder, name: str, damage: str
) -> None:
    path = folder.root / name
    whole = path.read_text()
    READERS[name](folder)
    refused = 0
    for field in fields_of(json.loads(whole)):
        content = json.loads(whole)
        place = content
        for step in field[:-1]:
            place = place[step]
        if damage == "missing":
            del place[field[-1]]
        else:
            place[field[-1]] = 5
        path.write_text(json.dumps(content))
        refused += is_refused(folder, name)

    assert refused >= 4
