"""Searches every place that can have content of a user."""

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.api.address_resolution import REDIS, Addresses
from aftermind.indexes.client import IndexClient
from aftermind.outbox.spool import foreign_files
from aftermind.outbox.spool_deployment import Deployment
from aftermind.settings import Settings
from aftermind.types import EmbedderIdentity, Scope
from aftermind.types.erasure_report import ErasureReport, SearchedPlace
from aftermind.wire.erasure_scan_redis import in_redis
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

if TYPE_CHECKING:
    from aftermind.db.engine import PostgresDatabase

TABLE_SCAN_TIMEOUT_SECONDS = 600.0  # for one table: an operator asks, and every row of every user is read
MAPPED_BYTES = 2**20  # beyond it a file is not read into memory


class ErasureScan:
    """Searches Postgres, its replicas, Redis, this host's spool and its logs, over separate connections; and the vector
    index. `in_rows` searches a store of this process, which has no other place: rows of all users, those that contain a
    text, and those of an owner.
    """

    def __init__(
        self,
        settings: Settings,
        where: Addresses,
        index: IndexClient | None,
        identify: Callable[[], Awaitable[EmbedderIdentity]],
        *,
        deployment: Deployment | None = None,
        in_rows: Callable[[Scope, Sequence[str]], Awaitable[tuple[int, int, int]]] | None = None,
    ) -> None:
        self._settings, self._where, self._index, self._identify = settings, where, index, identify
        self._deployment, self._in_rows = deployment, in_rows

    async def scan(self, owner: Scope, texts: Sequence[str]) -> ErasureReport:
        """Every place, the primary's tables first. Raises `StoreUnavailable` where the primary does not answer."""
        indexed = [] if self._index is None else [await self._in_index(self._index, owner)]
        if self._in_rows is not None:
            rows, found, owned = await self._in_rows(owner, texts)
            store = SearchedPlace(name=self._where.scheme, examined=f"{rows:,} rows", found=found, owned=owned)
            return ErasureReport(places=(store, *indexed))
        return ErasureReport(
            places=(
                *await self._in_postgres(owner, texts),
                *await self._in_redis(owner, texts),
                await asyncio.to_thread(self._in_spool, texts),
                await asyncio.to_thread(_in_files, "logs", self._settings.state_dir / "logs", texts),
                *indexed,
            )
        )

    def _in_spool(self, texts: Sequence[str]) -> SearchedPlace:
        """Searches the files for other deployments too; an erasure does not reach those, so they are named."""
        found = _in_files("spool", self._settings.spool_dir, texts)
        foreign = foreign_files(self._settings.spool_dir, self._deployment)
        if found.missing or not foreign:
            return found
        return replace(
            found, missing=f"files for another deployment, where a forget deletes nothing: {foreign[0].parent}"
        )

    async def _in_index(self, index: IndexClient, owner: Scope) -> SearchedPlace:
        """Entries of the user. An index has no texts, so none is searched for."""
        name = f"index {index.name}"
        try:
            embedder = await self._identify()
            owned, total = await index.count(owner, embedder), await index.count(None, embedder)
        except errors.AftermindError as exc:
            return SearchedPlace(name=name, missing=str(exc))
        return SearchedPlace(name=name, examined=f"{total:,} entries", owned=owned)

    async def _in_postgres(self, owner: Scope, texts: Sequence[str]) -> list[SearchedPlace]:
        from aftermind.db.encryption.keyfiles import master_keys
        from aftermind.db.encryption.keyring import Vault
        from aftermind.db.erasure_scan_tables import in_tables, on_replica  # only users of Postgres load SQLAlchemy
        from aftermind.stores.postgres.erasure_scan_encrypted import EncryptedRowSearch

        opener = EncryptedRowSearch(Vault(master_keys(self._settings.encryption_key, self._settings.state_dir)))
        primary = self._open(self._where.owner or self._where.store)
        replicas = [self._open(url) for url in self._where.replicas]
        try:
            mark = await primary.watermark()
            places = await in_tables(primary, owner, texts, opener=opener)
            places += [await on_replica(each, owner, texts, after=mark, opener=opener) for each in replicas]
        finally:
            for each in (primary, *replicas):
                await each.close()
        return places

    async def _in_redis(self, owner: Scope, texts: Sequence[str]) -> list[SearchedPlace]:
        keys = Keys(self._settings.redis_prefix)
        urls = {"redis": self._where.required_redis}
        broker = self._where.required_broker
        if broker != urls["redis"] and broker.split("://")[0] in REDIS:
            urls["broker"] = broker
        places = []
        for name, url in urls.items():
            link = RedisLink(url, timeout=10.0, connections=2, name="aftermind-looking")
            places.append(await in_redis(link, keys, owner, texts, name=name))
            await link.close()
        return places

    def _open(self, url: str) -> "PostgresDatabase":
        from aftermind.db.engine import PostgresDatabase

        return PostgresDatabase(
            url,
            timeout_seconds=TABLE_SCAN_TIMEOUT_SECONDS,
            connect_timeout_seconds=self._settings.db_connect_timeout_seconds,
            pool_size=1,
            application_name="aftermind-looking",
            pooled=self._settings.database_pooler,
        )


def _in_files(name: str, folder: Path, texts: Sequence[str]) -> SearchedPlace:
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    spelt = [each.encode() for each in texts]
    found, size = 0, 0
    for path in paths:
        try:
            found += (
                sum(map(path.read_bytes().count, spelt)) if path.stat().st_size < MAPPED_BYTES else _mapped(path, spelt)
            )
            size += path.stat().st_size
        except FileNotFoundError:  # sent or deleted in between
            continue
        except OSError as exc:
            return SearchedPlace(name=name, missing=f"{path} cannot be read: {exc.strerror}")
    return SearchedPlace(name=name, examined=f"{len(paths)} files, {size:,} bytes", found=found)


def _mapped(path: Path, spelt: Sequence[bytes]) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return sum(data.find(text) >= 0 for text in spelt)
