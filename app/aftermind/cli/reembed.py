"""`aftermind reembed`: change the embedder of stored vectors while the former one serves."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.api import connections
from aftermind.api.reembed import Difference, Plan, Reembeddings, Status
from aftermind.cli import console
from aftermind.cli.console import Namespace, err, out
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder
from aftermind.settings import Settings

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
@console.with_json
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
) -> Plan:
    """Embed every stored episode with another embedder, in the background. A repeated call continues.

    Workers do it; recall is served by the former vectors until `aftermind reembed cutover`.
    """
    settings = Settings()
    target = _embedder(settings, to, dimension)
    work = _reembeddings(settings)
    plan = console.run(work.plan(target))
    dollars = "price unknown" if plan.cost_usd is None else f"${plan.cost_usd:,.2f}"
    out.print(f"From {escape(str(plan.active))} to [bold]{escape(str(plan.target))}[/]:")
    out.print(f"{plan.episodes:,} episodes, about {plan.tokens:,} tokens, {dollars}.")
    if not dry_run:
        console.run(work.start(target, rate=rate))
        out.print("Workers embed them now. `aftermind reembed status` shows the progress.")
    return plan


@reembed.command()
def status(*, json: console.AsJson = False) -> None:
    """Show the active embedder and the progress of a re-embedding."""
    settings = Settings()
    with err.status("Counting vectors …"):
        found = console.run(_reembeddings(settings).status())
    if json:
        console.print_json(found)
        return
    _print(found)


@reembed.command()
@console.with_json
def compare(
    *,
    questions: Annotated[Path | None, typer.Option(help="A file with one query per line; requires --user.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: several users.")] = None,
    namespace: Namespace = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Without a file: number of the newest messages to use as queries.")
    ] = 20,
) -> Sequence[Difference]:
    """Compare the ten best matches of queries by either embedder: how many are the same, and which differ."""
    settings = Settings()
    asked = [] if questions is None else [line for line in questions.read_text().splitlines() if line.strip()]
    if asked and user is None:
        raise errors.InvalidFilter("questions", str(questions), "set the user with --user.")
    work = _reembeddings(settings).compare(questions=asked, namespace=namespace, user=user, sample=sample)
    with err.status("Comparing both embedders …"):
        found = console.run(work)
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("question", "overlap@10", "only before", "only after"):
        shown.add_column(title, overflow="fold")
    for number, each in enumerate(found, start=1):
        gone, new = ("\n".join(str(id_) for id_ in ids) for ids in (each.gone, each.new))
        shown.add_row(escape(each.question) if asked else str(number), f"{each.overlap:.2f}", gone, new)
    out.print(shown)
    if found:
        mean = sum(each.overlap for each in found) / len(found)
        out.print(f"\nMean overlap@10 of {len(found)} queries: [bold]{mean:.3f}[/].")
    # Messages that served as queries are not shown.
    return found if asked else [replace(each, question="") for each in found]


@reembed.command()
@console.with_json
def cutover(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Cut over even if episodes have no vector of the new embedder.")
    ] = False,
) -> Status:
    """Activate the new embedder. The former vectors are kept for `rollback` until `drop`."""
    settings = Settings()
    with err.status("Building the index, then exchanging the columns …"):
        found = console.run(_reembeddings(settings).cutover(force=force))
    _print(found)
    out.print(RESTART)
    return found


@reembed.command()
@console.with_json
def rollback() -> Status:
    """Reactivate the former embedder after a cutover."""
    settings = Settings()
    with err.status("Exchanging the columns …"):
        found = console.run(_reembeddings(settings).rollback())
    _print(found)
    out.print(RESTART)
    return found


@reembed.command()
@console.with_json
def drop(
    *, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
) -> dict[str, str]:
    """Drop the inactive vectors: the former ones after a cutover, the new ones before it."""
    settings = Settings()
    if not yes:
        typer.confirm("Drop the vectors of the inactive embedder?", abort=True, err=True)
    dropped = console.run(_reembeddings(settings).drop())
    out.print(f"The vectors of {escape(str(dropped))} are dropped.")
    return {"dropped": str(dropped)}


def _embedder(settings: Settings, to: str | None, dimension: int | None) -> Embedder:
    changed = {"embedder": to, "embedding_dimension": dimension}
    chosen = settings.model_copy(update={name: value for name, value in changed.items() if value is not None})
    found = factory.embedder(chosen)
    if found is None:
        raise errors.InvalidSettings("embedder", "off", "set --to hash, openai:MODEL or local:PATH.")
    return found


def _reembeddings(settings: Settings) -> Reembeddings:
    return Reembeddings(connections.resolve(settings), settings)


def _print(found: Status) -> None:
    stored, counts, steps = found.reembedding.stored, found.counts, found.steps
    out.print(f"[bold]{escape(str(stored.active))}[/] is active: {_share(counts.active, counts.episodes)}.")
    if stored.standby is None:
        out.print("No re-embedding exists.")
    else:
        kept = "kept for a rollback" if found.reembedding.is_cut_over else "being filled"
        share = _share(counts.standby, counts.episodes)
        out.print(f"[bold]{escape(str(stored.standby))}[/] is on standby, {kept}: {share}.")
    if steps.waiting or steps.running or steps.dead:
        out.print(f"Jobs: {steps.waiting:,} waiting, {steps.running:,} running, {steps.dead:,} dead.")
    if steps.why:
        out.print(escape(steps.why))


def _share(count: int, total: int) -> str:
    return f"{count:,} of {total:,} episodes ({count / total:.1%})" if total else "no episodes yet"
