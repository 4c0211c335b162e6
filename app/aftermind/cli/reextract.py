"""`aftermind reextract`: repeat fact extraction with another prompt or model, or show what it would change.

The command imports no handler: it creates a plan of jobs in the ledger, which workers of `memory.replay` run, and
follows it.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import replay, terminal
from aftermind.cli.dead_letters import actor, moment
from aftermind.cli.terminal import Namespace, err, out
from aftermind.ledger.replay_protocol import RATE, NewPlan
from aftermind.llm import factory
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types import Json
from aftermind.types.replay import DryRunResult, JobFilter, PlanId, PlanState, ReplayMode, ReplayPlan

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 20.0  # without progress, before a warning that no worker may be running


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reextract)


@terminal.with_json
def reextract(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: all users.")] = None,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session; requires --user.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Messages extracted (not written) since: 30m, 24h, 7d, or a time like 2026-01-31T12:00."),
    ] = None,
    extractor: Annotated[
        str | None, typer.Option(help="The extractor: rules, openai:MODEL. Default: the configured one.")
    ] = None,
    instructions: Annotated[str | None, typer.Option(help="Additional instructions for the model.")] = None,
    instructions_file: Annotated[Path | None, typer.Option(help="File with additional instructions.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    sample: Annotated[int, typer.Option(min=1, help="For --dry-run: maximum number of model calls.")] = 200,
    rate: Annotated[float, typer.Option(help="Jobs per second.")] = RATE,
    reason: Annotated[
        str, typer.Option("--because", help="The reason; it is stored with the plan.")
    ] = "repeat fact extraction",
) -> ReplayPlan | Sequence[DryRunResult]:
    """Repeat fact extraction for stored episodes. Facts that are not found again are superseded; none is deleted.

    The exit code is 1 if the plan was paused or aborted, or if jobs failed.
    """
    if session is not None and user is None:
        raise errors.InvalidFilter("session", session, "set the session's user with --user.")
    told = instructions_file.read_text(encoding="utf-8") if instructions_file else instructions
    overrides: dict[str, Json] = {"extractor": extractor, "instructions": told}
    if extractor is not None:
        # raises if the name is invalid
        factory.extractor(Settings().model_copy(update={"extractor": extractor}))
    new = NewPlan(
        name="reextract, dry run" if dry_run else "reextract",
        reason=reason,
        actor=actor(),
        mode=ReplayMode.REEXTRACT,
        overrides={name: value for name, value in overrides.items() if value},
        rate=rate,
    )

    async def work(memory: Memory) -> ReplayPlan | Sequence[DryRunResult]:
        wanted = JobFilter(
            namespace=namespace or memory.namespace, user_id=user, session_id=session, since=moment("since", since)
        )
        try:
            plan = await memory.replays.create(wanted, new)
        except errors.InvalidFilter as exc:
            if exc.field != "filter":
                raise
            out.print("No extracted message matches.")
            return []
        return await (_foresee(memory, plan, sample) if dry_run else _redo(memory, plan))

    found = terminal.with_memory(work)
    if isinstance(found, ReplayPlan) and not found.is_successful:
        raise terminal.ExitWithResult(1, found)
    return found


async def _foresee(memory: Memory, plan: ReplayPlan, sample: int) -> Sequence[DryRunResult]:
    asked = await memory.replays.dry_run(plan.id, sample=sample)
    try:
        found = await _end_of_dry_run(memory, plan.id)
    finally:
        await memory.replays.abort(plan.id, note="a dry run")
    await memory.replays.record_access(plan.id)
    changed = [each for each in found if each.added or each.superseded or each.error]
    out.print(_changes(changed) if changed else "Nothing would change.")
    added, gone = sum(len(each.added) for each in found), sum(len(each.superseded) for each in found)
    whole = "" if len(asked) == plan.size else f", a sample of {plan.size:,}"
    out.print(
        f"[dim]{len(asked)} calls{whole}: {added} facts would be added, {gone} superseded. Nothing was written.[/]"
    )
    return changed


async def _redo(memory: Memory, plan: ReplayPlan) -> ReplayPlan:
    estimate = await memory.replays.estimate(plan.id)
    out.print(f"Plan [bold]{plan.id}[/], model calls: {estimate.describe_calls()}.")
    done = await replay.follow(memory, await memory.replays.start(plan.id))
    out.print(f"{replay.progress_line(done)}. `aftermind facts --user ID --history` shows the superseded facts.")
    if done.note:
        out.print(escape(done.note))
    if done.state is not PlanState.DONE:
        out.print(_next_command(done.id))
    return done


async def _end_of_dry_run(memory: Memory, plan_id: PlanId) -> Sequence[DryRunResult]:
    """Wait until all its jobs have ended. Warns once if there is no progress; Ctrl-C leaves the work to the workers."""
    ended, moved_at, is_warned = 0, time.monotonic(), False
    while True:
        seen = await memory.replays.dry_run_results(plan_id)
        if all(each.state.is_final for each in seen):
            return seen
        before, ended = ended, sum(each.state.is_final for each in seen)
        if ended != before:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > PATIENCE_SECONDS and not is_warned:
            is_warned = True
            err.print("[yellow]waiting[/]  for a worker of memory.replay: `aftermind worker --queues memory.replay`")
        await asyncio.sleep(POLL_SECONDS)


def _next_command(plan_id: PlanId) -> str:
    return f"Continue with: aftermind replay start {plan_id}"


def _changes(found: Sequence[DryRunResult]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("would add", "would supersede"):
        shown.add_column(title, overflow="fold")
    for each in found:
        lists = ("\n".join(each.added) or each.error or "", "\n".join(each.superseded))
        shown.add_row(*(escape(text) for text in lists))
    return shown
