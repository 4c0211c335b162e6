"""`aftermind eval`: recall measured on questions with labelled evidence, and two settings compared."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from aftermind import errors
from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment
from aftermind.cli.terminal import Namespace, User, out
from aftermind.evaluation import datasets, questions_from_facts
from aftermind.evaluation.datasets import GoldConversation
from aftermind.evaluation.fit_ranking import Fitted, fit_namespace
from aftermind.evaluation.run import Outcome, Variant, evaluate, sampled
from aftermind.evaluation.score_comparison import ALL, Summary, summarise
from aftermind.llm import factory
from aftermind.memory import Memory
from aftermind.nearest_name import nearest_name
from aftermind.recall import RecallOptions
from aftermind.settings import Settings
from aftermind.types.audit import Action

# A late first recall would count as a bad one.
GENEROUS_BUDGETS = dict.fromkeys(
    (
        "recall_budget_seconds",
        "query_embedding_budget_seconds",
        "redis_timeout_seconds",
        "remember_budget_seconds",  # it also bounds the connection to Redis
        "db_timeout_seconds",
        "db_connect_timeout_seconds",
    ),
    60.0,
)
AT_ONCE = {"extract_quiet_seconds": 0.0}  # a loaded conversation is complete
BUDGETS = (500, 1_000)
MAX_CATEGORIES = 16  # in a table; the JSON file has all of them
MAX_LISTED = 10  # questions; the JSON file has all of them
CATEGORY_WIDTH = 12  # longer names are wrapped: with the default budgets, the table then fits 80 columns

Given = Mapping[str, Any]  # Any: values of recall options and of settings, which check them

_SECOND = re.compile(r"^[^,{]+,\s*([a-z_]+)=")  # of "a=1,b=2"
_SET = "Recall option or setting, as NAME=VALUE; may be repeated."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluation)


def evaluation(
    file: Annotated[
        Path | None,
        typer.Argument(help="LoCoMo or LongMemEval JSON, or your own questions (JSON lines).", show_default=False),
    ] = None,
    *,
    user: User = None,
    namespace: Namespace = None,
    from_facts: Annotated[
        bool, typer.Option("--from-facts", help="Draw questions from stored facts and their sources.")
    ] = False,
    all_users: Annotated[bool, typer.Option("--all-users", help="With --from-facts: every user.")] = False,
    budget: Annotated[
        list[int] | None, typer.Option(min=1, help="Token budget of a block; may be repeated. Default: 500 and 1000.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=_SET, show_default=False)] = None,
    against: Annotated[list[str] | None, typer.Option(help=f"Compare with these. {_SET}", show_default=False)] = None,
    extract: Annotated[
        bool, typer.Option("--extract", help="Also extract facts from loaded conversations. A model may cost money.")
    ] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="Use only this number of questions, at random.")] = None,
    fit: Annotated[
        bool,
        typer.Option("--fit", help="Fit the ranking of the namespace to the questions, and use it if it is better."),
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Delete the fitted ranking of the namespace, and exit.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure recall on questions with labelled evidence. Exit code 1 if no evidence is stored.

    Conversations of LoCoMo and LongMemEval are loaded into a memory inside this process; your own questions query the
    configured memory. --against compares two configurations on the same questions.
    """
    if reset:
        deleted = terminal.with_memory(lambda memory: memory.ranking.delete(namespace=namespace))
        out.print("Fitted ranking deleted." if deleted else "The namespace has no fitted ranking.")
        return
    if (file is None) == (not from_facts):
        raise errors.InvalidGoldSet("file", file, "name a file, or draw questions with --from-facts.")
    if any(each.partition("=")[0].strip() == "token_budget" for each in (*(set_ or ()), *(against or ()))):
        raise errors.InvalidGoldSet(
            "set", "token_budget", "in_block is measured at the budgets of --budget: name these."
        )
    chosen = [parse_assignments(each or ()) for each in ((set_, against) if against else (set_,))]
    if fit and (against or sample or budget or extract):
        why = "it takes all questions, and compares by itself. Leave out --against, --sample, --budget and --extract."
        raise errors.InvalidGoldSet("fit", fit, why)
    variants = [_variant(each) for each in chosen]
    if len(variants) > 1 and _settings_of(chosen[0]) == _settings_of(chosen[1]):
        variants[1] = Variant(settings=variants[0].settings, options=variants[1].options)

    if fit:
        fitted = terminal.run(_fit(file, variants[0].settings, user, namespace, all_users=all_users))
        out.print(fit_table(fitted))
        _write(json_file, asdict(fitted))
        return

    async def work() -> Summary:
        for variant in variants:
            await _try_embedder(variant.settings)
        conversations = await _gold(file, variants[0].settings, user=user, namespace=namespace, all_users=all_users)
        asked = sampled(conversations, sample) if sample else conversations
        total = len(variants) * sum(len(each.questions) for each in asked)
        columns = (TextColumn("{task.completed:,} of {task.total:,} questions"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=terminal.err, transient=True) as bars:
            task = bars.add_task("", total=total)
            outcomes = await evaluate(
                asked,
                variants,
                open_memory=_open_memory,
                budgets=budget or BUDGETS,
                namespace=namespace,
                extract=extract,
                advance=lambda: bars.advance(task),
            )
        return summarise(outcomes)

    summary = terminal.run(work())
    names = [_name(each) for each in chosen]
    show(summary, names)
    _write(json_file, {**summary.to_json(), "names": names})
    if not summary.means:
        raise typer.Exit(1)


def _write(path: Path | None, found: Mapping[str, Any]) -> None:  # Any: JSON
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n")


def show(summary: Summary, names: Sequence[str]) -> None:
    """Print a table for each variant, and one of their differences."""
    for name, means in zip(names, summary.means, strict=False):
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="dim")
        measures = list(means[ALL])
        largest = sorted(means, key=lambda category: -summary.counts[category])[:MAX_CATEGORIES]
        longest = max(map(len, largest))
        table.add_column("category", overflow="fold", min_width=min(longest, CATEGORY_WIDTH))
        for column in ("count", *measures):
            table.add_column(column.replace("_", "_\n").replace("@", "\n@"), justify="right", no_wrap=True)
        for category, found in means.items():
            if category not in largest:
                continue
            cells = [f"{found[measure]:.3f}" for measure in measures]
            table.add_row(category, str(summary.counts[category]), *cells)
        needed = out.measure(table, options=out.options.update(width=terminal.WIDE_COLUMNS)).minimum
        width = max(out.width, needed - max(0, longest - CATEGORY_WIDTH))  # too narrow a console would drop columns
        terminal.make_console(width=width).print(table)
        if len(means) > len(largest):
            out.print(f"  … and {len(means) - len(largest)} smaller categories; --json FILE lists all", highlight=False)
    if summary.differences:
        out.print(_difference_table(summary, names))
    if not summary.means:
        terminal.warn("No evidence of any question is stored. Check --user and --namespace.")
        return
    of_first = f" of {names[0]}" if len(names) > 1 else ""
    _list_questions(f"Not all of the evidence is in the largest block{of_first}", summary.missed)
    _list_questions("Left out, because the evidence is not stored", summary.not_stored)


def _list_questions(title: str, outcomes: Sequence[Outcome]) -> None:
    if outcomes:
        out.print(f"\n{title}: {len(outcomes)}", highlight=False)
    for each in outcomes[:MAX_LISTED]:
        user = f"{each.user_id}: " if each.user_id else ""
        out.print(terminal.one_line(f"- {user}{each.question.text}"))
    if len(outcomes) > MAX_LISTED:
        out.print(f"  … and {len(outcomes) - MAX_LISTED} more; --json FILE lists all", highlight=False)


def fit_table(found: Fitted) -> Table:
    """The gain of each fitted model on the questions that were held out, and which were adopted."""
    title = f"Fitted to {found.questions - found.held_out} questions, compared on {found.held_out} others"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in ("model", "gain of ndcg@10", "95 % interval", ""):
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    for use, gain in found.gains.items():
        verdict = "adopted" if use in found.adopted else "not adopted"
        table.add_row(use, f"{gain.mean:+.3f}", f"{gain.low:+.3f} to {gain.high:+.3f}", verdict)
    return table


def _difference_table(summary: Summary, names: Sequence[str]) -> Table:
    title = f"{names[1]}, compared with {names[0]}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in ("measure", "difference", "95 % interval", ""):
        table.add_column(column, justify="left" if column in ("measure", "") else "right")
    for measure, each in summary.differences.items():
        verdict = ("better" if each.mean > 0 else "worse") if each.is_certain else ""
        table.add_row(measure, f"{each.mean:+.3f}", f"{each.low:+.3f} to {each.high:+.3f}", verdict)
    return table


def parse_assignments(given: Sequence[str]) -> Given:
    """`NAME=VALUE` as a recall option or a setting. Raises `InvalidSettings` for a name that is neither."""
    found: dict[str, Any] = {}  # Any: as above
    names = [*RecallOptions.__annotations__, *Settings.model_fields]
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or name not in names:
            near = nearest_name(name, names)
            why = "write NAME=VALUE with a recall option or a setting as name."
            raise errors.InvalidSettings(name, text, f"{why} Did you mean {near}?" if near else why)
        second = _SECOND.search(text)
        if second is not None and second[1] in names:
            why = "name each option or setting alone: --set NAME=VALUE --set NAME=VALUE."
            raise errors.InvalidSettings(name, text, why)
        if name in ("since", "until", "known_at"):
            found[name] = moment(name, text)
        else:
            found[name] = text.split(",") if name in ("load", "roles") else _value(text)
    return found


def _value(text: str) -> Any:  # Any: JSON, else text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settings_of(given: Given) -> Given:
    return {name: value for name, value in given.items() if name not in RecallOptions.__annotations__}


def _variant(given: Given) -> Variant:
    options = {name: value for name, value in given.items() if name in RecallOptions.__annotations__}
    settings = Settings(**{**GENEROUS_BUDGETS, **AT_ONCE, **_settings_of(given)})
    return Variant(settings=settings, options=options)  # type: ignore[arg-type]  # recall checks them


def _name(given: Given) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items()) or "as configured"


async def _try_embedder(settings: Settings) -> None:
    """Raise what an embedder is missing; the jobs of an evaluation would be repeated for it without end."""
    if (embedder := factory.embedder(settings)) is not None:
        await embedder.embed(["evaluation"])


def _open_memory(settings: Settings, in_process: bool) -> Memory:
    return Memory("inmemory", settings=settings) if in_process else Memory(settings=settings)


async def _fit(
    file: Path | None, settings: Settings, user: str | None, namespace: str | None, *, all_users: bool
) -> Fitted:
    conversations = await _gold(file, settings, user=user, namespace=namespace, all_users=all_users)
    if any(each.sessions for each in conversations):
        why = "the ranking is fitted to stored memories: use your own questions, or --from-facts."
        raise errors.InvalidGoldSet("file", file, why)
    memory = Memory(settings=settings)
    try:
        return await fit_namespace(memory, conversations, namespace=namespace)
    finally:
        await memory.close()


async def _gold(
    file: Path | None, settings: Settings, *, user: str | None, namespace: str | None, all_users: bool
) -> list[GoldConversation]:
    conversations = [] if file is None else datasets.read(file, user=user)
    if any(each.sessions for each in conversations):
        return conversations
    memory = Memory(settings=settings)
    try:
        if file is None:
            users = await questions_from_facts.every_user(memory, namespace=namespace) if all_users else [user]
            conversations = await questions_from_facts.draw(memory, users, namespace=namespace)
        for each in conversations:
            await terminal.record_read(memory, Action.READ, user=each.user_id, namespace=namespace, by="eval")
    finally:
        await memory.close()
    if not conversations:
        raise errors.InvalidGoldSet("facts", user, "no stored fact has a source.")
    return conversations
