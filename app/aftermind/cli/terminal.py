"""Output of the command: one console for results, one for messages."""

import asyncio
import inspect
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar
from uuid import UUID

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aftermind import errors
from aftermind.settings import Settings
from aftermind.types import Json
from aftermind.types.audit import Action
from aftermind.types.job import to_dollars
from aftermind.types.plain_values import to_plain

if TYPE_CHECKING:  # it loads SQLAlchemy and NumPy, which not every command needs
    from aftermind.api.address_resolution import Addresses
    from aftermind.memory import Memory

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U", bound=UUID)
BUDGETS = ("recall_budget_seconds", "query_embedding_budget_seconds")
FAILED = 2  # exit code of a command that could not do what was asked; 1 is "did it, with something to report"

make_console = partial(Console, highlight=False, emoji=False, soft_wrap=True)  # ":question:" is text, not an emoji
out = make_console()
err = make_console(stderr=True)

User = Annotated[str | None, typer.Option("--user", "-u", help="The user. Default: the anonymous user.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. Default: AFTERMIND_NAMESPACE.")]


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Wide = Annotated[bool, typer.Option("--wide", "-w", help="Show all columns, whatever the width of the terminal.")]
WIDE_COLUMNS = 240
MIN_ID_CHARACTERS = 6  # of the end of an id that is given in place of it
MIN_FLEXIBLE_COLUMNS = 40  # a message or an error that is cut to less cannot be read


def print_json(value: object, *, indent: bool = True) -> None:
    """Print dataclasses, or lists of them, as JSON; without `indent` in one line."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    sys.stdout.buffer.write(orjson.dumps(to_plain(value), option=option) + b"\n")
    sys.stdout.buffer.flush()


class ExitWithResult(typer.Exit):
    """End of a command that has a result, and an exit code other than 0."""

    def __init__(self, code: int, result: object) -> None:
        super().__init__(code)
        self.result = result


def with_json(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command `--json`: it prints, instead of its text, what the command returns."""

    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not kwargs.pop("json", False):
            return command(*args, **kwargs)
        out.quiet = True
        try:
            result = command(*args, **kwargs)
        except ExitWithResult as exc:
            print_json(exc.result)
            raise
        finally:
            out.quiet = False
        print_json(result)
        return result

    # Typer reads both: the parameters with their defaults, and their types.
    signature = inspect.signature(command)
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    call.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), option])
    call.__annotations__ = {**command.__annotations__, "json": AsJson}
    return call


def make_table(*titles: str, flexible: str) -> Table:
    """A table for people. A narrow terminal cuts only the column `flexible`, whose cells are `one_line`.

    If the column would be narrower than `MIN_FLEXIBLE_COLUMNS`, its cells follow each row as separate lines.
    """
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        shown.add_column(title, no_wrap=title != flexible, overflow="ellipsis")
    return shown


def show(shown: Table | str, *, wide: bool = False) -> None:
    """Print a table for people, or a text."""
    if isinstance(shown, str):
        out.print(shown)
    else:
        print_table(shown, wide=wide)


def missing_id(value: str, namespace: str | None, family: str) -> errors.InvalidFilter:
    """The error for an id that a namespace does not have, of the commands `family`."""
    where = namespace or Settings().namespace
    why = f"namespace {where!r} has none with it. `aftermind {family} list` lists them; --namespace names another one."
    return errors.InvalidFilter("id", value, why)


def note_limit(found: Sequence[object], limit: int) -> None:
    """Note below a list that it may be incomplete, if it is as long as its limit."""
    if len(found) >= limit:
        out.print(f"[dim]Listed: {limit:,}, the limit. --limit sets another one.[/]")


def dollars(usd: float | None) -> str:
    """A price; "price unknown" for None, "no cost" for 0."""
    return "price unknown" if usd is None else to_dollars(usd) if usd else "no cost"


def one_line(text: str, below: str = "") -> Text:
    """A cell that ends in an ellipsis where its column ends; `below` is a second, dim line."""
    cell = Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")
    return cell.append(f"\n{below}", style="dim") if below else cell


def print_table(shown: Table, *, wide: bool) -> None:
    """Print a table within the terminal's width, or in full; `none` below the titles of one without rows."""
    terminal = make_console(width=WIDE_COLUMNS, quiet=out.quiet) if wide else out
    place = next((place for place, column in enumerate(shown.columns) if not column.no_wrap), 0)
    if place and _is_too_narrow(shown, place, terminal):
        _print_with_lines_below(shown, place, terminal)
    else:
        terminal.print(shown)
    if not shown.row_count:
        terminal.print("[dim]none[/]")


def _is_too_narrow(shown: Table, place: int, terminal: Console) -> bool:
    """Whether the flexible column is cut, and to less than can be read."""
    widths = [Measurement.get(terminal, terminal.options, each).maximum for each in _columns_alone(shown)]
    left = terminal.width - sum(width + 1 for number, width in enumerate(widths) if number != place)
    return left < min(widths[place], MIN_FLEXIBLE_COLUMNS)


def _columns_alone(shown: Table) -> list[Table]:
    """Each column as a table."""
    alone = []
    for column in shown.columns:
        one = Table(box=None, pad_edge=False)
        one.add_column(column.header)
        for cell in column.cells:
            one.add_row(cell)
        alone.append(one)
    return alone


def _print_with_lines_below(shown: Table, place: int, terminal: Console) -> None:
    details = list(shown.columns[place].cells)
    rest = Table(box=None, pad_edge=False, header_style="dim")
    for number, column in enumerate(shown.columns):
        if number != place:
            rest.add_column(column.header, no_wrap=True, overflow="ellipsis")
    heights = []
    for row in zip(*(column.cells for number, column in enumerate(shown.columns) if number != place), strict=True):
        rest.add_row(*row)
        heights.append(max(1 + str(cell).count("\n") for cell in row))
    lines = iter(terminal.render_lines(rest, pad=False))  # of the titles, then those of each row
    for height, detail in zip((1, *heights), ("", *details), strict=True):
        for line in islice(lines, height):
            terminal.print(Text.assemble(*((part.text, part.style or "") for part in line)))
        if detail:
            text = detail.copy() if isinstance(detail, Text) else Text.from_markup(str(detail))
            text.no_wrap, text.overflow = False, "fold"
            if text.plain.strip():
                terminal.print(Padding(text, (0, 0, 0, 2), expand=False), style="dim", soft_wrap=False)


def match_short_id(ids: Iterable[U], given: str) -> U | None:
    """The one id that ends with the given text; None if there is none, or several."""
    found = [each for each in set(ids) if len(given) >= MIN_ID_CHARACTERS and str(each).endswith(given)]
    return found[0] if len(found) == 1 else None


def short_id(value: object) -> str:
    """The end of an id: its random part, which commands accept in place of the whole id."""
    return str(value)[-8:]


def no_episodes(found: "Addresses") -> str:
    """That none were counted, for which row-level security may be the reason: the owner of the tables sees all."""
    is_hidden = found.owner is None and not found.is_in_process
    return "no episodes that this role sees; AFTERMIND_MIGRATOR_URL counts all" if is_hidden else "no episodes yet"


def complain(text: str) -> None:
    """Print an error in one line."""
    err.print(f"[bold red]error[/]  {escape(text)}")


def warn(text: str) -> None:
    """One line about what is not as it should be."""
    err.print(f"[yellow]warning[/]  {escape(text)}")


def with_memory(
    work: "Callable[[Memory], Coroutine[Any, Any, T]]",  # Any: a coroutine's send and yield types
    *,
    patience: float = 0.0,
    settings: Settings | None = None,
) -> T:
    """Run `work` with the memory that settings or the embedded stack name, and close it.

    A recall, and within it the question's vector, may take `patience` seconds at least: a person waits, not an agent.
    Raises `InvalidSettings` for a store in memory, which is empty at the start and lost at the end of a command.
    """
    from aftermind.api import address_resolution
    from aftermind.api.multi_database_calls import away_databases
    from aftermind.memory import Memory

    given = settings or Settings()
    where = address_resolution.resolve(given)
    if where.is_in_process and where.journal is None:
        why = "this store is lost when the command ends. Name one that is kept, such as sqlite:./memory.db."
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", where.store, why)
    budgets = {name: max(getattr(given, name), patience) for name in BUDGETS}

    async def main() -> T:
        memory = Memory(settings=given.model_copy(update=budgets))
        try:  # not `async with`, which gets ready for recalls to come
            found = await work(memory)
            if isinstance(found, Sequence) and (away := away_databases(found)):
                warn(f"not included, because it does not answer: database {', '.join(away)}.")
            return found
        finally:
            await memory.close()

    return run(main())


async def record_read(
    memory: "Memory", action: Action, *, user: str | None, namespace: str | None, **detail: Json
) -> None:
    """Record that the operator reads a user's memory; if this fails, the memory is not shown.

    A store of one process has no audit trail, so nothing is recorded. Raises `StoreUnavailable`.
    """
    if not memory.keeps_audit:
        return
    try:
        await memory.audit.record(action, user_id=user, namespace=namespace, detail=detail)
    except errors.StoreUnavailable as exc:
        why = f"this read cannot be recorded ({exc.why}), so nothing is shown"
        hint = "Agents recall from replicas. `aftermind doctor` checks the primary."
        raise errors.StoreUnavailable("audit trail", why, hint) from exc


def run(work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's send and yield types
    """`asyncio.run` that ends by Ctrl-C and by SIGTERM alike, with code 130 and without a traceback."""

    async def interruptible() -> T:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().set_exception_handler(_ignore_cancelled_connects)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # otherwise the caller has its own signal handling
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        return asyncio.run(interruptible())
    raise typer.Exit(130)


def _ignore_cancelled_connects(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: as asyncio's
    """Report errors that no task has retrieved, except asyncpg's for a connection that a deadline has cancelled.

    It sets an exception on its future, which nothing awaits any more.
    """
    if not (isinstance(context.get("exception"), ConnectionError) and "connection_lost" in str(context["exception"])):
        loop.default_exception_handler(context)


def parse_pairs(option: str, given: Sequence[str]) -> dict[str, Json]:
    """The values of an option whose values are KEY=JSON. Raises `InvalidFilter`."""
    values: dict[str, Json] = {}
    for each in given:
        key, equals, value = each.partition("=")
        try:
            values[key] = orjson.loads(value)
        except orjson.JSONDecodeError as exc:
            why = f"use KEY=JSON; a text has quotes, as in --{option} 'name=\"text\"'."
            raise errors.InvalidFilter(option, each, why) from exc
        if not key or not equals:
            raise errors.InvalidFilter(option, each, "use KEY=JSON.")
    return values


def count_of(count: int, noun: str) -> str:
    """`1 turn`, `1,200 turns`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def when(moment: datetime) -> str:
    """A time for people, to the minute, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
