"""`aftermind export`, `forget`: everything of a user, to take along or to be gone."""

import base64
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import Namespace, out
from aftermind.cli.dead import moment
from aftermind.faces.forgetting import Export, Forgot
from aftermind.memory import Memory

Whose = Annotated[str | None, typer.Option("--user", "-u", help="Whose memory.", show_default=False)]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="The bucket of those without an id.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command()(forget)


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
        return await memory.export(user_id=user, namespace=namespace, vectors=vectors)

    taken = console.with_memory(work)
    data = orjson.dumps(_plain(taken), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    if to is None:
        sys.stdout.buffer.write(data + b"\n")
        return
    to.write_bytes(data + b"\n")
    out.print(f"{len(taken.episodes):,} messages and {len(taken.facts):,} facts are in {to}.")


def forget(
    *,
    user: Whose = None,
    anonymous: Anonymous = False,
    namespace: Namespace = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")] = None,
    before: Annotated[str | None, typer.Option(help="Only what was said before: 90d, or 2026-01-31T12:00.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only this message. May be repeated.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete everything of a user, or a part of it. It is gone at once, and for good."""
    _check(user, anonymous=anonymous)
    if not yes:
        typer.confirm(f"Forget {_what(session, before, ids)} of {user or 'the anonymous bucket'} for good?", abort=True)

    async def work(memory: Memory) -> Forgot:
        return await memory.forget(
            user_id=user, namespace=namespace, session_id=session, before=moment("before", before), ids=ids
        )

    gone = console.with_memory(work)
    counts = ", ".join(f"{count:,} {name}" for name, count in gone.rows.items() if count)
    out.print(f"Forgotten: {counts or 'nothing was there'}; {gone.pending_turns} turns on their way.")


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
