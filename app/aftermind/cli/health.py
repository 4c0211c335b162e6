"""`aftermind health`: whether work is being done, for the health checks of containers and process managers."""

from typing import Annotated

import typer

from aftermind.api.health import JOBS, Health
from aftermind.cli import terminal
from aftermind.settings import Settings
from aftermind.types import JobKind
from aftermind.wire import queues

Queues = Annotated[str, typer.Option("--queues", "-Q", help="Comma-separated queues to check; or all.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(health)


@terminal.with_json
def health(*, named: Queues = "all") -> Health:
    """Exit 0 if the database answers and no job is overdue, else 1. Measured by the age of jobs, not by processes.

    Of several databases (AFTERMIND_DATABASES) it checks each, or only AFTERMIND_DATABASE if that is set.
    """
    wanted = set(queues.QUEUES) if named == "all" else {name.strip() for name in named.split(",")}

    seen = terminal.with_memory(lambda memory: memory.health(), settings=_of_chosen_database(Settings()))
    # Without the rows of jobs no overdue one is seen. While Redis is away, a restart of workers is no help.
    judged = [part for part in seen.parts if part.name.partition(" ")[0] in ("store", JOBS)]
    away = [f"{part.name}: {part.detail}" for part in judged if part.state == "down"]
    overdue = [
        f"{row.kind}: {row.runnable:,} could run, the oldest since {row.age_seconds:.0f} s"
        for row in seen.overdue
        if queues.QUEUE_OF[JobKind(row.kind)] in wanted
    ]
    complaints = [*away, *overdue]
    for part in seen.parts:
        if part.state == "degraded" or (part.state == "down" and part not in judged):
            # a refused key or a full spool is reported, and a restart would not fix it
            terminal.warn(f"{part.name}: {part.detail}")
    terminal.show("\n".join(complaints) or "ok")
    if complaints:
        raise terminal.ExitWithResult(1, seen)
    return seen


def _of_chosen_database(settings: Settings) -> Settings:
    """A container that serves one database is healthy while another database is away."""
    if not settings.databases or "database" not in settings.model_fields_set:
        return settings
    return settings.of_database(settings.database).model_copy(update={"databases": {}, "placement": {}})
