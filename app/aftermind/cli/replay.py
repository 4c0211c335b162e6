"""`aftermind replay`: plans that bring dead letters back."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import err, out
from aftermind.cli.dead import (
    ErrorText,
    Fingerprint,
    Ids,
    Kinds,
    OfNamespace,
    OfUser,
    Reasons,
    Since,
    Until,
    actor,
    wanted,
)
from aftermind.ledger.replays import CONCURRENCY, MAX_FAILURE_SHARE, RATE, NewPlan
from aftermind.memory import Memory
from aftermind.types import Json
from aftermind.types.replay import Estimate, PlanId, PlanState, ReplayMode, ReplayPlan, Shadow

PROGRESS_SECONDS = 0.5

Plan = Annotated[str, typer.Argument(help="The plan's id, as `plan` and `ls` show it.", show_default=False)]

replay = typer.Typer(name="replay", help="Bring dead letters back, by plan.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(replay)


@replay.command()
def plan(
    *,
    reason: Annotated[str, typer.Option("--because", help="Why they come back; it is kept.", show_default=False)],
    name: Annotated[str, typer.Option(help="What to call it.")] = "replay",
    ids: Ids = None,
    kind: Kinds = None,
    reasons: Reasons = None,
    fingerprint: Fingerprint = None,
    error: ErrorText = None,
    namespace: OfNamespace = None,
    user: OfUser = None,
    since: Since = None,
    until: Until = None,
    mode: Annotated[ReplayMode, typer.Option(help="The same again, edited, or facts drawn anew.")] = ReplayMode.RETRY,
    override: Annotated[list[str] | None, typer.Option("--set", help="KEY=JSON laid over the payload.")] = None,
    model: Annotated[str | None, typer.Option(help="For reextract: another model.")] = None,
    prompt: Annotated[str | None, typer.Option(help="For reextract: further instructions to the model.")] = None,
    rate: Annotated[float, typer.Option(help="Jobs a second.")] = RATE,
    concurrency: Annotated[int, typer.Option(help="Unfinished at once.")] = CONCURRENCY,
    max_failures: Annotated[float, typer.Option(help="Pause where a larger share fails again.")] = MAX_FAILURE_SHARE,
    shadow: Annotated[
        int, typer.Option(min=0, help="Run so many extractions without writing, and show the facts.")
    ] = 0,
) -> None:
    """Freeze what fits now into a plan, and say what it would do. Nothing comes back before `start`."""
    asked = wanted(
        ids=ids,
        kinds=kind,
        reasons=reasons,
        fingerprint=fingerprint,
        error=error,
        namespace=namespace,
        user=user,
        since=since,
        until=until,
    )
    named = {"model": model, "instructions": prompt}
    new = NewPlan(
        name=name,
        reason=reason,
        actor=actor(),
        mode=mode,
        overrides={**_overrides(override or ()), **{key: value for key, value in named.items() if value}},
        rate=rate,
        concurrency=concurrency,
        max_failure_share=max_failures,
    )

    async def work(memory: Memory) -> tuple[ReplayPlan, Estimate]:
        made = await memory.replays.plan(asked, new)
        if shadow:
            await memory.replays.shadow(made.id, sample=shadow)
        return made, await memory.replays.estimate(made.id)

    made, estimate = console.with_memory(work)
    out.print(f"Plan [bold]{made.id}[/] holds {estimate.items} jobs, frozen now.")
    _foretell(estimate)
    if shadow:
        out.print(f"A sample runs without writing: `aftermind replay shadows {made.id}` shows what it would change.")
    out.print(f"Start it: aftermind replay start {made.id}")


@replay.command()
def start(
    plan_id: Plan,
    *,
    rate: Annotated[float | None, typer.Option(help="Jobs a second, in place of the plan's.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done, paused or aborted.")] = False,
) -> None:
    """Let a draft or a paused plan run. Workers of the queue memory.replay do it."""

    async def work(memory: Memory) -> ReplayPlan:
        started = await memory.replays.start(PlanId(plan_id), rate=rate)
        while wait and started.state is PlanState.RUNNING:
            await asyncio.sleep(PROGRESS_SECONDS)
            started = await memory.replays.found(started.id) or started
            err.print(_line(started), end="\r")
        return started

    _show(console.with_memory(work))


@replay.command()
def status(plan_id: Plan) -> None:
    """Show how far a plan is."""
    found = console.with_memory(lambda memory: memory.replays.found(PlanId(plan_id)))
    if found is None:
        raise errors.InvalidFilter("plan", plan_id, "no replay plan has this id; `aftermind replay ls` shows them.")
    _show(found)


@replay.command()
def estimate(plan_id: Plan) -> None:
    """Say again what is left of a plan: counts, times, cost, conflicts."""
    _foretell(console.with_memory(lambda memory: memory.replays.estimate(PlanId(plan_id))))


@replay.command()
def shadows(plan_id: Plan) -> None:
    """Show which facts the sample of a plan would change."""

    async def work(memory: Memory) -> list[Shadow]:
        await memory.replays.looked(PlanId(plan_id))
        return await memory.replays.shadows(PlanId(plan_id))

    found = console.with_memory(work)
    out.print(_shadowed(found) if found else "No sample was run; see `aftermind replay plan --shadow`.")


@replay.command()
def pause(plan_id: Plan, *, note: str = "paused by hand") -> None:
    """Put nothing more in until it is started again."""
    _show(console.with_memory(lambda memory: memory.replays.pause(PlanId(plan_id), note=note)))


@replay.command()
def resume(plan_id: Plan) -> None:
    """Go on with a paused plan; the same as `start`."""
    _show(console.with_memory(lambda memory: memory.replays.start(PlanId(plan_id))))


@replay.command()
def abort(plan_id: Plan, *, note: str = "aborted by hand") -> None:
    """Put nothing more in, for good. What waited stays a dead letter."""
    _show(console.with_memory(lambda memory: memory.replays.abort(PlanId(plan_id), note=note)))


@replay.command()
def ls(*, limit: Annotated[int, typer.Option(min=1, help="Most lines.")] = 20) -> None:
    """List plans, the latest first."""
    found = console.with_memory(lambda memory: memory.replays.listed(limit=limit))
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("plan", "name", "state", "by", "because", "jobs"):
        shown.add_column(title, no_wrap=title == "plan")
    for each in found:
        texts = (each.id, each.name, each.state, each.actor, each.reason, _counts(each))
        shown.add_row(*(escape(text) for text in texts))
    out.print(shown if found else "No replay plans.")


def _overrides(told: Sequence[str]) -> dict[str, Json]:
    values: dict[str, Json] = {}
    for each in told:
        key, equals, value = each.partition("=")
        try:
            values[key] = orjson.loads(value)
        except orjson.JSONDecodeError as exc:
            raise errors.InvalidFilter("set", each, "say KEY=JSON, as in --set model='\"gpt-5\"'.") from exc
        if not key or not equals:
            raise errors.InvalidFilter("set", each, "say KEY=JSON.")
    return values


def _show(found: ReplayPlan) -> None:
    out.print(f"[bold]{found.id}[/] {escape(found.name)}, by {escape(found.actor)}: {escape(found.reason)}")
    out.print(_line(found))
    if found.note:
        out.print(escape(found.note))


def _line(found: ReplayPlan) -> str:
    return f"{found.state}: {_counts(found)}"


def _counts(found: ReplayPlan) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(found.counts.items()))


def _foretell(told: Estimate) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in told.by_kind.items())
    out.print(f"jobs         {told.items} ({kinds}) of {told.namespaces} tenants")
    if told.oldest and told.newest:
        out.print(f"died         {console.when(told.oldest)} to {console.when(told.newest)}")
    out.print(f"takes        {told.seconds:,.0f} s at the plan's rate")
    out.print(f"model calls  {told.model_calls:,}, about {told.tokens:,} tokens and ${told.cost_usd:,.2f}")
    out.print(f"conflicts    {told.conflicts} have an unfinished job of the same effect, and join it")
    out.print(f"newer facts  {told.newer_facts} of sessions that were mined again since")
    if told.refused:
        out.print(f"refused      {told.refused} cannot come back: forgotten, or no dead letters any more")


def _shadowed(found: Sequence[Shadow]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("job", "state", "would add", "would supersede"):
        shown.add_column(title, no_wrap=title == "job", overflow="fold")
    for each in found:
        lists = ("\n".join(each.added) or each.error or "", "\n".join(each.superseded))
        shown.add_row(str(each.job_id), each.state, *(escape(text) for text in lists))
    return shown
