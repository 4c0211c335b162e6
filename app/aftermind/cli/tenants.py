"""`aftermind tenants`: namespaces with their users, jobs and costs; moves of them to another database."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.cli import terminal
from aftermind.cli.terminal import err, out
from aftermind.llm import prices
from aftermind.memory import Memory
from aftermind.types.job_admin import TenantSummary
from aftermind.types.tenant_move import PurgedTenant, TenantMove

tenants = typer.Typer(name="tenants")

Name = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace.")]
To = Annotated[str, typer.Option("--to", help="The database of AFTERMIND_DATABASES to move it to, or `default`.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(tenants)


@tenants.callback(invoke_without_command=True)
@terminal.with_json
def list_(
    context: typer.Context,
    *,
    prefix: Annotated[str, typer.Option(help="Only names that begin with this.")] = "",
    after: Annotated[str | None, typer.Option(help="Only names after this one: the next page.")] = None,
    limit: Annotated[int, typer.Option(help="How many to list.", min=1, max=10_000)] = 100,
    wide: terminal.Wide = False,
) -> Sequence[TenantSummary]:
    """List namespaces with users, unfinished jobs and today's costs, by name. To see all, set AFTERMIND_RELAY_URL.

    The count has forgotten users and groups too; `aftermind users` lists those with content.
    """
    if context.invoked_subcommand is not None:
        return []

    async def work(memory: Memory) -> Sequence[TenantSummary]:
        return await memory.job_admin.tenants(prefix=prefix, after=after, limit=limit)

    found = terminal.with_memory(work)
    shown = terminal.make_table(
        "namespace", "users", "unfinished", "dead", "calls", "tokens", "US dollars", flexible="namespace"
    )
    for each in found:
        counts = (each.users, each.unfinished_jobs, each.dead_letters, each.calls, each.tokens)
        shown.add_row(
            escape(each.namespace),
            *(f"{count:,}" for count in counts),
            prices.describe_cost(each.cost_usd, is_cost_unknown=bool(each.unpriced_models)),
        )
    terminal.print_table(shown, wide=wide)
    if unpriced_models := sorted({model for each in found for model in each.unpriced_models}):
        terminal.warn(f"No price: {', '.join(unpriced_models)}. {prices.SETTING} sets prices of later calls.")
    terminal.note_limit(found, limit)
    return found


@tenants.command()
@terminal.with_json
def move(
    namespace: Name,
    *,
    to: To,
    abort: Annotated[
        bool, typer.Option("--abort", help="End a move that was stopped before its switch, and delete the copy.")
    ] = False,
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Then delete the rows in the former database. It cannot be undone.")
    ] = False,
) -> TenantMove | None:
    """Move a namespace to another database while it is served. A repeated call continues.

    All of its rows are copied and compared by counts and checksums. Writes pause for the last ones: turns wait, recall
    continues. Running processes follow the switch; no setting changes. Set migrator_url for both databases.
    """
    if abort and delete_source:
        raise errors.InvalidSettings("abort", "--delete-source", "an aborted move has no source to delete.")

    async def work(memory: Memory) -> TenantMove | None:
        if abort:
            await memory.tenants.abort(namespace, to=to)
            return None
        moved = await memory.tenants.move(namespace, to=to, on_step=lambda step: status.update(f"{step} …"))
        if delete_source:
            await memory.tenants.purge(namespace, database=moved.source)
        return moved

    with err.status("…") as status:
        moved = terminal.with_memory(work)
    if moved is None:
        out.print(f"The move of {escape(namespace)} is aborted: it is served where it was.")
        return None
    seconds = f"{moved.paused_seconds:.1f} s"
    rest = f": {moved.rows:,} rows verified, writes paused for {seconds}" if moved.rows else " already"
    out.print(f"{escape(namespace)} is served by {moved.target}{rest}.")
    if not delete_source:
        out.print(f"Its rows in {moved.source} stay until `aftermind tenants purge --database {moved.source}`.")
    return moved


@tenants.command()
@terminal.with_json
def purge(
    namespace: Name,
    *,
    database: Annotated[str, typer.Option("--database", help="The database that the namespace has left.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> PurgedTenant:
    """Delete the rows of a namespace in a database that it has left. It cannot be undone."""
    if not yes:
        typer.confirm(f"Delete all rows of {namespace} in {database}?", abort=True, err=True)
    purged = terminal.with_memory(lambda memory: memory.tenants.purge(namespace, database=database))
    out.print(f"{purged.rows:,} rows deleted.")
    return purged
