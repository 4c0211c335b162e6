"""`aftermind undo`: remove everything that was derived from a message."""

from typing import Annotated

import typer
from rich.markup import escape

from aftermind.api.undo import UndoResult
from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, User, out
from aftermind.memory import Memory
from aftermind.types.audit import Action


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(undo)


@terminal.with_json
def undo(
    *,
    episodes: Annotated[list[str], typer.Option("--episode", "-e", help="A message's id. May be repeated.")],
    user: User = None,
    namespace: Namespace = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
) -> UndoResult:
    """Undo everything derived from a message: facts, summaries, traits. The message stays in the history, marked."""

    async def work(memory: Memory) -> UndoResult:
        if dry_run:  # else the change itself is in the trail
            await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="undo --dry-run")
        return await memory.undo(*episodes, user_id=user, namespace=namespace, dry_run=dry_run)

    done = terminal.with_memory(work)
    for word, facts in (("retracted", done.retracted), ("restored", done.restored)):
        for fact in facts:
            out.print(f"{word}: {escape(fact.text)}")
    summaries = "1 summary" if done.summaries == 1 else f"{done.summaries:,} summaries"
    out.print(
        f"{terminal.count_of(len(done.retracted), 'fact')} retracted, {len(done.restored):,} restored, {summaries} and "
        f"{terminal.count_of(done.traits, 'trait')} deleted. "
        + ("Nothing was changed." if dry_run else "Jobs rebuild summaries and traits from the other messages.")
    )
    return done
