"""`aftermind copy`: everything from one store into another."""

from typing import Annotated

import typer

from aftermind.api import address_resolution
from aftermind.api.copy_store import CopiedPartition, copy_store
from aftermind.cli import terminal
from aftermind.cli.terminal import err, out
from aftermind.settings import Settings

EMBEDDED = "embedded"  # names the Postgres of the embedded stack that runs


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(copy)


@terminal.with_json
def copy(
    source: Annotated[str, typer.Argument(help="The store to read: sqlite:./bot.db, redis://…, postgresql://…")],
    destination: Annotated[str, typer.Argument(help="The store to fill: empty, or filled in part by this command.")],
    *,
    update: Annotated[
        bool, typer.Option("--update", help="Copy users again that have changed in the source since an earlier run.")
    ] = False,
) -> dict[str, int]:
    """Copy all users and jobs into another store, and verify them. A repeated call continues.

    A store of one process must be closed. Postgres is named by the URL of the owner of its tables, or as `embedded` if
    it is that of `aftermind up`; stop its workers and agents while it is the destination. Later changes of the source
    are copied by --update.
    """
    done: list[CopiedPartition] = []
    with err.status("Copying …") as status:
        for each in copy_store(_url(source), _url(destination), settings=Settings(), update=update):
            done.append(each)
            status.update(f"Copying … {each.number:,} of {each.of:,} partitions")
    counts = {
        "partitions": len(done),
        "rows": sum(each.rows for each in done),
        "bytes": sum(each.bytes for each in done),
        "were_there": sum(each.was_there for each in done),
    }
    out.print(
        f"{counts['partitions']:,} partitions (one for each user, and one for jobs), {counts['rows']:,} rows, "
        f"{counts['bytes']:,} bytes: copied and verified. {counts['were_there']:,} were there already."
    )
    return counts


def _url(store: str) -> str:
    if store != EMBEDDED:
        return store
    settings = Settings()
    unnamed = settings.model_copy(update={"database_url": None, "broker_url": None, "redis_url": None})
    return address_resolution.resolve(unnamed).owner or ""
