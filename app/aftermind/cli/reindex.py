"""`aftermind reindex`: rewrite the external vector index."""

import hashlib
from typing import Annotated

import typer

from aftermind import private_files
from aftermind.cli import terminal
from aftermind.cli.terminal import Namespace, err, out
from aftermind.memory import Memory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reindex)


@terminal.with_json
def reindex(
    *,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user. Default: all users.")] = None,
    namespace: Namespace = None,
    recreate: Annotated[
        bool,
        typer.Option("--recreate", help="Delete the collection first: after a change of the embedder."),
    ] = False,
) -> dict[str, int]:
    """Rewrite the vector index from the store, and compare them. A repeated call continues where one was stopped."""

    async def work(memory: Memory) -> tuple[int, int, int, int]:
        name = hashlib.sha256((namespace or memory.namespace).encode()).hexdigest()[:16]
        place = memory.settings.state_dir / f"reindex-{name}"  # the last user of a run that was stopped
        is_whole = user is None
        if recreate:
            place.unlink(missing_ok=True)
        after = place.read_text() if is_whole and place.exists() else None
        users = entries = added = removed = 0
        with err.status("Rewriting entries …") as status:
            async for each in memory.reindex(user_id=user, namespace=namespace, after=after, recreate=recreate):
                users, entries = users + 1, entries + each.entries
                added, removed = added + each.added, removed + each.removed
                status.update(f"Rewriting entries … {users:,} users, {entries:,} entries")
                if is_whole:
                    private_files.write(place, (each.user_id or "").encode())
        if is_whole:
            place.unlink(missing_ok=True)
        return users, entries, added, removed

    users, entries, added, removed = terminal.with_memory(work)
    out.print(f"{users:,} users, {entries:,} entries: {added:,} were missing, {removed:,} had no message.")
    return {"users": users, "entries": entries, "added": added, "removed": removed}
