"""`aftermind extraction`: the extraction outcome of each message."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, User, out
from aftermind.memory import Memory
from aftermind.types import Episode, EpisodeId, ExtractionResult, ExtractionState, JobKind
from aftermind.types.audit import Action

_MORE = ("reason", "session", "extractor", "id")
COLOURS = {ExtractionState.FACTS: "green", ExtractionState.DEAD: "red", ExtractionState.WAITING: "yellow"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("extraction")(extraction)


@terminal.with_json
def extraction(
    *,
    user: User = None,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages, the newest.")] = 50,
    wide: terminal.Wide = False,
) -> list[ExtractionResult]:
    """Show the extraction outcome of each message, with the reason."""

    async def work(memory: Memory) -> tuple[list[ExtractionResult], list[Episode]]:
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="extraction")
        outcomes = await memory.extraction(user_id=user, namespace=namespace, session_id=session, limit=limit)
        space = namespace or memory.namespace
        pauses = await memory.job_admin.pauses(namespace=space)
        pause = next((each.summary() for each in pauses if each.covers(JobKind.EXTRACT, space)), None)
        outcomes = [
            replace(each, reason=pause) if pause and each.state is ExtractionState.WAITING else each
            for each in outcomes
        ]
        return outcomes, await memory.history(user_id=user, namespace=namespace, session_id=session, limit=limit)

    found, episodes = terminal.with_memory(work)
    if found:
        terminal.print_table(_outcomes(found, {each.id: each.content for each in episodes}, wide=wide), wide=wide)
    else:
        out.print("No messages.")
    terminal.note_limit(found, limit)
    return found


def _outcomes(found: Sequence[ExtractionResult], texts: Mapping[EpisodeId, str], *, wide: bool) -> Table:
    shown = terminal.make_table("when", "outcome", "facts", "message", *(_MORE if wide else ()), flexible="message")
    for each in found:
        text = texts.get(each.episode_id, "")
        colour = COLOURS.get(each.state, "dim")
        more = (each.reason or "", each.session_id or "-", each.extractor or "", str(each.episode_id)) if wide else ()
        row = (
            terminal.when(each.occurred_at),
            f"[{colour}]{each.state}[/]",
            str(each.facts),
            terminal.one_line(text, "" if wide else each.reason or ""),
        )
        shown.add_row(*row, *(escape(text) for text in more))
    return shown
