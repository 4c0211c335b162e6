"""`aftermind audit`: list and verify the audit trail."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, out
from aftermind.types import Json
from aftermind.types.audit import Action, AuditEntry, AuditReport

BROKEN = 1  # exit code where something is wrong with a trail

audit = typer.Typer(
    name="audit",
    help="The audit trail: reads, changes and deletions of memories, in a hash chain.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(audit)


@audit.command(name="list")
@terminal.with_json
def listed(
    *,
    namespace: Namespace = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Entries about this user's memory.")] = None,
    action: Annotated[Action | None, typer.Option(help="Entries with this action.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries, the newest.")] = 50,
    wide: terminal.Wide = False,
) -> list[AuditEntry]:
    """List the newest entries of a namespace, oldest first."""
    found = terminal.with_memory(
        lambda memory: memory.audit.list(namespace=namespace, user_id=user, action=action, limit=limit)
    )
    terminal.show(_table(found) if found else "No entries.", wide=wide)
    terminal.note_limit(found, limit)
    return found


@audit.command()
@terminal.with_json
def verify(
    *,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace. Default: every namespace that the database role may read."),
    ] = None,
) -> Sequence[AuditReport]:
    """Verify every entry. Exit 0 if all are unchanged, 1 if one was changed, removed or inserted."""
    reports = terminal.with_memory(lambda memory: memory.audit.verify(namespace=namespace))
    for report in reports:
        out.print(escape(_report_line(report)))
        for fault in report.faults:
            where = "" if fault.seq is None else f"entry {fault.seq}: "
            out.print(f"  [bold red]wrong[/]  {escape(where + fault.what)}")
        if not report.witnesses:
            why = "neither Redis nor this state folder has its end, so a deletion of the newest entries is not detected"
            terminal.warn(f"{report.namespace}: {why}")
    if not all(report.is_whole for report in reports):
        raise terminal.ExitWithResult(BROKEN, reports)
    return reports


def _report_line(report: AuditReport) -> str:
    if not report.entries:
        return f"{report.namespace}: no entries"
    span = f"{report.entries:,} entries, {report.first} to {report.last}"
    if not report.is_whole:
        return f"{report.namespace}: {span}, NOT intact"
    known = f"; the newest entry is confirmed by {' and '.join(report.witnesses)}" if report.witnesses else ""
    return f"{report.namespace}: {span}, intact{known}"


def _table(found: list[AuditEntry]) -> Table:
    shown = terminal.make_table("no", "at", "actor", "action", "user", "detail", flexible="detail")
    for each in found:
        detail = ", ".join(f"{name}={_value(value)}" for name, value in each.detail.items())
        texts = (str(each.seq), terminal.when(each.at), each.actor, str(each.action), each.user_id or "-")
        shown.add_row(*(escape(text) for text in texts), terminal.one_line(detail))
    return shown


def _value(value: Json) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
