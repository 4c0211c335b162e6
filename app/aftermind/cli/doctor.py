"""`aftermind doctor`: look at every component, and say how to mend what is not well."""

import asyncio

import typer
from rich.markup import escape

from aftermind.cli import checks, console
from aftermind.cli.checks import Finding, Verdict
from aftermind.cli.console import err, out
from aftermind.faces import addresses
from aftermind.settings import Settings

MARKS = {
    Verdict.GOOD: "[green]ok[/]     ",
    Verdict.WARNING: "[yellow]warning[/]",
    Verdict.BAD: "[bold red]bad[/]    ",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor() -> None:
    """Look at every component, and say how to mend what is not well. Exit code 1 where something is bad."""
    settings = console.settings()
    with err.status("Looking …"):
        findings = console.run(examine(settings))
    for each in findings:
        out.print(f"{MARKS[each.verdict]}  {escape(each.what)}: {escape(each.seen)}")
        if each.remedy:
            out.print(f"           [dim]→ {escape(each.remedy)}[/]")
    bad = sum(each.verdict is Verdict.BAD for each in findings)
    warnings = sum(each.verdict is Verdict.WARNING for each in findings)
    out.print(f"\n{bad} bad, {warnings} {'warning' if warnings == 1 else 'warnings'}.")
    if bad:
        raise typer.Exit(1)


async def examine(settings: Settings) -> list[Finding]:
    """Every finding, in the order of the data's way. Raises `InvalidSettings` where nothing can be looked at."""
    found = addresses.resolve(settings)
    looks = [checks.disk(settings), checks.spool(settings), checks.models(settings)]
    if found.redis is not None:
        looks = [
            checks.postgres(found.store, settings),
            *(checks.replica(url, found.store, settings) for url in found.replicas),
            checks.redis(found.redis, settings),
            checks.work(found, settings),
            checks.audit_keys(found, settings),
            checks.vectors(found, settings),
            *looks,
        ]
    if found.redis is not None and found.broker == found.redis:
        looks.append(checks.workers(found.redis, settings))
    if found.redis is not None and not found.replicas:
        looks.insert(1, checks.no_replica())
    return [finding for findings in await asyncio.gather(*looks) for finding in findings]
