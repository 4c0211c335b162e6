"""Leader election: the holder of an advisory lock leads, for as long as its transaction lives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from aftermind.db.database_protocol import Database
from aftermind.db.postgres_transaction import pg

# The transaction's own lock, not the session's: a leader that is frozen in the middle loses its transaction, and with
# it the lock, after `idle_in_transaction_session_timeout`. A session's lock would be held until TCP times out.
_TRY_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0)) AS is_leader")


@asynccontextmanager
async def leading(database: Database, name: str) -> AsyncIterator[bool]:
    """Whether this process leads `name` for the block; never waits for another leader. Raises `StoreUnavailable`."""
    async with database.transaction() as tx:
        row = await pg(tx).row(_TRY_LOCK, name=name)
        yield bool(row is not None and row.is_leader)
