"""`aftermind doctor`: check every component and suggest fixes."""

import asyncio
import re
from dataclasses import replace

import typer
from rich.markup import escape

from aftermind.api import address_resolution
from aftermind.api.address_resolution import REDIS
from aftermind.cli import doctor_checks, doctor_key_and_audit_checks, terminal
from aftermind.cli.doctor_checks import Finding, Verdict
from aftermind.cli.terminal import err, out
from aftermind.database_map import DEFAULT
from aftermind.settings import Settings

_ADDRESS = re.compile(r"AFTERMIND_((?:DATABASE|RELAY|MIGRATOR|REPLICA|BROKER|REDIS|INDEX)_URLS?)")
MARKS = {
    Verdict.GOOD: "[green]ok[/]     ",
    Verdict.WARNING: "[yellow]warning[/]",
    Verdict.BAD: "[bold red]bad[/]    ",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


@terminal.with_json
def doctor() -> list[Finding]:
    """Check every component and suggest fixes. Exit code 1 if a check fails."""
    settings = Settings()
    with err.status("Checking …"):
        findings = terminal.run(examine(settings))
    for each in findings:
        out.print(f"{MARKS[each.verdict]}  {escape(each.what)}: {escape(each.seen)}")
        if each.remedy:
            out.print(f"           [dim]→ {escape(each.remedy)}[/]")
    bad = sum(each.verdict is Verdict.BAD for each in findings)
    warnings = sum(each.verdict is Verdict.WARNING for each in findings)
    out.print(f"\n{bad} bad, {warnings} {'warning' if warnings == 1 else 'warnings'}.")
    if bad:
        raise terminal.ExitWithResult(1, findings)
    return findings


async def examine(settings: Settings) -> list[Finding]:
    """All findings of each database of the map. Raises `InvalidSettings` if no component can be checked."""
    if not settings.databases:
        return await _examine(settings)
    named = settings.database_names if "database" not in settings.model_fields_set else (settings.database,)
    found = await asyncio.gather(*(_examine(settings.of_database(name)) for name in named))
    return [
        finding if name == DEFAULT else _of_database(finding, name)
        for name, findings in zip(named, found, strict=True)
        for finding in findings
    ]


def _of_database(finding: Finding, name: str) -> Finding:
    """The finding with the name of its database, whose addresses are in the map."""
    remedy = _ADDRESS.sub(lambda setting: f"`{setting[1].lower()}` of {name} in AFTERMIND_DATABASES", finding.remedy)
    return replace(finding, what=f"{finding.what} ({name})", remedy=remedy)


async def _examine(settings: Settings) -> list[Finding]:
    """All findings of one database, in the order of the data flow."""
    found = address_resolution.resolve(settings)
    deployment = None if found.is_in_process else address_resolution.spool_deployment(settings, found)
    looks = [
        doctor_checks.variables(),
        doctor_checks.processes(settings),
        doctor_checks.disk(settings),
        doctor_checks.spool(settings, deployment),
        doctor_checks.models(settings),
    ]
    if found.redis is not None:
        looks = [
            doctor_checks.postgres(found.store, settings),
            *(doctor_checks.replica(url, found.store, settings) for url in found.replicas),
            doctor_checks.redis(found.redis, settings),
            doctor_checks.work(found, settings),
            doctor_checks.reconciler(found.redis, settings),
            doctor_key_and_audit_checks.audit_keys(found, settings),
            doctor_key_and_audit_checks.keys(found, settings),
            doctor_checks.vectors(found, settings),
            *looks,
        ]
    else:
        looks = [doctor_checks.record_store(found, settings), *looks]
    if found.broker is not None and found.broker.split("://")[0] in REDIS:
        looks.append(doctor_checks.workers(found.broker, settings, redis=found.redis))
    if found.redis is not None and not found.replicas:
        looks.insert(1, doctor_checks.no_replica())
    if settings.databases:
        looks.append(doctor_checks.placement(found, settings))
    return [finding for findings in await asyncio.gather(*looks) for finding in findings]
