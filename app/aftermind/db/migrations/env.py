"""Run by Alembic over the connection of `db.migrate`: in its transaction, or else in one for each migration."""

from alembic import context

from aftermind.db import tables

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=tables.METADATA,
    version_table=tables.VERSION_TABLE,
    version_table_schema=tables.SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
