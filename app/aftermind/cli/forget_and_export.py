"""`aftermind users`, `export`, `forget`, `remains`: export and erase all data of a user."""

import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors, private_files
from aftermind.api.forget_and_export import Export, Forgot
from aftermind.api.job_admin import MAX_LISTED
from aftermind.api.retention import archives
from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment
from aftermind.cli.terminal import Namespace, out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.stores.protocol import UserInfo
from aftermind.types import JobKind, JobState
from aftermind.types.audit import Action
from aftermind.types.erasure_report import ErasureProof, ErasureReport, SearchedPlace
from aftermind.types.plain_values import to_plain
from aftermind.types.replay import JobFilter
from aftermind.types.scope import GROUP_PREFIX

OWNED = "owned: rows with the user's id, whatever their content."
NOT_SEARCHED = (
    "Not searched: backups and archived WAL, freed pages of Postgres until vacuum overwrites them, the append-only "
    "file of Redis until it is rewritten, archives of retention policies, logs outside the state folder, and data "
    "kept by model providers."
)

USERS_PER_PAGE = 1_000
OTHER_FORMATS = {".csv", ".feather", ".parquet", ".tsv", ".xls", ".xlsx", ".xml", ".yaml", ".yml", ".zip"}

OwnerView = Annotated[str | None, typer.Option("--user", "-u", help="The user.", show_default=False)]
EveryPlace = Annotated[bool, typer.Option("--wide", "-w", help="List every place, also without a match.")]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="The anonymous user: turns without a user id.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(users)
    app.command()(export)
    app.command()(forget)
    app.command("verify-erasure")(verify_erasure)


@terminal.with_json
def users(
    *,
    namespace: Namespace = None,
    prefix: Annotated[str, typer.Option(help="Only ids that start with this text.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of users.")] = 100,
    wide: terminal.Wide = False,
) -> list[UserInfo]:
    """List the users with stored content, by id. Groups are `group:NAME`, which `export --user` takes."""

    async def work(memory: Memory) -> list[UserInfo]:
        return await memory.users(namespace=namespace, prefix=prefix, limit=limit, groups=True)

    found = terminal.with_memory(work)
    shown = terminal.make_table("last write", "user", flexible="user")
    for each in found:
        shown.add_row(terminal.when(each.last_at) if each.last_at else "-", escape(each.user_id or "(anonymous)"))
    if found:
        terminal.print_table(shown, wide=wide)
    else:
        out.print("No users.")
    terminal.note_limit(found, limit)
    return found


@terminal.with_json
def export(
    *,
    user: OwnerView = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    to: Annotated[
        str | None, typer.Option("--to", "-o", help="Output file, or s3://bucket/key. Default: the terminal.")
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Include the embeddings.")] = False,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Every user and group of the namespace, each as a line of JSON.")
    ] = False,
) -> dict[str, str | int]:
    """Export a user as JSON: messages, facts, blocks, summaries, profile and unfinished jobs.

    `aftermind ingest` reads the messages of such a file again. Credentials and endpoint of S3 are those of the AWS
    tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL_S3.
    """
    to = None if to == "-" else to
    if to is not None and Path(to).suffix.lower() in OTHER_FORMATS:
        why = f"{to}: an export is JSON. Name a .json file; pandas.json_normalize makes tables of its parts."
        raise errors.InvalidInput(why)
    if (user is not None) + anonymous + all_users != 1:
        raise errors.InvalidFilter("user", user, "set one of --user ID, --anonymous and --all-users.")
    if all_users:
        return _export_all(namespace, to, vectors=vectors)
    target = archives.open_object(to) if to is not None and to.startswith("s3://") else None

    async def work(memory: Memory) -> Export:
        await terminal.record_read(memory, Action.EXPORT, user=user, namespace=namespace, vectors=vectors)
        return await _export(memory, user, namespace, vectors=vectors)

    taken = terminal.with_memory(work)
    data = orjson.dumps(to_plain(taken), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    if to is None:
        sys.stdout.buffer.write(data + b"\n")
        raise typer.Exit
    if target is not None:
        archive, name = target
        asyncio.run(archive.write(name, data + b"\n", remedy="Nothing was exported."))
    elif (path := Path(to)).exists() and not path.is_file():  # a pipe, a terminal
        path.write_bytes(data + b"\n")
    else:
        private_files.write(path, data + b"\n")  # mode 0600: the file has all content of the user
    messages, facts = (
        terminal.count_of(len(taken.episodes), "message"),
        terminal.count_of(len(taken.facts), "fact"),
    )
    out.print(f"{messages} and {facts} are in {to}.")
    return {"to": to, "episodes": len(taken.episodes), "facts": len(taken.facts)}


def _export_all(namespace: str | None, to: str | None, *, vectors: bool) -> dict[str, str | int]:
    """One line for each user, written as it is read: a tenant need not fit into memory."""
    if to is not None and to.startswith("s3://"):
        raise errors.InvalidFilter("to", to, "with --all-users it is a file. Copy it to S3 afterwards.")

    async def work(memory: Memory) -> dict[str, str | int]:
        counts = Counter[str](users=0, episodes=0, facts=0)
        with nullcontext(sys.stdout.buffer) if to is None else private_files.writing(Path(to)) as file:
            async for user in _each_user(memory, namespace):
                await terminal.record_read(memory, Action.EXPORT, user=user, namespace=namespace, vectors=vectors)
                taken = await _export(memory, user, namespace, vectors=vectors)
                file.write(orjson.dumps(to_plain(taken), option=orjson.OPT_NON_STR_KEYS) + b"\n")
                counts.update(users=1, episodes=len(taken.episodes), facts=len(taken.facts))
        return {"to": to or "", **counts}

    done = terminal.with_memory(work)
    if to is None:
        raise typer.Exit
    messages, facts, users = (
        terminal.count_of(int(done[name]), noun)
        for name, noun in (("episodes", "message"), ("facts", "fact"), ("users", "user"))
    )
    out.print(f"{messages} and {facts} of {users} are in {to}.")
    return done


async def _export(memory: Memory, user: str | None, namespace: str | None, *, vectors: bool) -> Export:
    """Of a user, or of a group as `aftermind users` lists it."""
    if user is not None and user.startswith(GROUP_PREFIX):
        return await memory.groups.export(user.removeprefix(GROUP_PREFIX), namespace=namespace, vectors=vectors)
    return await memory.export(user_id=user, namespace=namespace, vectors=vectors)


async def _each_user(memory: Memory, namespace: str | None) -> AsyncIterator[str | None]:
    after: str | None = None
    while page := await memory.users(namespace=namespace, after=after, limit=USERS_PER_PAGE, groups=True):
        for each in page:
            yield each.user_id
        after = page[-1].user_id or ""


async def _each_owner(memory: Memory, namespace: str) -> AsyncIterator[str | None]:
    """Each user and group with content, then those with pending turns or payloads of jobs alone."""
    seen = set[str | None]()
    pending = {
        turn.owner.user_id for turn in await memory.job_admin.pending_turns(namespace=namespace, limit=MAX_LISTED)
    }
    async for user in _each_user(memory, namespace):
        seen.add(user)
        yield user
    kept = JobFilter(
        namespace=namespace,
        states=tuple(each for each in JobState if each is not JobState.FORGOTTEN),
        kinds=tuple(each for each in JobKind if each is not JobKind.FORGET),
    )
    while True:
        jobs = await memory.job_admin.list(kept, limit=MAX_LISTED)
        rest = (pending | {job.scope.user_id for job in jobs}) - seen
        if not rest:
            return
        for user in sorted(rest, key=lambda each: each or ""):
            seen.add(user)
            yield user


@terminal.with_json
def forget(
    *,
    user: OwnerView = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    before: Annotated[str | None, typer.Option(help="Only messages before: 90d, or 2026-01-31T12:00.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only this message. May be repeated.")] = None,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove", help="Store a test message first, and show where it is found before and after the deletion."
        ),
    ] = False,
    note: Annotated[
        str | None, typer.Option(help="A reason or the number of a request, for the audit trail.", show_default=False)
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Everything of every user and group of --namespace.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    wide: EveryPlace = False,
) -> Forgot | dict[str, Any]:  # Any: JSON
    """Delete a user's memory or a part of it. Deletion is immediate and permanent.

    With --prove the exit code is 1 if content remains or a place could not be searched; with --all-users, if a user
    could not be forgotten.
    """
    if all_users:
        if namespace is None or user is not None or anonymous or session or before or ids or prove:
            why = "it needs --namespace, and takes only --note, --yes and --json besides."
            raise errors.InvalidFilter("all-users", all_users, why)
        return _forget_all(namespace, note, yes=yes)
    _check(user, anonymous=anonymous)
    if not yes:
        typer.confirm(
            f"Forget {_what(session, before, ids)} of {user or 'the anonymous user'} permanently?", abort=True, err=True
        )

    async def work(memory: Memory) -> Forgot:
        return await memory.forget(
            user_id=user,
            namespace=namespace,
            session_id=session,
            before=moment("before", before),
            ids=ids,
            prove=prove,
            note=note,
        )

    gone = terminal.with_memory(work)
    out.print(f"Forgotten: {_counts(gone)}.")
    if gone.proof is not None:
        _show_proof(gone.proof, user, namespace, wide=wide)
        about = {"user_id": user, "namespace": namespace or Settings().namespace, "not_searched": NOT_SEARCHED}
        shown = {"is_erased": gone.proof.after.is_erased, **about, **to_plain(gone)}
        shown["proof"] |= {"before": _with_result(gone.proof.before), "after": _with_result(gone.proof.after)}
        if not gone.proof.after.is_clean:
            raise terminal.ExitWithResult(1, shown)
        return shown
    return gone


def _forget_all(namespace: str, note: str | None, *, yes: bool) -> dict[str, Any]:  # Any: JSON
    """Each user and group by a separate deletion, so that a repeated call continues after one that failed."""
    if not yes:
        typer.confirm(f"Forget every user and group of namespace {namespace} permanently?", abort=True, err=True)

    async def work(memory: Memory) -> tuple[int, list[str | None]]:
        forgotten, failed = 0, list[str | None]()
        async for user in _each_owner(memory, namespace):
            try:
                if user is not None and user.startswith(GROUP_PREFIX):
                    gone = await memory.groups.delete(user.removeprefix(GROUP_PREFIX), namespace=namespace)
                else:
                    gone = await memory.forget(user_id=user, namespace=namespace, note=note)
            except errors.AftermindError as exc:
                failed.append(user)
                terminal.complain(f"{user or '(anonymous)'}: {exc}")
            else:
                forgotten += 1
                out.print(f"{escape(user or '(anonymous)')}: {_counts(gone)}.")
        return forgotten, failed

    forgotten, failed = terminal.with_memory(work)
    out.print(f"Forgotten: {terminal.count_of(forgotten, 'user')} of namespace {escape(namespace)}.")
    shown = {"namespace": namespace, "forgotten": forgotten, "failed": failed}
    if failed:
        terminal.complain(f"not forgotten: {terminal.count_of(len(failed), 'user')}. Repeat the command.")
        raise terminal.ExitWithResult(1, shown)
    return shown


@terminal.with_json
def verify_erasure(
    *,
    user: OwnerView = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    texts: Annotated[
        list[str] | None, typer.Option("--text", "-t", help="A text to search for. May be repeated.")
    ] = None,
    wide: EveryPlace = False,
) -> dict[str, Any]:  # Any: JSON
    """Search for remaining content of a user, and for texts: in every table, replicas, Redis, spool and logs.

    Texts are searched in the rows of every user. The exit code is 1 if content remains or a place was not searched.
    """
    _check(user, anonymous=anonymous)

    async def work(memory: Memory) -> ErasureReport:
        await terminal.record_read(
            memory, Action.READ, user=user, namespace=namespace, by="remains", texts=len(texts or ())
        )
        return await memory.verify_erasure(*(texts or ()), user_id=user, namespace=namespace)

    found = terminal.with_memory(work)
    table = _places("place", "searched", "found", "owned", "result")
    listed = [place for place in found.places if wide or _has_content(place)]
    for place in listed:
        table.add_row(place.name, place.examined, _number(place.found), _number(place.owned), _verdict(place))
    _print_places(table, listed, len(found.places))
    out.print(f"[dim]{OWNED}[/]")
    _show_result(found)
    shown = _with_result(found)
    if not found.is_clean:
        raise terminal.ExitWithResult(1, shown)
    return shown


def _with_result(report: ErasureReport) -> dict[str, Any]:  # Any: JSON
    """A report as JSON with what its places amount to, as over HTTP."""
    return {"is_erased": report.is_erased, "unsearched": report.unsearched, **to_plain(report)}


def _show_proof(proof: ErasureProof, user: str | None, namespace: str | None, *, wide: bool) -> None:
    table = _places("place", "searched", "before", "after", "owned", "result")
    earlier = {place.name: place for place in proof.before.places}
    listed = [
        place
        for place in proof.after.places
        if wide or _has_content(place) or _has_content(earlier.get(place.name, place))
    ]
    for place in listed:
        before = earlier.get(place.name, place)
        counts = (_number(before.found), _number(place.found), _number(place.owned))
        table.add_row(place.name, place.examined, *counts, _verdict(place))
    _print_places(table, listed, len(proof.after.places))
    out.print(
        f"Searched for the test message {proof.canary} and the ids of {terminal.count_of(len(proof.ids), 'message')}. "
        f"Deletion took {proof.seconds:.2f} s. {OWNED}\n{NOT_SEARCHED}"
    )
    owner = "--anonymous" if user is None else f"--user {shlex.quote(user)}"
    owner += "" if namespace is None else f" --namespace {shlex.quote(namespace)}"
    _show_result(proof.after, f" Repeat: aftermind verify-erasure {owner} --text {proof.canary}")


def _show_result(found: ErasureReport, remedy: str = "") -> None:
    texts = [place.name for place in found.places if place.found]
    if found.is_clean:
        out.print("[bold green]Nothing remains.[/]")
    elif texts and not found.unsearched and all(not place.owned or place.kept for place in found.places):
        terminal.complain(
            f"no row has the user's id, but the searched ids or texts are in: {', '.join(texts)}. A text counts also "
            'in rows of others and as a part of a word or name ("opera" in "operation"): search for a longer one.'
        )
    else:
        places = ", ".join(found.unsearched)
        why = "; ".join(dict.fromkeys(each.missing for each in found.places if each.missing))
        what = "content remains" if found.is_erased is False else "no content was found"
        terminal.complain(f"{what}{f', but not searched: {places} ({why})' if places else ''}.{remedy}")


def _places(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in ("found", "before", "after", "owned")
        # The name of a place is never broken, what was searched in it only between words.
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number or column == "place")
    return table


def _has_content(place: SearchedPlace) -> bool:
    return bool(place.found or place.owned or place.missing)


def _print_places(table: Table, listed: Sequence[SearchedPlace], searched: int) -> None:
    if listed:
        out.print(table)
    reasons = {place.name: place.missing or (place.kept if place.owned and place.is_clean else "") for place in listed}
    for name, reason in reasons.items():
        if reason:
            out.print(f"{escape(name)}: {escape(reason)}")
    if searched > len(listed):
        out.print(
            f"{'Searched too, without a match' if listed else 'Searched, without a match'}: "
            f"{terminal.count_of(searched - len(listed), 'other place' if listed else 'place')} (--wide lists them)."
        )


def _number(count: int) -> str:
    return f"{count:,}" if count else "-"


def _verdict(place: SearchedPlace) -> str:
    if place.missing:
        return "[yellow]not searched[/]"
    if not place.is_clean:
        return "[bold red]remains[/]"
    return "kept" if place.owned else ""


def _counts(gone: Forgot) -> str:
    rows = ", ".join(f"{count:,} {name}" for name, count in gone.rows.items() if count)
    return f"{rows or 'nothing was stored'}; {terminal.count_of(gone.pending_turns, 'pending turn')}"


def _check(user: str | None, *, anonymous: bool) -> None:
    if (user is None) is not anonymous:
        raise errors.InvalidFilter("user", user, "set --user ID or --anonymous.")


def _what(session: str | None, before: str | None, ids: list[str] | None) -> str:
    if ids:
        return terminal.count_of(len(ids), "message")
    told = [f"session {session}"] if session else []
    told += [f"messages before {before}"] if before else []
    return ", ".join(told) or "everything"
