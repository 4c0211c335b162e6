"""Whether rows of any tenant were made with a key that is kept outside the database."""

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryTransaction
from aftermind.db.postgres_transaction import pg

_IS_USED = text("SELECT aftermind.is_key_used(:what) AS used")  # with its owner's rights, so that it sees all tenants


async def is_used(tx: Transaction, what: str) -> bool:
    """`what`: `audit_key`, `encryption_key` or `webhook_key`."""
    if isinstance(tx, MemoryTransaction):
        return what == "webhook_key" and bool(tx.table("webhooks"))
    row = await pg(tx).row(_IS_USED, what=what)
    return row is None or bool(row.used)
