"""Statements over the ranking models that namespaces have fitted."""

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg

_READ = text("SELECT embedder, models FROM aftermind.ranking_models WHERE namespace = :namespace ORDER BY embedder")
_WRITE = text(
    """
    INSERT INTO aftermind.ranking_models (namespace, embedder, models) VALUES (:namespace, :embedder, :models)
    ON CONFLICT (namespace, embedder) DO UPDATE SET models = excluded.models, fitted_at = now()
    """
)
_DELETE = text("DELETE FROM aftermind.ranking_models WHERE namespace = :namespace AND embedder = :embedder")


async def read(tx: Transaction, namespace: str) -> dict[str, str]:
    """See `Store.ranking_models`. By the primary key."""
    return {row.embedder: row.models for row in await pg(tx).rows(_READ, namespace=namespace)}


async def write(tx: Transaction, namespace: str, embedder: str, models: str | None) -> None:
    """See `Store.set_ranking_models`. Locks the one row."""
    named = {"namespace": namespace, "embedder": embedder}
    if models is None:
        await pg(tx).execute(_DELETE, named)
    else:
        await pg(tx).execute(_WRITE, {**named, "models": models})
