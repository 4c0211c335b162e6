"""`aftermind replay`: plans that bring dead letters back."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import job_ids, jobs, terminal
from aftermind.cli.dead_letters import (
    ErrorText,
    Fingerprint,
    Kinds,
    OfNamespace,
    OfUser,
    Reasons,
    Since,
    Until,
    actor,
    make_filter,
)
from aftermind.cli.terminal import err, out
from aftermind.ledger.replay_protocol import CONCURRENCY, MAX_FAILURE_SHARE, RATE, NewPlan
from aftermind.memory import Memory
from aftermind.types import JobState
from aftermind.types.replay import (
    DryRunResult,
    Estimate,
    ItemState,
    JobFilter,
    PlanId,
    PlanState,
    ReplayMode,
    ReplayPlan,
)

PROGRESS_SECONDS = 0.5
LINE_SECONDS = 5.0  # between lines of progress where no terminal shows them
STILL_SECONDS = 20.0  # without progress and without a reason, before a hint that no worker may be running
MAX_EXPLAINED_JOBS = 100
LABELS = {ItemState.FAILED: "failed again", ItemState.DISCARDED: "discarded since it was planned"}

PlanArgument = Annotated[str, typer.Argument(help="The plan's id, as in `create` and `list`.", show_default=False)]

replay = typer.Typer(name="replay", help="Replay dead letters with a plan.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(replay)


@replay.command()
@terminal.with_json
def create(
    *,
    reason: Annotated[
        str, typer.Option("--because", help="The reason; it is stored with the plan.", show_default=False)
    ],
    name: Annotated[str, typer.Option(help="Name of the plan.")] = "replay",
    ids: job_ids.Ids = None,
    kind: Kinds = None,
    reasons: Reasons = None,
    fingerprint: Fingerprint = None,
    error: ErrorText = None,
    namespace: OfNamespace = None,
    user: OfUser = None,
    since: Since = None,
    until: Until = None,
    mode: Annotated[
        ReplayMode, typer.Option(help="Retry unchanged, retry edited, or repeat fact extraction.")
    ] = ReplayMode.RETRY,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=JSON that replaces a field of the payload. May be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="For reextract: another model.")] = None,
    prompt: Annotated[str | None, typer.Option(help="For reextract: additional instructions for the model.")] = None,
    rate: Annotated[float, typer.Option(help="Jobs per second.")] = RATE,
    concurrency: Annotated[int, typer.Option(help="Maximum number of unfinished jobs.")] = CONCURRENCY,
    max_failures: Annotated[
        float, typer.Option(help="Pause if a larger share fails again, after 10 jobs or more.")
    ] = MAX_FAILURE_SHARE,
    sample: Annotated[
        int, typer.Option(min=0, help="Run this number of extractions without writing, and show the facts.")
    ] = 0,
) -> dict[str, ReplayPlan | Estimate]:
    """Create a plan from the matching dead letters and show an estimate. Nothing is replayed before `start`.

    A plan without extractions has no sample: with --sample it is created, and the exit code is 1.
    """
    asked = make_filter(
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
        overrides=terminal.parse_pairs("set", override or ()) | {key: value for key, value in named.items() if value},
        rate=rate,
        concurrency=concurrency,
        max_failure_share=max_failures,
    )

    async def work(memory: Memory) -> tuple[ReplayPlan, Estimate, str]:
        made, refused = await memory.replays.create(asked, new), ""
        try:
            if sample:
                await memory.replays.dry_run(made.id, sample=sample)
        except errors.NoSample as exc:  # the plan is there, and is of use without one
            refused = str(exc)
        return made, await memory.replays.estimate(made.id), refused

    made, estimate, refused = terminal.with_memory(work)
    out.print(f"Plan [bold]{made.id}[/] has {estimate.items} jobs.")
    _print_estimate(estimate)
    if refused:
        terminal.warn(refused)
    elif sample:
        out.print(f"A sample runs without writing: `aftermind replay dry-run {made.id}` shows what it would change.")
    out.print(f"Start it: aftermind replay start {made.id}")
    found: dict[str, ReplayPlan | Estimate] = {"plan": made, "estimate": estimate}
    if refused:
        raise terminal.ExitWithResult(1, found)
    return found


@replay.command()
@terminal.with_json
def start(
    plan_id: PlanArgument,
    *,
    rate: Annotated[float | None, typer.Option(help="Jobs per second, instead of the plan's rate.")] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until it is completed, paused or aborted. Progress is printed to stderr."),
    ] = False,
) -> ReplayPlan:
    """Start or resume a plan. Workers of the queue memory.replay run it.

    With --wait the exit code is 1 if the plan was paused or aborted, or if jobs failed again. While the provider of a
    model is paused, its jobs wait, and so does this command.
    """

    async def work(memory: Memory) -> ReplayPlan:
        started = await memory.replays.start(PlanId(plan_id), rate=rate)
        return await follow(memory, started) if wait else started

    found = _show(terminal.with_memory(work))
    if wait and not found.is_successful:
        raise terminal.ExitWithResult(1, found)
    return found


@replay.command()
@terminal.with_json
def get(plan_id: PlanArgument) -> ReplayPlan:
    """Show the progress of a plan, and why its jobs wait."""

    async def work(memory: Memory) -> tuple[ReplayPlan, str]:
        found = await _get(memory, plan_id)
        return found, await _why_waiting(memory, found)

    found, why = terminal.with_memory(work)
    _show(found)
    if why:
        out.print(f"waiting: {escape(why)}")
    return found


async def follow(memory: Memory, plan: ReplayPlan) -> ReplayPlan:
    """Wait until a plan runs no more. A terminal shows its progress, else a line is printed for each change."""
    shown, shown_at = ("", False), -LINE_SECONDS
    seen, moved_at = "", time.monotonic()
    with err.status(progress_line(plan)) as progress:  # shown on a terminal only
        while plan.state is PlanState.RUNNING:
            now = time.monotonic()
            line = progress_line(plan)
            if line != seen or JobState.RUNNING in plan.successors:
                seen, moved_at = line, now
            why = await _why_waiting(memory, plan)
            if not why and now - moved_at > STILL_SECONDS:
                why = "no progress. A worker of memory.replay is needed: `aftermind worker --queues memory.replay`"
            change = (line, bool(why))  # without the seconds of a pause, which change at each poll
            progress.update(escape(f"{line}\n  waiting: {why}" if why else line))
            if not err.is_terminal and change != shown and now - shown_at >= LINE_SECONDS:
                shown, shown_at = change, now
                err.print(escape(f"{line}; waiting: {why}" if why else line))
            await asyncio.sleep(PROGRESS_SECONDS)
            plan = await memory.replays.get(plan.id) or plan
    return plan


async def _why_waiting(memory: Memory, plan: ReplayPlan) -> str:
    """What most of the plan's waiting jobs wait for: a pause, a budget, or the next attempt after an error."""
    items = await memory.replays.list_items(plan.id, states=(ItemState.REPLAYED,), limit=MAX_EXPLAINED_JOBS)
    ids = tuple(each.new_job_id for each in items if each.new_job_id is not None)
    if not ids:
        return ""
    wanted = JobFilter(ids=ids, states=(JobState.QUEUED, JobState.RETRYING))
    found = await memory.job_admin.list(wanted, limit=len(ids))
    reasons = Counter((await jobs.hold_reasons(memory, found)).values())
    if not reasons:
        failed = (each for each in found if each.state is JobState.RETRYING)
        reasons = Counter(f"the next attempt, after: {each.detail}" for each in failed)
    return next((reason for reason, _ in reasons.most_common(1)), "")


async def _get(memory: Memory, plan_id: str) -> ReplayPlan:
    if (found := await memory.replays.get(PlanId(plan_id))) is None:
        why = "no replay plan with this id exists; `aftermind replay list` lists them."
        raise errors.InvalidFilter("plan", plan_id, why)
    return found


@replay.command()
@terminal.with_json
def estimate(plan_id: PlanArgument) -> Estimate:
    """Estimate the remaining jobs of a plan: counts, duration, cost, conflicts."""
    found = terminal.with_memory(lambda memory: memory.replays.estimate(PlanId(plan_id)))
    _print_estimate(found)
    return found


@replay.command("dry-run")
@terminal.with_json
def dry_run(plan_id: PlanArgument, *, wide: terminal.Wide = False) -> list[DryRunResult]:
    """Show the facts that the sample of a plan would change. Exit code 2 if the plan has none."""

    async def work(memory: Memory) -> list[DryRunResult]:
        plan = await _get(memory, plan_id)
        await memory.replays.record_access(plan.id)
        return await memory.replays.dry_run_results(plan.id)

    found = terminal.with_memory(work)
    terminal.show(_shadowed(found), wide=wide)
    return found


@replay.command()
@terminal.with_json
def pause(plan_id: PlanArgument, *, note: str = "paused by hand") -> ReplayPlan:
    """Pause a plan until it is started again."""
    return _show(terminal.with_memory(lambda memory: memory.replays.pause(PlanId(plan_id), note=note)))


@replay.command()
@terminal.with_json
def resume(plan_id: PlanArgument) -> ReplayPlan:
    """Resume a paused plan; the same as `start`."""
    return _show(terminal.with_memory(lambda memory: memory.replays.start(PlanId(plan_id))))


@replay.command()
@terminal.with_json
def abort(plan_id: PlanArgument, *, note: str = "aborted by hand") -> ReplayPlan:
    """Abort a plan permanently. The remaining jobs stay dead letters."""
    return _show(terminal.with_memory(lambda memory: memory.replays.abort(PlanId(plan_id), note=note)))


@replay.command("list")
@terminal.with_json
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 20,
    wide: terminal.Wide = False,
) -> list[ReplayPlan]:
    """List plans, the latest first."""
    found = terminal.with_memory(lambda memory: memory.replays.list(limit=limit))
    shown = terminal.make_table("plan", "name", "state", "by", "jobs", "reason", flexible="reason")
    for each in found:
        texts = (each.id, each.name, each.state, each.actor, _counts(each))
        shown.add_row(*(escape(text) for text in texts), terminal.one_line(each.reason))
    terminal.show(shown if found else "No replay plans.", wide=wide)
    terminal.note_limit(found, limit)
    return found


def _show(found: ReplayPlan) -> ReplayPlan:
    out.print(f"[bold]{found.id}[/] {escape(found.name)}, by {escape(found.actor)}: {escape(found.reason)}")
    out.print(progress_line(found))
    if found.note:
        out.print(escape(found.note))
    return found


def progress_line(found: ReplayPlan) -> str:
    """State and counts of a plan."""
    return f"{found.state}: {_counts(found)}"


def _counts(found: ReplayPlan) -> str:
    texts = {state: f"{found.counts[state]} {LABELS.get(state, state)}" for state in ItemState if state in found.counts}
    if found.successors:
        successors = ", ".join(f"{count} {state}" for state, count in sorted(found.successors.items()))
        texts[ItemState.REPLAYED] += f" ({successors})"
    return ", ".join(texts.values())


def _print_estimate(estimate: Estimate) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in estimate.by_kind.items())
    out.print(f"jobs         {estimate.items} ({kinds}) of {terminal.count_of(estimate.namespaces, 'tenant')}")
    if estimate.oldest and estimate.newest:
        out.print(f"dead since   {terminal.when(estimate.oldest)} to {terminal.when(estimate.newest)}")
    out.print(f"duration     {estimate.seconds:,.0f} s at the plan's rate")
    out.print(f"model calls  {estimate.describe_calls()}")
    out.print(f"conflicts    {estimate.conflicts} have an unfinished job of the same effect and are merged into it")
    out.print(f"newer facts  {estimate.newer_facts} are of sessions with later extractions")
    if estimate.refused:
        out.print(
            f"refused      {estimate.refused} cannot be replayed: forgotten, discarded since, or not dead any more"
        )


def _shadowed(found: Sequence[DryRunResult]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("job", "state", "would add", "would supersede"):
        shown.add_column(title, no_wrap=title == "job", overflow="fold")
    for each in found:
        lists = ("\n".join(each.added) or each.error or "", "\n".join(each.superseded))
        shown.add_row(str(each.job_id), each.state, *(escape(text) for text in lists))
    return shown
