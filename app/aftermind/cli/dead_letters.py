"""`aftermind dead-letters`: list, show and discard dead letters."""

import getpass
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import job_ids, terminal
from aftermind.cli.terminal import out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types import Episode, Job, JobId, JobKind, JobState, Json, Message
from aftermind.types.audit import Action
from aftermind.types.job_admin import JobAction, JobActionResult
from aftermind.types.plain_values import to_plain
from aftermind.types.replay import DeadGroup, DeadLetter, JobFilter
from aftermind.types.timestamps import before_now

MAX_USER_CHARACTERS = 14  # in a table of 80 columns
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Kinds = Annotated[list[JobKind] | None, typer.Option("--kind", "-k", help="Of this kind. May be repeated.")]
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", "-r", help="Reason code, as in `stats`. May be repeated.")
]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", "-f", help="With this error fingerprint, as in `stats`.")
]
ErrorText = Annotated[str | None, typer.Option("--error", "-e", help="Error contains this text.")]
OfUser = Annotated[str | None, typer.Option("--user", "-u", help="Of this user of the namespace.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Of this namespace. Default: all.")]
OfNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Of this namespace. Default: all; with --user, AFTERMIND_NAMESPACE."),
]
Since = Annotated[str | None, typer.Option(help="Dead-lettered after: 30m, 24h, 7d, or a time like 2026-01-31T12:00.")]
Until = Annotated[str | None, typer.Option(help="Dead-lettered before this time, in the same format.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of lines.")]

dead = typer.Typer(
    name="dead",
    help="Dead letters: jobs that have used all attempts. They are kept until you replay or discard them.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dead, name="dead-letters")
    app.add_typer(dead, name="dead", hidden=True)  # the short form


def make_filter(
    *,
    ids: Sequence[UUID] | None,
    kinds: Sequence[JobKind] | None,
    reasons: Sequence[str] | None,
    fingerprint: str | None,
    error: str | None,
    namespace: str | None,
    user: str | None,
    since: str | None,
    until: str | None,
) -> JobFilter:
    """A filter as the options name it. A user without a namespace is one of the settings' namespace, as elsewhere."""
    if user is not None and namespace is None:
        namespace = Settings().namespace
    return JobFilter(
        ids=tuple(JobId(each) for each in ids or ()),
        kinds=tuple(kinds or ()),
        reasons=tuple(reasons or ()),
        fingerprint=fingerprint,
        error=error,
        namespace=namespace,
        user_id=user,
        since=moment("since", since),
        until=moment("until", until),
    )


def moment(name: str, given: str | None) -> datetime | None:
    """A time, or how long ago it was. A year or a month is its beginning, without an offset in UTC."""
    if given is None:
        return None
    number, unit = given[:-1], given[-1:]
    if unit in UNITS and number.isdecimal():
        return _ago(name, given)
    try:
        is_part = re.fullmatch(r"\d{4}(?:-\d{2})?", given) is not None
        at = datetime.fromisoformat(f"{given}-01-01"[:10] if is_part else given)
    except ValueError as exc:
        raise errors.InvalidFilter(
            name, given, "use 30m, 24h, 7d, or a time like 2026-01, 2026-01-31 or 2026-01-31T12:00."
        ) from exc
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _ago(name: str, given: str) -> datetime:
    """A number and a unit. Raises `InvalidFilter` for a span that Python cannot hold."""
    try:
        at = before_now(timedelta(**{UNITS[given[-1:]]: int(given[:-1])}))
    except (ValueError, OverflowError):
        at = None
    if at is None:
        raise errors.InvalidFilter(name, given, "it reaches back before the year 1.")
    return at


def actor() -> str:
    """The operator at this terminal, recorded with each action."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a name for its user
        return "unknown"


@dead.command("list")
@terminal.with_json
def list_(
    *,
    ids: job_ids.Ids = None,
    kind: Kinds = None,
    reason: Reasons = None,
    fingerprint: Fingerprint = None,
    error: ErrorText = None,
    namespace: OfNamespace = None,
    user: OfUser = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    wide: terminal.Wide = False,
) -> list[Job]:
    """List dead letters, the latest first. Commands accept the short ids."""
    asked = make_filter(
        ids=ids,
        kinds=kind,
        reasons=reason,
        fingerprint=fingerprint,
        error=error,
        namespace=namespace,
        user=user,
        since=since,
        until=until,
    )
    found = terminal.with_memory(lambda memory: memory.dead_letters.list(asked, limit=limit))
    if found:
        spaces = names_namespaces(asked.namespace, (job.scope.namespace for job in found))
        terminal.print_table(_make_table(found, with_namespace=spaces, wide=wide), wide=wide)
    else:
        out.print("No dead letters.")
    terminal.note_limit(found, limit)
    return found


@dead.command()
@terminal.with_json
def stats(
    *,
    namespace: Namespace = None,
    since: Since = None,
    limit: Limit = 50,
    wide: terminal.Wide = False,
) -> Sequence[DeadGroup]:
    """Group dead letters by error, the most frequent first."""
    asked = JobFilter(namespace=namespace, since=moment("since", since))
    found = terminal.with_memory(lambda memory: memory.dead_letters.groups(asked, limit=limit))
    if found:
        terminal.print_table(_grouped(found, wide=wide), wide=wide)
    else:
        out.print("No dead letters.")
    terminal.note_limit(found, limit)
    return found


@dead.command()
@terminal.with_json
def get(
    job_id: Annotated[str, typer.Argument(help="The job, or the end of its id.", show_default=False)],
    *,
    namespace: Namespace = None,
) -> dict[str, Json]:
    """Show one dead letter: its messages, payload, attempts, the model's answer if there is one, and its replays."""

    async def work(memory: Memory) -> tuple[DeadLetter, Sequence[Message | Episode]]:
        whole = await job_ids.find_job_id(memory, job_id, namespace=namespace)
        found = None if whole is None else await memory.dead_letters.get(whole)
        if found is None or namespace not in (None, found.job.scope.namespace):
            where = "" if namespace is None else f" of namespace {namespace!r}"
            why = f"it is neither a dead letter's id{where} nor the end of one; `aftermind dead-letters list` has them."
            raise errors.InvalidFilter("job", job_id, why)
        scope = found.job.scope
        said = {"by": "dead-letters get", "job": str(found.job.id)}
        await terminal.record_read(memory, Action.READ, user=scope.user_id, namespace=scope.namespace, **said)
        return found, await memory.job_admin.messages(found.job)

    letter, messages = terminal.with_memory(work)
    _show(letter, messages)
    return {**to_plain(letter), "messages": [each.to_chat() for each in messages]}


@dead.command()
@terminal.with_json
def discard(
    *,
    note: Annotated[str, typer.Option(help="The reason; it is stored with the dead letter.", show_default=False)],
    ids: job_ids.Ids = None,
    kind: Kinds = None,
    reason: Reasons = None,
    fingerprint: Fingerprint = None,
    error: ErrorText = None,
    namespace: OfNamespace = None,
    user: OfUser = None,
    since: Since = None,
    until: Until = None,
) -> dict[str, int | str]:
    """Discard matching dead letters. They are still readable and can be replayed by id."""
    asked = make_filter(
        ids=ids,
        kinds=kind,
        reasons=reason,
        fingerprint=fingerprint,
        error=error,
        namespace=namespace,
        user=user,
        since=since,
        until=until,
    )
    if asked == JobFilter():
        raise errors.InvalidFilter(
            "filter", None, "set at least one filter, so that not all dead letters are discarded by accident."
        )
    wanted = replace(asked, states=(JobState.DEAD,))
    done = terminal.with_memory(
        lambda memory: memory.job_admin.apply(JobAction.DISCARD, wanted, note=note, actor=actor())
    )
    out.print(f"Discarded {done.changed:,}.")
    show_undo(done)
    return {"discarded": done.changed, "action": str(done.id)}


def show_undo(done: JobActionResult) -> None:
    """The command that restores what an action has discarded."""
    if done.id is not None and done.changed:
        out.print(f"Undo with: aftermind jobs restore --action {done.id}")


def names_namespaces(namespace: str | None, found: Iterable[str]) -> bool:
    """Whether a list over every namespace has to name them: it has others than that of the settings."""
    return namespace is None and bool(set(found) - {Settings().namespace})


def _make_table(found: Sequence[Job], *, with_namespace: bool, wide: bool) -> Table:
    columns: dict[str, Callable[[Job], str]] = {"user": lambda job: shorten(job.scope.user_id or "-")}
    if with_namespace:
        columns = {"namespace": lambda job: job.scope.namespace, **columns}
    if wide:
        columns = {
            "owner": lambda job: f"{job.scope.namespace}/{job.scope.user_id or '-'}",
            "attempts": lambda job: str(job.attempts),
            "fingerprint": lambda job: job.fingerprint or "",
        }
    shown = terminal.make_table("job", "kind", "failed at", *columns, "reason", "error", flexible="error")
    for job in found:
        name = str(job.id) if wide else terminal.short_id(job.id)
        about = (read(job) for read in columns.values())
        texts = (name, job.kind, terminal.when(job.updated_at), *about, job.reason_code or "")
        shown.add_row(*(escape(text) for text in texts), terminal.one_line(job.error or ""))
    return shown


def _grouped(found: Sequence[DeadGroup], *, wide: bool) -> Table:
    more = ("tenants", "oldest", "newest") if wide else ()
    shown = terminal.make_table("jobs", "kind", "reason", "fingerprint", *more, "error", flexible="error")
    for group in found:
        about = (str(group.namespaces), terminal.when(group.oldest), terminal.when(group.newest)) if wide else ()
        texts = (str(group.count), group.kind, group.reason_code, group.fingerprint, *about)
        shown.add_row(*(escape(text) for text in texts), terminal.one_line(group.error))
    return shown


def shorten(text: str, limit: int = MAX_USER_CHARACTERS) -> str:
    """A text with at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _as_json(value: object) -> str:
    return escape(orjson.dumps(to_plain(value)).decode())


def _show(letter: DeadLetter, messages: Sequence[Message | Episode]) -> None:
    job = letter.job
    out.print(f"[bold]{job.kind}[/] {job.id} is [bold]{job.state}[/] ({escape(job.reason_code or 'no reason')})")
    out.print(f"owner        {escape(job.scope.namespace)}/{escape(job.scope.user_id or '-')}")
    out.print(f"error        {escape(job.error or '')}\nfingerprint  {job.fingerprint}\nlost leases  {job.lost_leases}")
    if letter.note:
        out.print(f"note         {escape(letter.note)}")
    if letter.raw is not None:
        out.print(f"turn         {len(letter.raw):,} bytes")
    out.print(f"payload      {_as_json(job.payload)}")
    if job.answer:
        rejected = job.answer.get("rejected")
        out.print(f"answer       {escape(str(rejected)) if rejected else _as_json(job.answer)}")
    for message in messages:
        out.print(f"{message.role:12} {escape(message.content)}")
    for each in letter.attempts:
        tokens = each.tokens_in + each.tokens_out
        spent = f"  {tokens:,} tokens of {each.model}" if each.model and tokens else ""
        said = f"{each.outcome or 'unknown'} by {each.worker}{spent}  {each.error or ''}"
        out.print(f"attempt {each.number}    {terminal.when(each.started_at)}  {escape(said)}")
    for successor in letter.successors:
        out.print(f"replayed as  {successor.id}, which is {successor.state}")
