"""Postgres as source or destination of a copy: its rows as those of a store of one process, and back."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from aftermind import errors
from aftermind.api.journalled_tables import make_codec
from aftermind.db import migrate
from aftermind.db import reembedding_column as db_reembed
from aftermind.db.encryption.keyfiles import master_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_url import with_password_file
from aftermind.db.record_store_journals.protocol import Batch
from aftermind.db.record_store_journals.row_codec import OWNER, SHARED, dump_owner
from aftermind.db.row_level_security import STANDING
from aftermind.events.types import from_json
from aftermind.ledger.postgres import copy_job_rows as ledger_rows
from aftermind.settings import Settings
from aftermind.stores.postgres import copy_owner_rows as store_rows
from aftermind.stores.postgres.copy_owner_rows import Rows
from aftermind.types import StoredEmbedders
from aftermind.types.scope import owner_from_columns

T = TypeVar("T")
CODEC = make_codec()
STATEMENT_SECONDS = 600.0  # the largest user is one transaction
PAUSE_SECONDS = 2.0  # workers read pauses once a second
ONE_SNAPSHOT = {"default_transaction_isolation": "repeatable read"}  # a user is read by several statements
NOT_COMPARED = (
    "api_keys",
    "embedders",
    "generation",
    "hold_history",
    "job_pauses",
    "replay_plans",
    "replay_items",
    "webhook_deliveries",
    "webhooks",
)  # set, raised or left out by a copy


class PostgresPartitions:
    """A `Journal` over the tables of Postgres, for copies alone. `url` is that of the owner of the tables.

    From the first row that is written until `resume`, workers are paused: jobs come first, and their users later. A
    partition that is written replaces the one that is there. Each is one transaction, and is read from one snapshot.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        self._url, self._settings = with_password_file(url, settings.database_password_file), settings
        self._vault = Vault(master_keys(settings.encryption_key, settings.state_dir))
        self._db = PostgresDatabase(
            self._url,
            timeout_seconds=STATEMENT_SECONDS,
            pool_size=1,
            application_name="aftermind copy",
            session_settings=ONE_SNAPSHOT,
        )
        self.name = self._db.name
        self._is_paused = False

    def open(self) -> None:
        """Check schema and role. Raises `SchemaOutdated`, and `InvalidSettings` for a role that does not see all."""
        self._thread, self._runner = ThreadPoolExecutor(1, thread_name_prefix="aftermind-copy"), asyncio.Runner()
        try:
            self._run(self._check())
        except BaseException:
            self.close()
            raise

    def partitions(self) -> Iterable[str]:
        """Users with rows; and what belongs to no user, if there is any of it."""
        return self._run(self._partitions())

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        """Rows as a store of one process writes them."""
        found = self._run(self._read(partition))
        for table, rows in found.items():
            for key, row in rows.items():
                dumped_key, dumped = CODEC.dump(table, key, row)
                assert dumped is not None  # no row is deleted
                yield table, dumped_key, dumped

    def commit(self, batch: Batch) -> None:
        """Replace partitions by the rows of the batch. One that only deletes does nothing: new rows follow."""
        for partition, rows in batch.items():
            if not rows or any(row is not None for row in rows.values()):
                self._run(self._write(partition, decode(self.name, rows)))

    def compact(self, partitions: Iterable[str]) -> None:
        """Nothing to do: deleted rows are vacuumed."""

    def close(self) -> None:
        """Disconnect. Without `resume` workers remain paused: the copy is not whole."""
        try:
            self._run(self._db.close())
        finally:
            self._stop()

    def resume(self) -> None:
        """End the pause of workers, also that of an earlier run."""
        self._run(self._resume())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine may be sent
        return self._thread.submit(self._runner.run, work).result()

    def _stop(self) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    async def _check(self) -> None:
        await migrate.check(self._url)
        async with self._db.transaction() as tx:
            role = await tx.record(STANDING)
            plans = await ledger_rows.count_unfinished_plans(tx)
        if role is None or not (role["bypasses"] or role["owns"]):
            why = "a copy reads and writes all users: use the URL of the owner of the tables (AFTERMIND_MIGRATOR_URL)."
            raise errors.InvalidSettings("role", None if role is None else role["role"], why)
        if plans:
            refuse_unfinished_plans(self.name, plans)

    async def _partitions(self) -> list[str]:
        async with self._db.transaction() as tx:
            owners = await store_rows.list_owners(tx)
            is_shared = bool(owners) or any((await store_rows.read_shared(tx)).values())
            is_shared = is_shared or not await ledger_rows.is_empty(tx)
        return [dump_owner(owner) for owner in ([SHARED] if is_shared else []) + owners]

    async def _read(self, partition: str) -> Rows:
        owner = OWNER.validate_json(partition)
        if owner == SHARED:
            embedders = await self._read_embedders()
            async with self._db.transaction() as tx:
                shared = {**await store_rows.read_shared(tx), **await ledger_rows.read(tx)}
            return {**shared, "embedders": {"active": embedders.active}}
        async with self._db.transaction(namespace=owner[0]) as tx:
            rows = await store_rows.read(tx, owner_from_columns(*owner), vault=self._vault)
        return {**rows, "events": {number: from_json(event) for number, event in rows["events"].items()}}

    async def _write(self, partition: str, rows: Rows) -> None:
        owner = OWNER.validate_json(partition)
        if owner == SHARED:
            await self._write_shared(rows)
            return
        events = {number: event.to_json() for number, event in rows.get("events", {}).items()}
        async with self._db.transaction(namespace=owner[0]) as tx:
            scope = owner_from_columns(*owner)
            await store_rows.clear(tx, scope)
            if any(rows.values()):
                given = {**rows, "events": events}
                await store_rows.write(tx, scope, given, vault=self._vault, language_for=self._settings.language_for)

    async def _write_shared(self, rows: Rows) -> None:
        if plans := [each for each in rows.get("replay_plans", {}).values() if not each.plan.state.is_final]:
            refuse_unfinished_plans("the source", len(plans))
        await self._pause()
        await self._adopt_embedder(rows)
        async with self._db.transaction() as tx:
            await store_rows.clear_shared(tx)
            await ledger_rows.clear(tx)
            await store_rows.write_shared(tx, rows)
            await ledger_rows.write(tx, rows)

    async def _adopt_embedder(self, rows: Rows) -> None:
        """Raises `EmbedderMismatch` if the database has vectors of another one."""
        wanted = rows.get("embedders", {}).get("active")
        if wanted is None:
            return
        async with db_reembed.connected(self._url, alone=True) as connection:
            stored = await db_reembed.adopt(connection, wanted)
            await connection.commit()
        if stored.active != wanted:
            raise errors.EmbedderMismatch(stored.active, wanted)

    async def _read_embedders(self) -> StoredEmbedders:
        async with db_reembed.connected(self._url) as connection:
            return (await db_reembed.read(connection)).stored

    async def _pause(self) -> None:
        if not self._is_paused:
            async with self._db.transaction() as tx:
                await ledger_rows.pause(tx)
            self._is_paused = True
            await asyncio.sleep(PAUSE_SECONDS)

    async def _resume(self) -> None:
        async with self._db.transaction() as tx:
            await ledger_rows.resume(tx)


def decode(store: str, rows: Mapping[tuple[str, str], bytes | None]) -> Rows:
    """Rows as objects; deleted ones are left out."""
    found: Rows = {}
    for (table, key), row in rows.items():
        if row is not None:
            loaded_key, loaded = CODEC.load(store, table, key, row)
            found.setdefault(table, {})[loaded_key] = loaded
    return found


def comparable(rows: Rows) -> Rows:
    """Rows as they compare between Postgres and a store of one process, which keep some of them in another form."""
    jobs = rows.get("jobs", {})
    made: Rows = {name: table for name, table in rows.items() if name not in NOT_COMPARED}
    made["counted"] = {key: row for key, row in made.get("counted", {}).items() if row != (None, 0)}
    made["facts"] = {
        key: replace(row, sources=tuple(sorted(set(row.sources)))) for key, row in made.get("facts", {}).items()
    }
    stones = made.get("tombstones", {}).values()
    made["tombstones"] = dict(enumerate(replace(each, at=None) for each in stones))
    made["vectors"] = {key: row.astype("<f2").tobytes() for key, row in made.get("vectors", {}).items()}
    made["items"] = {
        key: (row, None if row.vectors is None else row.vectors.tobytes()) for key, row in made.get("items", {}).items()
    }
    not_copied = {"opening": None, "edited": None, "action_id": None, "former_state": None}
    made["jobs"] = {key: replace(row, **not_copied) for key, row in jobs.items()}
    follows = {key: tuple(sorted(each for each in row if each in jobs)) for key, row in made.get("follows", {}).items()}
    made["follows"] = {key: row for key, row in follows.items() if row}
    spending = made.get("spending", {}).values()
    made["spending"] = {
        (each.owner, each.day, each.kind, each.spent.model or "unknown"): replace(each.spent, model=None)
        for each in spending
    }
    return {name: table for name, table in made.items() if table}


def refuse_unfinished_plans(store: str, count: int) -> None:
    """Replay plans are not copied, and their jobs would wait for them."""
    why = f"{store} has {count:,} unfinished replay plans. Let them end, or `aftermind replay abort` them, then copy."
    raise errors.InvalidSettings("replay plans", count, why)
