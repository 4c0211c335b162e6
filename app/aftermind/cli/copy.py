"""`aftermind copy`: everything from one store into another."""

from typing import Annotated

import typer

from aftermind.api.copy import CopiedPartition, copy_store
from aftermind.cli import console
from aftermind.cli.console import AsJson, err, out
from aftermind.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(copy)


def copy(
    source: Annotated[str, typer.Argument(help="The store to read: sqlite:./bot.db, json:./folder, redis://…")],
    destination: Annotated[str, typer.Argument(help="The store to fill: empty, or filled in part by this command.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Copy all users and jobs into another store, and verify them. A repeated call continues.

    Both stores must be closed. Later changes of the source are not copied.
    """
    done: list[CopiedPartition] = []
    with err.status("Copying …") as status:
        for each in copy_store(source, destination, key_prefix=Settings().redis_prefix):
            done.append(each)
            status.update(f"Copying … {each.number:,} of {each.of:,} partitions")
    counts = {
        "partitions": len(done),
        "rows": sum(each.rows for each in done),
        "bytes": sum(each.bytes for each in done),
        "were_there": sum(each.was_there for each in done),
    }
    if as_json:
        console.print_json(counts)
        return
    out.print(
        f"{counts['partitions']:,} partitions (one for each user, and one for jobs), {counts['rows']:,} rows, "
        f"{counts['bytes']:,} bytes: copied and verified. {counts['were_there']:,} were there already."
    )
