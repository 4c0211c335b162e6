"""What is wanted of the running stack, and its report: two files in the state folder, whose field names are here."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from aftermind.errors import StackError
from aftermind.stack import orphans
from aftermind.stack.folder import StateFolder, read_json, write_json
from aftermind.stack.specs import Command, ComponentState, ComponentStatus, HealthCheck, Restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the supervisor is to run; `run` tells one start from the next, `revision` one wish from the next."""

    run: str
    owner: int | None = None  # the process that the stack is not to outlive; None when detached
    revision: int = 0
    replica: bool = True
    postgres_settings: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the supervisor says of itself."""

    run: str
    revision: int
    pid: int
    phase: str  # starting, up, failed, stopping, down
    error: tuple[str, str, str] | None = None  # the three parts of a StackError
    components: tuple[ComponentStatus, ...] = ()


def hand_over(folder: StateFolder, wanted: Wanted) -> None:
    """Leave the first wish for the supervisor that is about to be started."""
    write_json(folder.wish_of(wanted.run), asdict(wanted))


def accept(folder: StateFolder, run: str) -> None:
    """Make the wish of this run the folder's; only for whoever holds the lock."""
    folder.wish_of(run).replace(folder.wanted)


def write_wanted(folder: StateFolder, wanted: Wanted) -> None:
    """Replace the wish of the running supervisor."""
    write_json(folder.wanted, asdict(wanted))


def read_wanted(folder: StateFolder) -> Wanted:
    """The wish that was left last."""
    found = _required(folder, read_json(folder.wanted))
    commands = tuple(_command(entry) for entry in found.pop("commands"))
    return Wanted(**{**found, "commands": commands, "held": tuple(found["held"])})


def write_report(folder: StateFolder, report: Report) -> None:
    """Replace the supervisor's report; each living process is noted so that a later start can tell it from others."""
    components = [{**asdict(each), "since": each.since.isoformat()} for each in report.components]
    for entry in components:
        entry["process"] = orphans.identify(entry["pid"]) if entry["pid"] else None
    write_json(folder.status, {**asdict(report), "components": components})


def read_report(folder: StateFolder) -> Report | None:
    """The last report, or None before the first."""
    found: dict[str, Any] | None = read_json(folder.status)  # Any: our own file, checked by the constructors below
    if found is None:
        return None
    components = tuple(_component(entry) for entry in found.pop("components"))
    error = found.pop("error")
    return Report(**found, components=components, error=tuple(error) if error else None)


def remembered_processes(folder: StateFolder) -> Sequence[Mapping[str, Any]]:
    """The processes that the last report names, for `orphans.end`."""
    found: dict[str, Any] = read_json(folder.status) or {}
    return [entry["process"] for entry in found.get("components", ()) if entry.get("process")]


def _required(folder: StateFolder, found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise StackError("stack", f"{folder.wanted} is missing", "Start the stack by `aftermind up`.")
    return found


def _command(entry: dict[str, Any]) -> Command:
    health = entry.pop("health")
    check = HealthCheck(**{**health, "argv": tuple(health["argv"])}) if health else None
    return Command(**{**entry, "argv": tuple(entry["argv"]), "restart": Restart(entry["restart"]), "health": check})


def _component(entry: dict[str, Any]) -> ComponentStatus:
    known = {each.name: entry[each.name] for each in fields(ComponentStatus)}
    since = datetime.fromisoformat(known["since"])
    return ComponentStatus(**{**known, "state": ComponentState(known["state"]), "since": since})
