"""`aftermind reembed`: change the embedder of stored vectors while the former one serves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.api.reembed import Reembeddings
from aftermind.api.reembed_postgres import open_reembeddings
from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, err, out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types.reembedding import RecallDifference, ReembeddingPlan, ReembeddingStatus

T = TypeVar("T")
POLL_SECONDS = 0.2

RESTART = (
    "Agents and workers follow without a restart while both embedders are kept. Set AFTERMIND_EMBEDDER to the embedder "
    "that serves and restart them before `aftermind reembed drop`."
)

reembed = typer.Typer(
    name="reembed", help="Change the embedder of stored vectors while the former one serves.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(reembed)


@reembed.command()
@terminal.with_json
def start(
    *,
    to: Annotated[
        str | None, typer.Option(help="The embedder: hash, openai:MODEL or local:PATH. Default: AFTERMIND_EMBEDDER.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(min=1, max=4000, help="Vector length. Default: AFTERMIND_EMBEDDING_DIMENSION.")
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0, help="Approximate episodes per second, all workers together. 0: unlimited.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and its cost.")] = False,
) -> ReembeddingPlan:
    """Embed every stored episode with another embedder, in the background. A repeated call continues.

    Workers do it, or this command where a store has none; recall is served by the former vectors until `aftermind
    reembed cutover`.
    """
    plan = _run(lambda work: work.plan(to, dimension=dimension))
    out.print(f"From {escape(str(plan.active))} to [bold]{escape(str(plan.target))}[/]:")
    where = address_resolution.resolve(Settings())
    if plan.episodes:
        episodes = terminal.count_of(plan.episodes, "episode")
        out.print(f"{episodes}, about {plan.tokens:,} tokens, {terminal.dollars(plan.cost_usd)}.")
    else:
        out.print(f"Nothing to embed: {terminal.no_episodes(where)}.")
    if not dry_run and where.is_in_process:
        found = _embed_here(to, dimension=dimension, rate=rate)
        lacking = found.counts.episodes - found.counts.standby
        if found.steps.dead and lacking:
            terminal.complain(f"{terminal.count_of(lacking, 'episode')} not embedded: {found.steps.why}")
            raise terminal.ExitWithResult(1, plan)
        out.print("They are embedded.")
    elif not dry_run:
        _run(lambda work: work.start(to, dimension=dimension, rate=rate))
        out.print("Workers embed them now. `aftermind reembed status` shows the progress.")
    return plan


@reembed.command()
@terminal.with_json
def status() -> ReembeddingStatus:
    """Show the active embedder and the progress of a re-embedding."""
    with err.status("Counting vectors …"):
        found = _run(lambda work: work.status())
    _print(found)
    return found


@reembed.command()
@terminal.with_json
def compare(
    *,
    questions: Annotated[Path | None, typer.Option(help="A file with one query per line; requires --user.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: several users.")] = None,
    namespace: Namespace = None,
    sample: Annotated[
        int,
        typer.Option(
            min=1, help="Without a file: how many messages are queries: the newest of each user, or of --user."
        ),
    ] = 20,
) -> Sequence[RecallDifference]:
    """Compare the ten best matches of queries by either embedder: how many are the same, and which differ.

    The table has the ends of their ids, `--json` the whole ids.
    """
    asked = [] if questions is None else [line for line in questions.read_text().splitlines() if line.strip()]
    if asked and user is None:
        raise errors.InvalidFilter("questions", str(questions), "set the user with --user.")
    with err.status("Comparing both embedders …"):
        found = _run(lambda work: work.compare(questions=asked, namespace=namespace, user_id=user, sample=sample))
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("question", "overlap@10", "only before", "only after"):
        shown.add_column(title, overflow="fold")
    for number, each in enumerate(found, start=1):
        gone, new = (" ".join(map(terminal.short_id, ids)) for ids in (each.gone, each.new))
        shown.add_row(escape(each.question) if asked else str(number), f"{each.overlap:.2f}", gone, new)
    out.print(shown)
    if found:
        mean = sum(each.overlap for each in found) / len(found)
        out.print(f"\nMean overlap@10 of {len(found)} queries: [bold]{mean:.3f}[/].")
    else:
        out.print(f"No queries: {terminal.no_episodes(address_resolution.resolve(Settings()))}.")
    # Messages that served as queries are not shown.
    return found if asked else [replace(each, question="") for each in found]


@reembed.command()
@terminal.with_json
def cutover(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Cut over even if episodes have no vector of the new embedder.")
    ] = False,
) -> ReembeddingStatus:
    """Activate the new embedder. The former vectors are kept for `rollback` until `drop`."""
    with err.status("Building the index, then exchanging the columns …"):
        found = _run(lambda work: work.cutover(force=force))
    _print(found)
    out.print(RESTART)
    return found


@reembed.command()
@terminal.with_json
def rollback() -> ReembeddingStatus:
    """Reactivate the former embedder after a cutover."""
    with err.status("Exchanging the columns …"):
        found = _run(lambda work: work.rollback())
    _print(found)
    out.print(RESTART)
    return found


@reembed.command()
@terminal.with_json
def drop(
    *, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
) -> dict[str, str]:
    """Drop the inactive vectors: the former ones after a cutover, the new ones before it."""
    if not yes:
        typer.confirm("Drop the vectors of the inactive embedder?", abort=True, err=True)
    dropped = _run(lambda work: work.drop())
    out.print(f"The vectors of {escape(str(dropped))} are dropped.")
    return {"dropped": str(dropped)}


def _run(work: Callable[[Reembeddings], Awaitable[T]]) -> T:
    """Run `work` on the store that the settings name."""
    settings = Settings()
    where = address_resolution.resolve(settings)

    async def in_database() -> T:
        return await work(open_reembeddings(where, settings))

    async def in_process(memory: Memory) -> T:
        return await work(memory.reembedding)

    return terminal.with_memory(in_process) if where.is_in_process else terminal.run(in_database())


def _embed_here(to: str | None, *, dimension: int | None, rate: float) -> ReembeddingStatus:
    """Start it and run its jobs; what a stopped command leaves is continued when the store is opened again."""

    async def work(memory: Memory) -> ReembeddingStatus:
        found = await memory.reembedding.start(to, dimension=dimension, rate=rate)
        while found.steps.waiting or found.steps.running:
            shown.update(f"Embedding … {escape(found.steps.why or '')}")
            await asyncio.sleep(POLL_SECONDS)
            found = await memory.reembedding.status()
        return found

    with err.status("Embedding …") as shown:
        return terminal.with_memory(work)


def _print(found: ReembeddingStatus) -> None:
    stored, counts, steps = found.reembedding.stored, found.counts, found.steps
    out.print(f"[bold]{escape(str(stored.active))}[/] is active: {_share(counts.active, counts.episodes)}.")
    is_complete = counts.standby >= counts.episodes
    if stored.standby is None:
        out.print("No re-embedding exists.")
    else:
        filled = "complete" if is_complete else "being filled"
        kept = "kept for a rollback" if found.reembedding.is_cut_over else filled
        share = _share(counts.standby, counts.episodes)
        out.print(f"[bold]{escape(str(stored.standby))}[/] is on standby, {kept}: {share}.")
    if steps.waiting or steps.running or steps.dead:
        out.print(f"Jobs: {steps.waiting:,} waiting, {steps.running:,} running, {steps.dead:,} dead.")
    if steps.why:
        out.print(escape(steps.why))
    if stored.standby is not None and not found.reembedding.is_cut_over and is_complete:
        out.print("Next: [bold]aftermind reembed compare[/], then [bold]aftermind reembed cutover[/].")


def _share(count: int, total: int) -> str:
    if not total:
        return terminal.no_episodes(address_resolution.resolve(Settings()))
    return f"{count:,} of {total:,} episodes ({count / total:.1%})"
