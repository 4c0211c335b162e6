"""`aftermind keys`: who may use the HTTP service."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import Namespace, out
from aftermind.cli.dead import moment
from aftermind.memory import Memory
from aftermind.types.api_key import ApiKey, Right

keys = typer.Typer(help="Who may use the HTTP service: make, list and revoke its keys.", no_args_is_help=True)

Rights = Annotated[
    list[Right] | None,
    typer.Option("--right", help="read, write or operate; once for each. Without it: all three."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(keys, name="keys")


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Who uses it: 'web shop', 'alice'.")],
    *,
    namespace: Namespace = None,
    right: Rights = None,
    expires: Annotated[str | None, typer.Option(help="When it ends: a day like 2027-01-31, or a time (UTC).")] = None,
) -> None:
    """Make a key and print it, once: it is kept as a hash alone."""

    async def work(memory: Memory) -> tuple[ApiKey, str]:
        return await memory.keys.create(
            name,
            rights=frozenset(right or Right),
            expires_at=None if expires is None else moment("expires", expires),
            namespace=namespace,
        )

    made, text = console.with_memory(work)
    told = f"Key [bold]{made.id}[/] of namespace {escape(repr(made.namespace))} may {_may(made)}."
    console.err.print(f"{told} Keep it: it is not shown again.")
    out.print(text, markup=False)


@keys.command("list")
def list_(*, namespace: Namespace = None) -> None:
    """Show the keys of a namespace, without their secrets."""
    found = console.with_memory(lambda memory: memory.keys.list(namespace=namespace))
    out.print(_table(found) if found else "This namespace has no key. `aftermind keys create NAME` makes one.")


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its id, as `list` shows it.")], *, namespace: Namespace = None
) -> None:
    """Close a key for good. Running services notice within 5 seconds."""
    if not console.with_memory(lambda memory: memory.keys.revoke(key_id, namespace=namespace)):
        raise errors.NotThere("open key", key_id)
    out.print(f"{key_id} opens nothing any more.")


def _table(found: list[ApiKey]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("id", "name", "may", "made", "until", "state"):
        shown.add_column(title)
    for key in found:
        until = console.when(key.expires_at) if key.expires_at else "-"
        state = "[green]open[/]" if key.is_good_at(datetime.now(UTC)) else "[yellow]expired[/]"
        if key.revoked_at is not None:
            state = f"[red]revoked {console.when(key.revoked_at)}[/]"
        shown.add_row(key.id, escape(key.name), _may(key), console.when(key.created_at), until, state)
    return shown


def _may(key: ApiKey) -> str:
    return ", ".join(right for right in Right if right in key.rights)
