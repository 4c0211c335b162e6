"""`aftermind migrate`: bring the database to this release's schema."""

import asyncio

import typer

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.cli import terminal
from aftermind.cli.terminal import out
from aftermind.settings import Settings

REDIS_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(migrate)


@terminal.with_json
def migrate() -> dict[str, str]:
    """Migrate the database to this release's schema. Safe to repeat, also while the previous release runs.

    Of several databases (AFTERMIND_DATABASES) it migrates each, or only AFTERMIND_DATABASE if that is set.
    """
    settings = Settings()
    if not settings.databases or "database" in settings.model_fields_set:
        revision = _migrate(settings)
        out.print(f"The schema is at {revision}, and Redis has the functions of this release.")
        return {"revision": revision}
    revisions: dict[str, str] = {}
    for name in settings.database_names:
        try:
            revisions[name] = _migrate(settings.of_database(name))
        except errors.AftermindError as exc:  # one that is away does not stop the others
            terminal.complain(f"{name}: {exc}")
        else:
            out.print(f"{name}: the schema is at {revisions[name]}, and Redis has the functions of this release.")
    if len(revisions) < len(settings.database_names):
        raise terminal.ExitWithResult(terminal.FAILED, revisions)
    return revisions


def _migrate(settings: Settings) -> str:
    found = address_resolution.resolve(settings)
    if found.is_in_process:
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", found.scheme, "only Postgres has a schema to migrate.")
    revision = terminal.run(apply(settings, found.owner or found.store))
    terminal.run(load_functions(settings, found.required_redis))
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
