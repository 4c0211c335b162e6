"""`aftermind migrate`: bring the database to this release's schema."""

import typer

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import out
from aftermind.db import migrate as migrations
from aftermind.faces import addresses
from aftermind.llm import resolver
from aftermind.settings import Settings


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
    out.print(f"The schema is at {revision}.")


async def apply(settings: Settings, url: str) -> str:
    """Migrate for the embedder that the settings name; the revision that the database has then."""
    embedder = resolver.embedder(settings)
    dimension = embedder.dimension if embedder else None
    name = embedder.name if embedder else None
    return await migrations.apply(url, dimension=dimension, embedder=name, language=settings.language)
