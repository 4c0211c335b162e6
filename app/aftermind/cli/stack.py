"""`aftermind up`, `down`, `status` and `stack destroy`: the embedded stack."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import console, migrate, services
from aftermind.cli.console import out
from aftermind.faces import addresses
from aftermind.settings import Settings
from aftermind.stack import ComponentState, ComponentStatus, Stack

OLD_SECONDS = 60.0  # that runnable work may lie: a bell takes milliseconds
GOOD = {ComponentState.RUNNING, ComponentState.EXITED, ComponentState.HELD}
Workers = Annotated[bool, typer.Option(help="Also run workers, the reconciler, the web service and Flower.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    family = typer.Typer(help="The embedded stack as a whole.", no_args_is_help=True)
    family.command()(destroy)
    app.add_typer(family, name="stack")


def up(*, workers: Workers = True) -> None:
    """Start the embedded stack in the background: Postgres with a replica, Redis, and what works with them.

    It stays up until `aftermind down`. Run again, it starts what is missing.
    """
    settings = console.settings()
    stack = Stack(settings.state_dir)
    with console.err.status("Starting Postgres, its replica and Redis …"):
        endpoints = stack.running() or stack.up(detach=True)
    plan = services.plan(settings, endpoints, stack.status())
    with console.err.status("Bringing the schema up to date …"):
        console.run(migrate.apply(settings, endpoints.postgres_url))
    if workers:
        with console.err.status("Starting workers, web service and Flower …"):
            stack.supervise(plan.commands())
    out.print(table(stack.status()))
    console.run(_warn_of_other_embedder(settings))
    if workers:
        plan.print_addresses()
    out.print(
        "\nIt stays up until [bold]aftermind down[/]. Next: [bold]aftermind ingest examples/conversation.jsonl[/]"
    )


async def _warn_of_other_embedder(settings: Settings) -> None:
    """Warn of stored vectors of another embedder, with which the stack starts all the same."""
    from aftermind.cli import checks  # with SQLAlchemy, which `aftermind status` does without

    for finding in await checks.vectors(addresses.resolve(settings), settings):
        if finding.verdict is checks.Verdict.BAD:
            console.warn(finding.seen)
            console.warn(finding.remedy)


def down() -> None:
    """Stop the embedded stack in good order. Its data stays."""
    settings = console.settings()
    with console.err.status("Stopping …"):
        Stack(settings.state_dir).down()
    out.print(f"Stopped. The data stays in {escape(str(settings.state_dir))}.")


def status() -> None:
    """Show every component of the embedded stack. Exit code 1 where one is not well."""
    settings = console.settings()
    components = Stack(settings.state_dir).status()
    if not components:
        out.print("No embedded stack has run here yet. `aftermind up` starts one.")
        raise typer.Exit(1)
    out.print(table(components))
    if any(each.name == "flower" and each.state in GOOD for each in components):
        services.print_addresses(settings)
    if any(each.name == "postgres" and each.state is ComponentState.RUNNING for each in components):
        _warn_of_work()
    if any(each.state not in GOOD for each in components):
        raise typer.Exit(1)


def _warn_of_work() -> None:
    """What a look at processes does not show: a provider that is not asked, a store without its schema, old work."""
    health = console.with_memory(lambda memory: memory.health())
    for part in health.parts:
        if part.state != "ok":
            console.warn(f"{part.name}: {part.detail}")
    for row in health.work:
        if row.age_seconds > OLD_SECONDS:
            console.warn(f"{row.kind}: {row.runnable:,} could run, the oldest since {row.age_seconds:.0f} s")


def destroy(*, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Stop the embedded stack and remove its data for good."""
    state_dir = console.settings().state_dir
    if not yes:
        typer.confirm(f"Remove every memory in {state_dir}?", abort=True)
    with console.err.status("Removing …"):
        Stack(state_dir).destroy()
    out.print(f"Removed the stack and its data from {escape(str(state_dir))}.")


def table(components: list[ComponentStatus]) -> Table:
    """Components as a table for people."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("component", "state", "pid", "port", "restarts", "since", ""):
        shown.add_column(title)
    for each in components:
        colour = "green" if each.state in GOOD else "red" if each.state is ComponentState.STOPPED else "yellow"
        numbers = (str(value) if value is not None else "-" for value in (each.pid, each.port, each.restarts))
        state = f"[{colour}]{each.state}[/]"
        shown.add_row(each.name, state, *numbers, console.when(each.since), escape(each.detail))
    return shown
