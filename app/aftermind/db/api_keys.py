"""Keys to the HTTP service, in Postgres and in a store of one process."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import ClassVar

from sqlalchemy import Row, TextClause, text

from aftermind import errors
from aftermind.db.audit.log import Trail
from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.inmemory_database import MemoryDatabase, mem
from aftermind.db.postgres_transaction import pg
from aftermind.db.record_store_journals.row_codec import Table
from aftermind.types.api_key import ApiKey, Right
from aftermind.types.audit import Action
from aftermind.types.message import Json

_COLUMNS = """namespace, id, name, rights, secret_sha256, created_at, expires_at, revoked_at,
    revoked_at IS NULL AND coalesce(clock_timestamp() < expires_at, true) AS is_valid"""

_ADD = text(
    f"""
    INSERT INTO aftermind.api_keys (namespace, id, name, rights, secret_sha256, expires_at)
    VALUES (:namespace, :id, :name, CAST(:rights AS text[]), :secret, :expires_at)
    RETURNING {_COLUMNS}
    """
)
_OF = text(f"SELECT {_COLUMNS} FROM aftermind.api_keys WHERE namespace = :namespace ORDER BY created_at, id")
_REVOKE = text(
    "UPDATE aftermind.api_keys SET revoked_at = clock_timestamp() "
    "WHERE namespace = :namespace AND id = :id AND revoked_at IS NULL"
)
_FIND = text(f"SELECT {_COLUMNS} FROM aftermind.api_key(:id)")
_ANY = text("SELECT aftermind.has_api_keys() AS found")

NODE_SECONDS = 0.25  # that a lookup waits for a node if there is another one
PAUSE_SECONDS = 2.0  # that the primary is not asked after it did not answer, if there are replicas


class PostgresApiKeys:
    """See `aftermind.api.api_keys`; a key is made and revoked with an entry in the trail. All raise
    `StoreUnavailable`.

    Keys are read from `replicas` while the primary does not answer, so that recalls over HTTP are admitted then.
    """

    def __init__(self, database: Database, *, replicas: Sequence[Database] = (), trail: Trail | None = None) -> None:
        self._database, self._replicas, self._trail = database, replicas, trail
        self._primary_from = 0.0  # time from which the primary is asked first

    async def add(
        self,
        namespace: str,
        key_id: str,
        *,
        name: str,
        rights: frozenset[Right],
        secret_sha256: bytes,
        expires_at: datetime | None,
    ) -> ApiKey:
        """See `StoredKeys.add`."""
        async with self._database.transaction(namespace=namespace) as tx:
            row = await pg(tx).row(
                _ADD,
                namespace=namespace,
                id=key_id,
                name=name,
                rights=sorted(rights),
                secret=secret_sha256,
                expires_at=expires_at,
            )
            assert row is not None
            if not row.is_valid:
                raise errors.InvalidKey("expires_at", expires_at, "it is over already, by the database's clock.")
            await self._noted(
                tx, namespace, {"api_key": key_id, "was": "added", "rights": list(map(str, sorted(rights)))}
            )
        await self._anchor()
        return _key(row)

    async def list_for(self, namespace: str) -> list[ApiKey]:
        """Every key of a namespace, revoked ones too, the oldest first."""
        async with self._database.transaction(namespace=namespace, read_only=True) as tx:
            return [_key(row) for row in await pg(tx).rows(_OF, namespace=namespace)]

    async def revoke(self, namespace: str, key_id: str) -> bool:
        """Whether there was such a key to revoke."""
        async with self._database.transaction(namespace=namespace) as tx:
            was_open = await pg(tx).count(_REVOKE, namespace=namespace, id=key_id) == 1
            if was_open:
                await self._noted(tx, namespace, {"api_key": key_id, "was": "revoked"})
        await self._anchor()
        return was_open

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """A key of any namespace with the SHA-256 of its secret."""
        row = await self._row(_FIND, id=key_id)
        return None if row is None else (_key(row), bytes(row.secret_sha256))

    async def any(self) -> bool:
        """Whether any namespace has ever had a key."""
        row = await self._row(_ANY)
        return bool(row and row.found)

    async def _row(self, statement: TextClause, **named: object) -> Row[tuple[object, ...]] | None:
        """From the primary, else from a replica. A row that a replica lacks may be new, so the primary decides."""

        async def read(node: Database) -> Row[tuple[object, ...]] | None:
            async with node.transaction(read_only=True) as tx:
                return await pg(tx).row(statement, **named)

        if not self._replicas:
            return await read(self._database)
        if monotonic() >= self._primary_from:
            with suppress(errors.Unavailable, TimeoutError):
                async with asyncio.timeout(NODE_SECONDS):
                    return await read(self._database)
            self._primary_from = monotonic() + PAUSE_SECONDS
        for node in self._replicas:
            with suppress(errors.Unavailable, TimeoutError):
                async with asyncio.timeout(NODE_SECONDS):
                    row = await read(node)
                if row is not None:
                    return row
        return await read(self._database)

    async def _noted(self, tx: Transaction, namespace: str, said: dict[str, Json]) -> None:
        if self._trail is not None:
            await self._trail.append(tx, namespace, Action.KEYS, detail=said)

    async def _anchor(self) -> None:
        if self._trail is not None:
            await self._trail.anchor()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key as a store of one process keeps it. Whether it is valid is decided when it is read."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}
    key: ApiKey
    secret_sha256: bytes


TABLES = {"api_keys": Table(str, KeyRow)}


class InMemoryApiKeys:
    """See `PostgresApiKeys`: the keys of every namespace of one process."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def add(
        self,
        namespace: str,
        key_id: str,
        *,
        name: str,
        rights: frozenset[Right],
        secret_sha256: bytes,
        expires_at: datetime | None,
    ) -> ApiKey:
        now = self._database.now()
        if expires_at is not None and expires_at <= now:
            raise errors.InvalidKey("expires_at", expires_at, "it is over already, by the clock of this host.")
        made = ApiKey(id=key_id, namespace=namespace, name=name, rights=rights, created_at=now, expires_at=expires_at)
        async with self._database.transaction(namespace=namespace) as tx:
            mem(tx).put(mem(tx).table("api_keys"), key_id, KeyRow(key=made, secret_sha256=secret_sha256))
        return made

    async def list_for(self, namespace: str) -> list[ApiKey]:
        async with self._database.transaction(namespace=namespace, read_only=True) as tx:
            rows: list[KeyRow] = list(mem(tx).table("api_keys").values())
        found = [self._as_of_now(row.key) for row in rows if row.key.namespace == namespace]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def revoke(self, namespace: str, key_id: str) -> bool:
        async with self._database.transaction(namespace=namespace) as tx:
            rows: dict[str, KeyRow] = mem(tx).table("api_keys")
            row = rows.get(key_id)
            if row is None or row.key.namespace != namespace or row.key.revoked_at is not None:
                return False
            mem(tx).put(rows, key_id, replace(row, key=replace(row.key, revoked_at=self._database.now())))
        return True

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        async with self._database.transaction(read_only=True) as tx:
            row: KeyRow | None = mem(tx).table("api_keys").get(key_id)
        return None if row is None else (self._as_of_now(row.key), row.secret_sha256)

    async def any(self) -> bool:
        async with self._database.transaction(read_only=True) as tx:
            return bool(mem(tx).table("api_keys"))

    def _as_of_now(self, key: ApiKey) -> ApiKey:
        is_over = key.expires_at is not None and key.expires_at <= self._database.now()
        return replace(key, is_valid=key.revoked_at is None and not is_over)


def _key(row: Row[tuple[object, ...]]) -> ApiKey:
    return ApiKey(
        id=row.id,
        namespace=row.namespace,
        name=row.name,
        rights=frozenset(map(Right, row.rights)),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        is_valid=row.is_valid,
    )
