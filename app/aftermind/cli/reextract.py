"""`aftermind reextract`: draw facts anew from stored episodes, by another prompt or model, or show what that changes.

The command imports no handler: it makes a plan of jobs in the ledger, which workers of `memory.replay` do, and watches.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import Namespace, err, out
from aftermind.cli.dead import actor, moment
from aftermind.ledger.replays import RATE, NewPlan
from aftermind.llm import resolver
from aftermind.memory import Memory
from aftermind.types import Json
from aftermind.types.replay import ItemState, JobFilter, PlanId, PlanState, ReplayMode, ReplayPlan, Shadow

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 20.0  # without a step forward, before it is said that no worker may be there

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reextract)


def reextract(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Of this user. Without it: of everybody.")] = None,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Of this session; name the user too.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Mined (not said) since: 30m, 24h, 7d, or a time like 2026-01-31T12:00.")
    ] = None,
    extractor: Annotated[
        str | None, typer.Option(help="By this one: rules, openai:MODEL. Default: the one that is set.")
    ] = None,
    instructions: Annotated[str | None, typer.Option(help="Told to the model beside its prompt.")] = None,
    instructions_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    sample: Annotated[int, typer.Option(min=1, help="For --dry-run: at most so many model calls.")] = 200,
    rate: Annotated[float, typer.Option(help="Jobs a second.")] = RATE,
    reason: Annotated[str, typer.Option("--because", help="Why; it is kept with the plan.")] = "facts drawn anew",
) -> None:
    """Draw facts anew from stored episodes. Facts that are not found again are superseded, none is deleted."""
    if session is not None and user is None:
        raise errors.InvalidFilter("session", session, "name the user whose session it is: --user.")
    told = instructions_file.read_text(encoding="utf-8") if instructions_file else instructions
    overrides: dict[str, Json] = {"extractor": extractor, "instructions": told}
    if extractor is not None:
        resolver.extractor(console.settings().model_copy(update={"extractor": extractor}))  # or it says what is wrong
    new = NewPlan(
        name="reextract, dry run" if dry_run else "reextract",
        reason=reason,
        actor=actor(),
        mode=ReplayMode.REEXTRACT,
        overrides={name: value for name, value in overrides.items() if value},
        rate=rate,
    )

    async def work(memory: Memory) -> None:
        wanted = JobFilter(
            namespace=namespace or memory.namespace, user_id=user, session_id=session, since=moment("since", since)
        )
        try:
            plan = await memory.replays.plan(wanted, new)
        except errors.InvalidFilter as exc:
            if exc.field != "filter":
                raise
            out.print("Nothing that was mined fits: there is nothing to draw anew.")
            return
        if dry_run:
            await _foresee(memory, plan, sample)
        else:
            await _redo(memory, plan)

    console.with_memory(work)


async def _foresee(memory: Memory, plan: ReplayPlan, sample: int) -> None:
    asked = await memory.replays.shadow(plan.id, sample=sample)
    try:
        found = await _watched(
            lambda: memory.replays.shadows(plan.id),
            lambda seen: sum(each.state.is_final for each in seen),
            until=lambda seen: all(each.state.is_final for each in seen),
        )
    finally:
        await memory.replays.abort(plan.id, note="a dry run")
    await memory.replays.looked(plan.id)
    changed = [each for each in found if each.added or each.superseded or each.error]
    out.print(_changes(changed) if changed else "Nothing would change.")
    added, gone = sum(len(each.added) for each in found), sum(len(each.superseded) for each in found)
    whole = "" if len(asked) == plan.size else f", a sample of {plan.size:,}"
    out.print(
        f"[dim]{len(asked)} calls{whole}: {added} facts would be added, {gone} superseded. Nothing was written.[/]"
    )


async def _redo(memory: Memory, plan: ReplayPlan) -> None:
    estimate = await memory.replays.estimate(plan.id)
    dollars = f"${estimate.cost_usd:,.2f}"
    out.print(f"Plan [bold]{plan.id}[/]: {plan.size:,} calls, about {estimate.tokens:,} tokens, {dollars}.")
    await memory.replays.start(plan.id)

    async def look() -> ReplayPlan:
        return await memory.replays.found(plan.id) or plan

    done = await _watched(
        look,
        lambda seen: sum(count for state, count in seen.counts.items() if state is not ItemState.WAITING),
        until=lambda seen: seen.state is not PlanState.RUNNING,
    )
    counts = ", ".join(f"{count} {state}" for state, count in sorted(done.counts.items()))
    out.print(f"{done.state}: {counts}. `aftermind facts --user ID --history` shows what took the place of what.")
    if done.note:
        out.print(escape(done.note))
    if done.state is not PlanState.DONE:
        out.print(_go_on(done.id))


async def _watched(look: Callable[[], Awaitable[T]], steps: Callable[[T], int], *, until: Callable[[T], bool]) -> T:
    """Look until it is over. Says once that nothing moves; Ctrl-C leaves the work to the workers."""
    seen, moved_at, is_told = await look(), time.monotonic(), False
    before = steps(seen)
    while not until(seen):
        await asyncio.sleep(LOOK_SECONDS)
        seen = await look()
        if steps(seen) != before:
            before, moved_at = steps(seen), time.monotonic()
        elif time.monotonic() - moved_at > PATIENCE_SECONDS and not is_told:
            is_told = True
            err.print("[yellow]waiting[/]  for a worker of memory.replay: `aftermind worker --queues memory.replay`")
    return seen


def _go_on(plan_id: PlanId) -> str:
    return f"Go on with it: aftermind replay start {plan_id}"


def _changes(found: Sequence[Shadow]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("would add", "would supersede"):
        shown.add_column(title, overflow="fold")
    for each in found:
        lists = ("\n".join(each.added) or each.error or "", "\n".join(each.superseded))
        shown.add_row(*(escape(text) for text in lists))
    return shown
