"""`aftermind migrate`: bring the database to this release's schema."""

import asyncio
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.cli import terminal
from aftermind.cli.terminal import out
from aftermind.settings import Settings

REDIS_SECONDS = 5.0

Check = Annotated[bool, typer.Option("--check", help="List pending migrations of the database and change nothing.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(migrate)


@terminal.with_json
def migrate(*, check: Check = False) -> dict[str, str] | dict[str, dict[str, str]]:
    """Migrate the database to this release's schema. Safe to repeat, also while the previous release runs.

    Of several databases (AFTERMIND_DATABASES) it migrates each, or only AFTERMIND_DATABASE if that is set. A migration
    locks the tables that it changes: writes to them wait, and recall answers without the rows that it cannot read in
    time. Then it gives Redis the functions of this release. --check lists the pending migrations of the database, does
    not check Redis, and changes nothing. Exit code 0: none is pending, 1: some are pending, 2: an error.
    """
    settings = Settings()
    if not settings.databases or "database" in settings.model_fields_set:
        databases = {"": settings}
    else:
        databases = {name: settings.of_database(name) for name in settings.database_names}
    if check:
        return _check_all(databases)
    if "" in databases:
        revision = _migrate(settings)
        out.print(f"The schema is at {revision}, and Redis has the functions of this release.")
        return {"revision": revision}
    revisions: dict[str, str] = {}
    for name, of_one in databases.items():
        try:
            revisions[name] = _migrate(of_one)
        except errors.AftermindError as exc:  # one that is away does not stop the others
            terminal.complain(f"{name}: {exc}")
        else:
            out.print(f"{name}: the schema is at {revisions[name]}, and Redis has the functions of this release.")
    if len(revisions) < len(databases):
        raise terminal.ExitWithResult(terminal.FAILED, revisions)
    return revisions


def _check_all(databases: Mapping[str, Settings]) -> dict[str, dict[str, str]]:
    """The pending migrations of each database, or of a single one as `pending`."""
    found: dict[str, dict[str, str]] = {}
    for name, settings in databases.items():
        prefix = f"{name}: " if name else ""
        try:
            found[name] = terminal.run(_pending(_postgres(settings)))
        except errors.AftermindError as exc:  # one that is away does not hide the others
            terminal.complain(f"{prefix}{exc}")
            continue
        for revision, what in found[name].items():
            out.print(f"{prefix}pending: {revision}. {escape(what)}")
        if not found[name]:
            out.print(f"{prefix}no migration is pending.")
    if len(found) < len(databases):
        raise terminal.ExitWithResult(terminal.FAILED, found)
    result = {"pending": found[""]} if "" in found else found
    if any(found.values()):
        out.print("While a migration runs, writes to the tables that it changes wait.")
        raise terminal.ExitWithResult(1, result)
    return result


async def _pending(url: str) -> dict[str, str]:
    from aftermind.db import migrate as migrations  # with SQLAlchemy, which `aftermind status` does without

    return await migrations.pending(url)


def _postgres(settings: Settings) -> str:
    found = address_resolution.resolve(settings)
    if found.is_in_process:
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", found.scheme, "only Postgres has a schema to migrate.")
    return found.owner or found.store


def _migrate(settings: Settings) -> str:
    revision = terminal.run(apply(settings, _postgres(settings)))
    terminal.run(load_functions(settings, address_resolution.resolve(settings).required_redis))
    return revision


async def load_functions(settings: Settings, url: str) -> None:
    """Give Redis this release's functions: agents may call them and not load them. Raises `RedisUnavailable`."""
    from aftermind.wire.redis import script  # with Redis's client, which `aftermind status` does without
    from aftermind.wire.redis.client import RedisLink, run_all, split_shards
    from aftermind.wire.redis_keys import Keys

    link = RedisLink(url, timeout=REDIS_SECONDS, name="aftermind-migrate")
    try:
        await run_all(script.load(*shard) for shard in split_shards(link, Keys(settings.redis_prefix)))
    finally:
        await link.close()


async def apply(settings: Settings, url: str) -> str:
    """Migrate for the embedder that the settings name, and return the new revision."""
    from aftermind.db import migrate as migrations  # with SQLAlchemy, which `aftermind status` does without
    from aftermind.llm import factory
    from aftermind.llm.protocols import embedder_identity

    embedder = factory.embedder(settings)
    identity = await asyncio.to_thread(embedder_identity, embedder) if embedder else None
    return await migrations.apply(url, embedder=identity, language=settings.language)
