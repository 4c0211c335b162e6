"""`aftermind encrypt`, `rotate-keys`: content of a namespace sealed in the database."""

from typing import Annotated

import typer
from rich.markup import escape

from aftermind.api.encryption import SPREAD_SECONDS, EncryptionResult
from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, err, out
from aftermind.memory import Memory


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(encrypt)
    app.command(name="rotate-keys")(rotate_keys)


@terminal.with_json
def encrypt(*, namespace: Namespace = None) -> EncryptionResult:
    """Encrypt a namespace's messages, facts, blocks, summaries and profiles in the database, while it is in use.

    Give the master key (AFTERMIND_ENCRYPTION_KEY, else encryption.key in the state folder) to every worker and agent,
    and keep a copy of it: without it the content cannot be read again.
    """
    err.print(f"[dim]waits {SPREAD_SECONDS:g} s until every process has loaded the key[/]")
    done = terminal.with_memory(lambda memory: memory.encryption.encrypt(namespace=namespace))
    out.print(_result_line(done))
    return done


@terminal.with_json
def rotate_keys(
    *,
    namespace: Namespace = None,
    master: Annotated[
        bool,
        typer.Option(
            "--master",
            help="Only re-encrypt the keys of all encrypted namespaces, or of --namespace, with the first "
            "AFTERMIND_ENCRYPTION_KEY.",
        ),
    ] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Only delete old keys that encrypt no content any more.")
    ] = False,
) -> EncryptionResult | dict[str, int]:
    """Re-encrypt a namespace with a new key, while it is in use. The old key is kept until --retire."""
    if master:
        counts = terminal.with_memory(lambda memory: _rewrap(memory, namespace))
        for name, count in counts.items():
            out.print(f"{escape(name)}: {count} keys are encrypted with the first master key.")
        return counts
    if retire:
        done = terminal.with_memory(lambda memory: memory.encryption.retire(namespace=namespace))
        out.print(f"Deleted: {', '.join(done.dropped)}." if done.dropped else "No key can be deleted.")
        return done
    done = terminal.with_memory(lambda memory: memory.encryption.rotate(namespace=namespace))
    out.print(_result_line(done))
    return done


async def _rewrap(memory: Memory, namespace: str | None) -> dict[str, int]:
    names = [each.namespace for each in await memory.encryption.list()] if namespace is None else [namespace]
    # Of none, the error of the own namespace has the reason: it is not encrypted, or the role may not see others.
    return {name: await memory.encryption.rewrap(namespace=name) for name in names or [memory.namespace]}


def _result_line(done: EncryptionResult) -> str:
    return escape(f"{done.namespace} is encrypted with {done.key_id}: {done.rows:,} rows, in {done.passes} passes.")
