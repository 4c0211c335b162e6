"""`aftermind export`, `forget`, `remains`: everything of a user, to take along or to be gone."""

import base64
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors, private_files
from aftermind.cli import console
from aftermind.cli.console import Namespace, out
from aftermind.cli.dead import moment
from aftermind.faces.forgetting import Export, Forgot
from aftermind.memory import Memory
from aftermind.types.audit import Action
from aftermind.types.remains import Place, Proof, Remains

NOT_LOOKED_IN = (
    "Not looked in: backups and archived log, freed pages of Postgres until vacuum writes over them, the append-only "
    "file of Redis until it is rewritten, logs outside of the state folder, and what a model provider keeps."
)

Whose = Annotated[str | None, typer.Option("--user", "-u", help="Whose memory.", show_default=False)]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="The bucket of those without an id.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command()(forget)
    app.command()(remains)


def export(
    *,
    user: Whose = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    to: Annotated[Path | None, typer.Option("--to", "-o", help="File to write. Without it: the terminal.")] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="The embeddings as well.")] = False,
) -> None:
    """Write everything of a user as JSON: messages, facts, blocks, summaries, profile, unfinished jobs."""
    _check(user, anonymous=anonymous)

    async def work(memory: Memory) -> Export:
        await console.looked(memory, Action.EXPORT, user=user, namespace=namespace, vectors=vectors)
        return await memory.export(user_id=user, namespace=namespace, vectors=vectors)

    taken = console.with_memory(work)
    data = orjson.dumps(_plain(taken), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    if to is None:
        sys.stdout.buffer.write(data + b"\n")
        return
    if to.exists() and not to.is_file():  # a pipe, a terminal
        to.write_bytes(data + b"\n")
    else:
        private_files.write(to, data + b"\n")  # 0600: it is all that a user ever said
    out.print(f"{len(taken.episodes):,} messages and {len(taken.facts):,} facts are in {to}.")


def forget(
    *,
    user: Whose = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    before: Annotated[str | None, typer.Option(help="Only what was said before: 90d, or 2026-01-31T12:00.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only this message. May be repeated.")] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Plant a canary first, and show where it was before and is after.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete everything of a user, or a part of it. It is gone at once, and for good.

    With --prove the exit code is 1 where something remains, or a place could not be looked at.
    """
    _check(user, anonymous=anonymous)
    if not yes:
        typer.confirm(f"Forget {_what(session, before, ids)} of {user or 'the anonymous bucket'} for good?", abort=True)

    async def work(memory: Memory) -> Forgot:
        return await memory.forget(
            user_id=user,
            namespace=namespace,
            session_id=session,
            before=moment("before", before),
            ids=ids,
            prove=prove,
        )

    gone = console.with_memory(work)
    counts = ", ".join(f"{count:,} {name}" for name, count in gone.rows.items() if count)
    out.print(f"Forgotten: {counts or 'nothing was there'}; {gone.pending_turns} turns on their way.")
    if gone.proof is not None:
        _show_proof(gone.proof)
        raise typer.Exit(0 if gone.proof.after.are_none else 1)


def remains(
    *,
    user: Whose = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    texts: Annotated[
        list[str] | None, typer.Option("--text", "-t", help="A text to look for. May be repeated.")
    ] = None,
) -> None:
    """Look for what is left of a user, and for texts: in every table, replicas, Redis, spool and logs.

    The exit code is 1 where something remains, or a place could not be looked at.
    """
    _check(user, anonymous=anonymous)

    async def work(memory: Memory) -> Remains:
        await console.looked(memory, Action.READ, user=user, namespace=namespace, by="remains", texts=len(texts or ()))
        return await memory.remains(*(texts or ()), user_id=user, namespace=namespace)

    found = console.with_memory(work)
    table = _places("place", "looked at", "found", "of the user", "")
    for place in found.places:
        table.add_row(place.name, place.looked, _number(place.found), _number(place.owned), _verdict(place))
    out.print(table)
    raise typer.Exit(0 if found.are_none else 1)


def _show_proof(proof: Proof) -> None:
    table = _places("place", "looked at", "before", "after", "of the user", "")
    earlier = {place.name: place for place in proof.before.places}
    for place in proof.after.places:
        before = earlier.get(place.name, place)
        counts = (_number(before.found), _number(place.found), _number(place.owned))
        table.add_row(place.name, place.looked, *counts, _verdict(place))
    out.print(table)
    out.print(
        f"Looked for {proof.canary}, planted just before, and the ids of {len(proof.ids)} messages. "
        f"Forgetting took {proof.seconds:.2f} s.\n{NOT_LOOKED_IN}"
    )
    if proof.after.are_none:
        out.print("[bold green]Nothing remains.[/]")
    else:
        console.complain(f"not all is gone, or not all was seen. Look again: aftermind remains --text {proof.canary}")


def _places(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in ("found", "before", "after", "of the user")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _number(count: int) -> str:
    return f"{count:,}" if count else "-"


def _verdict(place: Place) -> str:
    if place.missing:
        return f"[yellow]not seen: {escape(place.missing)}[/]"
    if not place.is_clean:
        return "[bold red]remains[/]"
    return f"kept: {place.kept}" if place.owned else ""


def _check(user: str | None, *, anonymous: bool) -> None:
    if (user is None) is not anonymous:
        raise errors.InvalidFilter("user", user, "name one: --user ID, or --anonymous.")


def _what(session: str | None, before: str | None, ids: list[str] | None) -> str:
    if ids:
        return f"{len(ids)} messages"
    told = [f"session {session}"] if session else []
    told += [f"what was said before {before}"] if before else []
    return ", ".join(told) or "everything"


def _plain(value: Any) -> Any:  # Any: whatever an export holds, as JSON
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):  # a driver's UUID is a subclass, which orjson does not take
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
