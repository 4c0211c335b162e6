"""The store on Postgres."""

from aftermind.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
