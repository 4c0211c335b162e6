"""The desired state of the running stack, and its report: two files in the state folder, whose field names are here."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from aftermind.errors import StackError
from aftermind.stack.component_types import Command, ComponentState, ComponentStatus, HealthCheck, Restart
from aftermind.stack.state_dir import StateFolder, read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """The desired processes of the supervisor; `run` identifies one start, `revision` one version of the list."""

    run: str
    owner: int | None = None  # the process that the stack is not to outlive; None when detached
    revision: int = 0
    replica: bool = True
    postgres_settings: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The supervisor's report about itself."""

    run: str
    revision: int
    pid: int
    phase: str  # starting, up, failed, stopping, down
    error: tuple[str, str, str] | None = None  # the three parts of a StackError
    components: tuple[ComponentStatus, ...] = ()


def hand_over(folder: StateFolder, wanted: DesiredState) -> None:
    """Write the first desired state, for the supervisor that is about to be started."""
    write_json(folder.start_request_path(wanted.run), asdict(wanted))


def accept(folder: StateFolder, run: str) -> None:
    """Make the desired state of this run that of the folder; only the holder of the lock may call it."""
    folder.start_request_path(run).replace(folder.wanted)


def write_desired_state(folder: StateFolder, wanted: DesiredState) -> None:
    """Replace the desired state of the running supervisor."""
    write_json(folder.wanted, asdict(wanted))


def read_desired_state(folder: StateFolder) -> DesiredState:
    """The last desired state."""
    found: dict[str, Any] | None = read_json(folder.wanted)  # Any: our own file, checked by the constructors below
    if found is None:
        raise StackError("stack", f"{folder.wanted} is missing", "Start the stack by `aftermind up`.")
    with _complete(folder.wanted):
        commands = tuple(_command(entry) for entry in found.pop("commands"))
        return DesiredState(**{**found, "commands": commands, "held": tuple(found["held"])})


def write_report(folder: StateFolder, report: Report) -> None:
    """Replace the supervisor's report; it identifies each running process so that a later start can recognise it."""
    from aftermind.stack import orphans  # with psutil, which readers of a report do without

    components = [{**asdict(each), "since": each.since.isoformat()} for each in report.components]
    for entry in components:
        entry["process"] = orphans.identify(entry["pid"]) if entry["pid"] else None
    write_json(folder.status, {**asdict(report), "components": components})


def read_report(folder: StateFolder) -> Report | None:
    """The last report, or None before the first."""
    found: dict[str, Any] | None = read_json(folder.status)  # Any: our own file, checked by the constructors below
    if found is None:
        return None
    with _complete(folder.status):
        components = tuple(_component(entry) for entry in found.pop("components"))
        error = found.pop("error")
        return Report(**found, components=components, error=tuple(error) if error else None)


def remembered_processes(folder: StateFolder) -> Sequence[Mapping[str, Any]]:
    """The processes that the last report names, for `orphans.end`."""
    found: dict[str, Any] = read_json(folder.status) or {}
    with _complete(folder.status):
        return [entry["process"] for entry in found.get("components", ()) if entry.get("process")]


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    """Raise `StackError` if the file lacks a field, or has one of the wrong type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        why = f"{path} is not complete: {type(exc).__name__}: {exc}"
        raise StackError("stack", why, "Remove that file, then run `aftermind up`.") from exc


def _command(entry: dict[str, Any]) -> Command:
    health = entry.pop("health")
    check = HealthCheck(**{**health, "argv": tuple(health["argv"])}) if health else None
    return Command(**{**entry, "argv": tuple(entry["argv"]), "restart": Restart(entry["restart"]), "health": check})


def _component(entry: dict[str, Any]) -> ComponentStatus:
    known = {each.name: entry[each.name] for each in fields(ComponentStatus)}
    since = datetime.fromisoformat(known["since"])
    return ComponentStatus(**{**known, "state": ComponentState(known["state"]), "since": since})
