"""`aftermind api-keys`: API keys of the HTTP service."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind.cli import terminal
from aftermind.cli.dead_letters import moment
from aftermind.cli.terminal import Namespace, out
from aftermind.memory import Memory
from aftermind.types.api_key import OF_ONE_TENANT, ApiKey, Right

keys = typer.Typer(help="API keys of the HTTP service: create, list and revoke them.", no_args_is_help=True)

Rights = Annotated[
    list[Right] | None,
    typer.Option("--right", help="May be repeated. Default: read, write and operate."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(keys, name="api-keys")


@keys.command()
@terminal.with_json
def create(
    name: Annotated[str, typer.Argument(help="Name of the user or program: 'web shop', 'alice'.")],
    *,
    namespace: Namespace = None,
    right: Rights = None,
    expires: Annotated[str | None, typer.Option(help="Expiry: a day like 2027-01-31, or a time (UTC).")] = None,
) -> dict[str, ApiKey | str]:
    """Create an API key and print it once: only its hash is stored."""

    async def work(memory: Memory) -> tuple[bool, ApiKey, str]:
        is_first = not await memory.api_keys.any()
        made, text = await memory.api_keys.create(
            name,
            rights=right or OF_ONE_TENANT,
            expires_at=None if expires is None else moment("expires", expires),
            namespace=namespace,
        )
        return is_first, made, text

    is_first, made, text = terminal.with_memory(work)
    if is_first:
        terminal.err.print("This is the first key: the service accepts the local token and its sign-in link no longer.")
    told = f"Key [bold]{made.id}[/] of namespace {escape(repr(made.namespace))} may {_may(made)}."
    terminal.err.print(f"{told} Store it now: it is not shown again.")
    out.print(text, markup=False)
    return {"key": made, "text": text}


@keys.command("list")
@terminal.with_json
def list_(*, namespace: Namespace = None, wide: terminal.Wide = False) -> list[ApiKey]:
    """List the API keys of a namespace, without their secrets."""
    found = terminal.with_memory(lambda memory: memory.api_keys.list(namespace=namespace))
    none = "This namespace has no API key. Create one with `aftermind api-keys create NAME`."
    terminal.show(_table(found) if found else none, wide=wide)
    return found


@keys.command()
@terminal.with_json
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as in `list`.")], *, namespace: Namespace = None
) -> dict[str, str]:
    """Revoke an API key permanently. Running services apply this within 5 seconds."""
    if not terminal.with_memory(lambda memory: memory.api_keys.revoke(key_id, namespace=namespace)):
        raise terminal.missing_id(key_id, namespace, "api-keys")
    out.print(f"{key_id} is revoked.")
    return {"revoked": key_id}


def _table(found: list[ApiKey]) -> Table:
    shown = terminal.make_table("id", "created", "expires", "state", "name and rights", flexible="name and rights")
    for key in found:
        until = terminal.when(key.expires_at) if key.expires_at else "-"
        state = "[green]valid[/]" if key.is_valid else "[yellow]expired[/]"
        if key.revoked_at is not None:
            state = f"[red]revoked {terminal.when(key.revoked_at)}[/]"
        shown.add_row(
            key.id, terminal.when(key.created_at), until, state, terminal.one_line(f"{key.name}: {_may(key)}")
        )
    return shown


def _may(key: ApiKey) -> str:
    return ", ".join(right for right in Right if right in key.rights)
