"""`aftermind extraction`: the extraction outcome of each message."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import console
from aftermind.cli.console import Namespace, User, out
from aftermind.memory import Memory
from aftermind.types import ExtractionResult, ExtractionState
from aftermind.types.audit import Action

COLOURS = {ExtractionState.FACTS: "green", ExtractionState.DEAD: "red", ExtractionState.WAITING: "yellow"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("extraction")(extraction)


def extraction(
    *,
    user: User = None,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages, the newest.")] = 50,
) -> None:
    """Show the extraction outcome of each message, with the reason."""

    async def work(memory: Memory) -> list[ExtractionResult]:
        await console.record_read(memory, Action.READ, user=user, namespace=namespace, by="learned")
        return await memory.extraction(user_id=user, namespace=namespace, session_id=session, limit=limit)

    found = console.with_memory(work)
    out.print(_outcomes(found) if found else "No messages.")


def _outcomes(found: Sequence[ExtractionResult]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("when", "session", "outcome", "facts", "reason", "extractor", "message"):
        shown.add_column(title, overflow="fold")
    for each in found:
        colour = COLOURS.get(each.state, "dim")
        texts = (str(each.facts), escape(each.reason or ""), escape(each.extractor or ""), str(each.episode_id))
        when, session = console.when(each.occurred_at), escape(each.session_id or "-")
        shown.add_row(when, session, f"[{colour}]{each.state}[/]", *texts)
    return shown
