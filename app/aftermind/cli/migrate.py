"""`aftermind migrate`: bring the database to this release's schema."""

import asyncio

import typer

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import out
from aftermind.faces import addresses
from aftermind.settings import Settings

REDIS_SECONDS = 5.0
FILL_SECONDS = 600.0  # for one statement: the first reads every fact of every user


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(migrate)


def migrate() -> None:
    """Bring the database to this release's schema. Safe to repeat, and while the former release runs."""
    settings = console.settings()
    found = addresses.resolve(settings)
    if found.is_in_process:
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", found.store, "only Postgres has a schema to migrate.")
    revision = console.run(apply(settings, found.owner or found.store))
    console.run(load_functions(settings, found.required_redis))
    out.print(f"The schema is at {revision}, and Redis has the functions of this release.")


async def load_functions(settings: Settings, url: str) -> None:
    """Give Redis this release's functions: agents may call them and not load them. Raises `RedisUnavailable`."""
    from aftermind.wire import script  # with Redis's client, which `aftermind status` does without
    from aftermind.wire.connection import RedisLink
    from aftermind.wire.keys import Keys

    link = RedisLink(url, timeout=REDIS_SECONDS, name="aftermind-migrate")
    try:
        await script.load(link, Keys(settings.redis_prefix))
    finally:
        await link.close()


async def apply(settings: Settings, url: str) -> str:
    """Migrate for the embedder that the settings name, and fill in what the former release's workers left out since the
    last time; the revision that the database has then.
    """
    from aftermind.db import migrate as migrations  # with SQLAlchemy, which `aftermind status` does without
    from aftermind.db.postgres import PostgresDatabase
    from aftermind.llm import resolver
    from aftermind.llm.base import identity_of
    from aftermind.stores.postgres.catching_up import words_of_facts

    embedder = resolver.embedder(settings)
    identity = await asyncio.to_thread(identity_of, embedder) if embedder else None
    revision = await migrations.apply(url, embedder=identity, language=settings.language)
    database = PostgresDatabase(
        url,
        timeout_seconds=FILL_SECONDS,
        connect_timeout_seconds=settings.db_connect_timeout_seconds,
        pool_size=1,
        application_name="aftermind-migrate",
    )
    try:
        await words_of_facts(database)
    finally:
        await database.close()
    return revision
