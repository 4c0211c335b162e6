"""The vectors of a database as `api.reembed` changes them: columns of `episodes`, by the owner of the tables."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aftermind import errors
from aftermind.api.address_resolution import Addresses
from aftermind.api.reembed import COMPARE_SECONDS, Reembeddings, Searches
from aftermind.db import reembedding_column as db_reembed
from aftermind.db.encryption.keyfiles import master_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.llm.protocols import Embedder
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.postgres.search_exhaustive import EVERY_EPISODE
from aftermind.types import EmbedderIdentity, EpisodeId, NewJob, Scope
from aftermind.types.reembedding import Reembedding, ReembeddingCounts, ReembeddingSteps

ENQUEUED_AT_ONCE = 1_000  # jobs a transaction


class PostgresVectors:
    """See `StoredVectors`. Reads connect for themselves.

    Changes use the connection that holds the lock of the command: if it ends, they end with it, before another command
    can have the lock.
    """

    def __init__(self, where: Addresses, settings: Settings) -> None:
        self._where, self._settings = where, settings
        self._owner_url = where.owner or where.store
        self._exclusive: db_reembed.Connection | None = None

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with db_reembed.connected(self._owner_url, alone=True) as connection:
            self._exclusive = connection
            try:
                yield
            finally:
                self._exclusive = None

    async def read(self) -> Reembedding:
        async with db_reembed.connected(self._owner_url) as connection:
            return await db_reembed.read(connection)

    async def count(self) -> ReembeddingCounts:
        async with db_reembed.connected(self._owner_url) as connection:
            return await db_reembed.count(connection)

    async def steps(self, target: EmbedderIdentity) -> ReembeddingSteps:
        async with db_reembed.connected(self._owner_url) as connection:
            return await db_reembed.steps(connection, target)

    async def lacking(self, embedder: EmbedderIdentity) -> Sequence[Scope]:
        async with db_reembed.connected(self._owner_url) as connection:
            stored = (await db_reembed.read(connection)).stored
            return await db_reembed.lacking(connection, embedder, stored)

    async def sample(
        self, *, limit: int, namespace: str | None, user_id: str | None
    ) -> Sequence[tuple[Scope, EpisodeId]]:
        async with db_reembed.connected(self._owner_url) as connection:
            return await db_reembed.sample(connection, limit=limit, namespace=namespace, user=user_id)

    async def begin(self, target: EmbedderIdentity) -> None:
        await self._change(lambda connection: db_reembed.begin(connection, target))

    async def index_standby(self) -> None:
        await db_reembed.index_standby(self._locked())

    async def exchange(self) -> None:
        await self._change(db_reembed.exchange)

    async def drop_standby(self) -> None:
        await self._change(db_reembed.drop_standby)

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        database = PostgresDatabase(self._owner_url, timeout_seconds=60.0, pool_size=1)
        ledger = PostgresLedger(database)
        try:
            for first in range(0, len(jobs), ENQUEUED_AT_ONCE):
                async with database.transaction() as tx:
                    await ledger.enqueue(tx, jobs[first : first + ENQUEUED_AT_ONCE])
        finally:
            await database.close()

    @asynccontextmanager
    async def open_searches(self) -> AsyncIterator[Searches]:
        vault = Vault(master_keys(self._settings.encryption_key, self._settings.state_dir))
        database = PostgresDatabase(
            self._where.store,
            session_settings=READ_SETTINGS,
            timeout_seconds=COMPARE_SECONDS,
            allow_owner=self._settings.allow_owner,
            pooled=self._settings.database_pooler,
        )
        try:
            yield Searches(
                database=database,
                store=PostgresStore(language_for=self._settings.language_for, vault=vault),
                active=PostgresSearch(vault, whole=EVERY_EPISODE),
                standby=PostgresSearch(vault, whole=EVERY_EPISODE, standby=True),
            )
        finally:
            await database.close()

    async def _change(self, work: Callable[[db_reembed.Connection], Awaitable[None]]) -> None:
        from aftermind.db import migrate  # Alembic: loaded only for a change

        connection = self._locked()

        async def change() -> None:
            await work(connection)
            await connection.commit()

        await migrate.patiently(connection, change)

    def _locked(self) -> db_reembed.Connection:
        if self._exclusive is None:
            raise errors.Bug("a change of the vectors without `exclusive`.")
        return self._exclusive


def open_reembeddings(where: Addresses, settings: Settings, *, embedder: Embedder | None = None) -> Reembeddings:
    """Those of a database."""
    return Reembeddings(PostgresVectors(where, settings), settings, embedder=embedder)
