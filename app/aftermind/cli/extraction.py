"""`aftermind extraction`, `undo`, `costs`: what came of each turn as a source of facts, and what models have cost."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.api.undo import Undone
from aftermind.cli import console
from aftermind.cli.console import Namespace, User, out
from aftermind.cli.dead_letters import moment
from aftermind.ledger.protocol import Spending
from aftermind.memory import Memory
from aftermind.types import Learned, LearnedState
from aftermind.types.audit import Action

COLOURS = {LearnedState.FACTS: "green", LearnedState.DEAD: "red", LearnedState.WAITING: "yellow"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("extraction")(extraction)
    app.command()(costs)
    app.command()(undo)


def extraction(
    *,
    user: User = None,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages, the newest.")] = 50,
) -> None:
    """Show the extraction outcome of each message, with the reason."""

    async def work(memory: Memory) -> list[Learned]:
        await console.record_read(memory, Action.READ, user=user, namespace=namespace, by="learned")
        return await memory.extraction(user_id=user, namespace=namespace, session_id=session, limit=limit)

    found = console.with_memory(work)
    out.print(_outcomes(found) if found else "No messages.")


def undo(
    *,
    episodes: Annotated[list[str], typer.Option("--episode", "-e", help="A message's id. May be repeated.")],
    user: User = None,
    namespace: Namespace = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
) -> None:
    """Undo everything derived from a message: facts, summaries, traits. The message stays in the history, marked."""

    async def work(memory: Memory) -> Undone:
        if dry_run:  # else the change itself is in the trail
            await console.record_read(memory, Action.READ, user=user, namespace=namespace, by="undo --dry-run")
        return await memory.undo(*episodes, user_id=user, namespace=namespace, dry_run=dry_run)

    done = console.with_memory(work)
    for word, facts in (("retracted", done.retracted), ("restored", done.restored)):
        for fact in facts:
            out.print(f"{word}: {escape(fact.text)}")
    out.print(
        f"{len(done.retracted)} facts retracted, {len(done.restored)} restored, {done.summaries} summaries and "
        f"{done.traits} traits {'would be' if dry_run else 'are'} rebuilt."
        + (" Nothing was changed." if dry_run else "")
    )


def costs(
    *,
    user: User = None,
    namespace: Namespace = None,
    since: Annotated[str, typer.Option(help="From: 7d, 24h, or a day like 2026-01-31 (UTC).")] = "7d",
) -> None:
    """Show model usage of a user or of the whole namespace, by day, kind of job and model."""
    start = moment("since", since) or datetime.now(UTC)

    async def work(memory: Memory) -> list[Spending]:
        return await memory.spending(
            user_id=user, namespace=namespace, since=start.astimezone(UTC).date(), everybody=user is None
        )

    found = console.with_memory(work)
    out.print(_spent(found) if found else "No model usage since then.")


def _outcomes(found: Sequence[Learned]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("when", "session", "outcome", "facts", "reason", "extractor", "message"):
        shown.add_column(title, overflow="fold")
    for each in found:
        colour = COLOURS.get(each.state, "dim")
        texts = (str(each.facts), escape(each.reason or ""), escape(each.extractor or ""), str(each.episode_id))
        when, session = console.when(each.occurred_at), escape(each.session_id or "-")
        shown.add_row(when, session, f"[{colour}]{each.state}[/]", *texts)
    return shown


def _spent(found: Sequence[Spending]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("day", "user", "kind", "model"):
        shown.add_column(title)
    for title in ("calls", "tokens in", "tokens out", "US dollars", "seconds"):
        shown.add_column(title, justify="right")
    for each in found:
        spent = each.spent
        counts = (f"{spent.calls:,}", f"{spent.tokens_in:,}", f"{spent.tokens_out:,}")
        who, model = escape(each.owner.user_id or "anonymous"), escape(spent.model or "")
        more = (f"{spent.cost_usd:.4f}", f"{spent.latency_ms / 1_000:.1f}")
        shown.add_row(each.day.isoformat(), who, each.kind, model, *counts, *more)
    return shown
