"""`aftermind tenants`: namespaces with their users, jobs and costs."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from aftermind.cli import console
from aftermind.memory import Memory
from aftermind.types.job_admin import TenantSummary


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tenants)


@console.with_json
def tenants(
    *,
    prefix: Annotated[str, typer.Option(help="Only names that begin with this.")] = "",
    after: Annotated[str | None, typer.Option(help="Only names after this one: the next page.")] = None,
    limit: Annotated[int, typer.Option(help="How many to list.", min=1, max=10_000)] = 100,
    wide: console.Wide = False,
) -> Sequence[TenantSummary]:
    """List namespaces with users, unfinished jobs and today's costs, by name. To see all, set AFTERMIND_RELAY_URL."""

    async def work(memory: Memory) -> Sequence[TenantSummary]:
        return await memory.job_admin.tenants(prefix=prefix, after=after, limit=limit)

    found = console.with_memory(work)
    shown = console.make_table(
        "namespace", "users", "unfinished", "dead", "calls", "tokens", "US dollars", flexible="namespace"
    )
    for each in found:
        counts = (each.users, each.unfinished_jobs, each.dead_letters, each.calls, each.tokens)
        shown.add_row(escape(each.namespace), *(f"{count:,}" for count in counts), f"{each.cost_usd:.4f}")
    console.print_table(shown, wide=wide)
    return found
