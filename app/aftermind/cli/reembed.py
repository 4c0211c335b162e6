"""`aftermind reembed`: change the embedder of stored vectors while the former one serves."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import Namespace, err, out
from aftermind.faces import addresses
from aftermind.faces.reembedding import Reembeddings, Status
from aftermind.llm import resolver
from aftermind.llm.base import Embedder
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
def start(
    *,
    to: Annotated[
        str | None, typer.Option(help="The embedder: hash, openai:MODEL or local:PATH. Default: AFTERMIND_EMBEDDER.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(min=1, max=4000, help="Vector length. Default: AFTERMIND_EMBEDDING_DIMENSION.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Episodes a second, about, of all workers. 0: unlimited.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its cost, and change nothing.")] = False,
) -> None:
    """Embed every stored episode by another embedder, in the background. Run again, it goes on.

    Workers do it; recall is served by the former vectors until `aftermind reembed cutover`.
    """
    settings = console.settings()
    target = _embedder(settings, to, dimension)
    work = _reembeddings(settings)
    plan = console.run(work.plan(target))
    dollars = "its price is not known" if plan.cost_usd is None else f"${plan.cost_usd:,.2f}"
    out.print(f"From {escape(str(plan.active))} to [bold]{escape(str(plan.target))}[/]:")
    out.print(f"{plan.episodes:,} episodes, about {plan.tokens:,} tokens, {dollars}.")
    if not dry_run:
        console.run(work.start(target, rate=rate))
        out.print("Workers embed them now. `aftermind reembed status` shows the progress.")


@reembed.command()
def status() -> None:
    """Show the active embedder, and the progress of a re-embedding."""
    settings = console.settings()
    with err.status("Counting vectors …"):
        found = console.run(_reembeddings(settings).status())
    _print(found)


@reembed.command()
def compare(
    *,
    questions: Annotated[Path | None, typer.Option(help="A file with a question a line; name the user too.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Of this user. Default: of several users.")] = None,
    namespace: Namespace = None,
    sample: Annotated[int, typer.Option(min=1, help="Without a file: so many of the newest messages are asked.")] = 20,
) -> None:
    """Compare what questions find by either embedder: of their best ten, how many are the same, and which are not."""
    settings = console.settings()
    asked = [] if questions is None else [line for line in questions.read_text().splitlines() if line.strip()]
    if asked and user is None:
        raise errors.InvalidFilter("questions", str(questions), "name the user who is asked about: --user.")
    work = _reembeddings(settings).compare(questions=asked, namespace=namespace, user=user, sample=sample)
    with err.status("Asking both embedders …"):
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
        out.print(f"\nMean overlap@10 of {len(found)} questions: [bold]{mean:.3f}[/].")


@reembed.command()
def cutover(
    *,
    force: Annotated[bool, typer.Option("--force", help="Though episodes lack a vector of the new embedder.")] = False,
) -> None:
    """Let the new embedder serve. The former vectors are kept for `rollback` until `drop`."""
    settings = console.settings()
    with err.status("Building the index, then exchanging the columns …"):
        found = console.run(_reembeddings(settings).cutover(force=force))
    _print(found)
    out.print(RESTART)


@reembed.command()
def rollback() -> None:
    """Let the former embedder serve again, after a cutover."""
    settings = console.settings()
    with err.status("Exchanging the columns …"):
        found = console.run(_reembeddings(settings).rollback())
    _print(found)
    out.print(RESTART)


@reembed.command()
def drop(*, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Drop the vectors that do not serve: the former ones after a cutover, the new ones before it."""
    settings = console.settings()
    if not yes:
        typer.confirm("Drop the vectors of the embedder that does not serve?", abort=True)
    dropped = console.run(_reembeddings(settings).drop())
    out.print(f"The vectors of {escape(str(dropped))} are dropped.")


def _embedder(settings: Settings, to: str | None, dimension: int | None) -> Embedder:
    changed = {"embedder": to, "embedding_dimension": dimension}
    chosen = settings.model_copy(update={name: value for name, value in changed.items() if value is not None})
    found = resolver.embedder(chosen)
    if found is None:
        raise errors.InvalidSettings("embedder", "off", "name one: --to hash, openai:MODEL or local:PATH.")
    return found


def _reembeddings(settings: Settings) -> Reembeddings:
    return Reembeddings(addresses.resolve(settings), settings)


def _print(found: Status) -> None:
    stored, counts, steps = found.reembedding.stored, found.counts, found.steps
    out.print(f"[bold]{escape(str(stored.active))}[/] serves: {_share(counts.active, counts.episodes)}.")
    if stored.standby is None:
        out.print("No re-embedding is under way.")
    else:
        kept = "kept for a rollback" if found.reembedding.is_cut_over else "being filled"
        share = _share(counts.standby, counts.episodes)
        out.print(f"[bold]{escape(str(stored.standby))}[/] stands by, {kept}: {share}.")
    if steps.waiting or steps.running or steps.dead:
        out.print(f"Jobs: {steps.waiting:,} waiting, {steps.running:,} running, {steps.dead:,} dead.")
    if steps.why:
        out.print(escape(steps.why))


def _share(count: int, total: int) -> str:
    return f"{count:,} of {total:,} episodes ({count / total:.1%})" if total else "no episodes yet"
