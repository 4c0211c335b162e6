"""`aftermind encrypt`, `rotate-keys`: content of a namespace sealed in the database."""

from typing import Annotated

import typer
from rich.markup import escape

from aftermind.cli import console
from aftermind.cli.console import Namespace, err, out
from aftermind.faces.encryption import SPREAD_SECONDS, Sealed


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(encrypt)
    app.command(name="rotate-keys")(rotate_keys)


def encrypt(*, namespace: Namespace = None) -> None:
    """Seal a namespace's messages, facts, blocks, summaries and profiles in the database, while it is used.

    Keep the master key (AFTERMIND_ENCRYPTION_KEY, else encryption.key in the state folder) where every worker and agent
    has it, and a copy of it: without it nothing of this can be read again.
    """
    err.print(f"[dim]waits {SPREAD_SECONDS:g} s where every process has to know of the key first[/]")
    done = console.with_memory(lambda memory: memory.encryption.encrypt(namespace=namespace))
    out.print(_told(done))


def rotate_keys(
    *,
    namespace: Namespace = None,
    master: Annotated[
        bool, typer.Option("--master", help="Only wrap the keys by the first of AFTERMIND_ENCRYPTION_KEY.")
    ] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Only delete old keys that nothing is sealed with any more.")
    ] = False,
) -> None:
    """Seal everything of a namespace with a new key, while it is used. The old key stays until --retire."""
    if master:
        count = console.with_memory(lambda memory: memory.encryption.rewrap(namespace=namespace))
        out.print(f"{count} keys are wrapped by the first master key.")
        return
    if retire:
        dropped = console.with_memory(lambda memory: memory.encryption.retire(namespace=namespace)).dropped
        out.print(f"Deleted: {', '.join(dropped)}." if dropped else "No key can be deleted.")
        return
    out.print(_told(console.with_memory(lambda memory: memory.encryption.rotate(namespace=namespace))))


def _told(done: Sealed) -> str:
    return escape(f"{done.namespace} is sealed with {done.key_id}: {done.rows:,} rows, in {done.passes} passes.")
