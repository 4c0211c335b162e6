"""`memory.tenants`: moves a tenant to another database of the map while it is served, and deletes what stays behind.

Steps of a move, each of which a repeated call continues:

1. Rows are copied while the source serves the tenant, user by user, until only few differ by their checksums.
2. Writes pause: workers take none of its jobs, and `aftermind.enter` refuses transactions that write. Turns wait in
   Redis or the spool, recall continues. The last rows are copied; counts and checksums of all tables must be equal.
3. From here the move cannot be aborted. The other Redis gets the turns that wait; then one script of the source's Redis
   refuses later turns, if the other one has all. Agents follow: accept and recall return the other database.
4. The target serves the tenant with its jobs, dead letters, keys and webhooks. The source keeps its rows until `purge`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.db.postgres_url import with_password_file
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, Json, Scope
from aftermind.types.audit import Action
from aftermind.types.scope import owner_from_columns
from aftermind.types.tenant_move import PurgedTenant, TenantMove
from aftermind.wire.pending import SCRIPT_TURNS, Offer, PendingLimits
from aftermind.wire.redis_keys import Keys
from aftermind.wire.watermark import SCRIPT_OWNERS, Watermarks

if TYPE_CHECKING:  # they load SQLAlchemy
    from aftermind.api.memory_services import Parts
    from aftermind.db.tenant_moves import Checksums, TenantRows

log = get_logger(__name__)

FEW_ROWS = 2_000  # of users that changed during a pass: the last pass, for which writes pause, copies as many
MOST_PASSES = 10  # while the tenant is served; each copies what changed during the one before
LAST_PASSES = 5  # while writes pause: pruning and leases that run out still change rows
BATCH_ROWS = 20_000  # of one transaction, or one user
DRAIN_SECONDS = 5.0  # for jobs that run, before writes pause; those of longer model calls are repeated in the target
PAUSE_SEEN_SECONDS = 2.0  # workers read pauses once a second
POLL_SECONDS = 0.1
STOP_TRIES = 30  # each waits `LOCK_TIMEOUT` for transactions of the tenant that are open
NOTHING_TO_PURGE = "`purge` deletes what a tenant left behind in a database after `aftermind tenants move`."
_MANY = 2**53  # the largest number of Lua
# These turns have been accepted once.
_NO_LIMITS = PendingLimits(turns=_MANY, size_bytes=_MANY, age=timedelta(days=3_650), turns_of_user=_MANY)

Progress = Callable[[str], None]


class Tenants:
    """Moves of tenants between the databases of `AFTERMIND_DATABASES`. For operators: each call uses `migrator_url`.

    Every call raises `InvalidSettings` if there is one database only, or none with this name.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def move(self, namespace: str, *, to: str, on_step: Progress = lambda step: None) -> TenantMove:
        """Move a tenant to the database `to` while it is served. A repeated call continues where one was stopped.

        Writes of the tenant pause while the last rows are copied and all are compared: about as long as the database
        needs to read them. `on_step` is called with a line of text at each step. Raises `StoreUnavailable` or
        `RedisUnavailable` if a component does not answer: the tenant is then served where it was, and its writes
        continue, unless the switch had begun. Raises `InvalidSettings` if the target has other rows of the tenant, for
        an external index, and while a replay plan has jobs of the tenant; `EmbedderMismatch`, `ReembeddingConflict`.
        """
        source = self._check(namespace, to)
        async with self._open(namespace, source, to) as move:
            move.on_step = on_step
            return await move.run()

    async def abort(self, namespace: str, *, to: str) -> None:
        """End a move that was stopped before its switch: the source serves the tenant, and the copy is deleted.

        Raises `InvalidSettings` if there is no such move, or if its switch has begun: then only `move` can end it.
        """
        source = self._check(namespace, to)
        async with self._open(namespace, source, to) as move:
            await move.abort()

    async def purge(self, namespace: str, *, database: str) -> PurgedTenant:
        """Delete a tenant's rows in a database that it has left. It cannot be undone.

        Raises `InvalidSettings` if another database does not serve the tenant.
        """
        if not self._settings.databases and database in self._settings.database_names:
            why = f"it serves namespace {namespace!r}, so there is nothing to purge. {NOTHING_TO_PURGE}"
            raise errors.InvalidSettings("database", database, why)
        parts = self._parts(database)
        async with _open_end(parts, namespace) as left:
            state, other = await left.state()
            if state != "moved" or other is None:
                why = f"namespace {namespace!r} has not been moved to another database, so there is nothing to purge. "
                why += NOTHING_TO_PURGE
                raise errors.InvalidSettings("database", database, why)
            for _ in self._settings.database_names:  # it may have moved on from there
                async with _open_end(self._parts(other), namespace) as there:
                    at, further = await there.state()
                if at in ("incoming", "arrived"):
                    why = f"the move of {namespace!r} to {other!r} has not ended. Run it again."
                    raise errors.InvalidSettings("database", database, why)
                if at != "moved" or further is None:
                    break
                other = further
            self._settings.follow_move(namespace, other)
            await _audit(self._parts(other), namespace, Action.ERASE, {"left database": database})
            return PurgedTenant(namespace=namespace, database=database, rows=await left.delete())

    def _check(self, namespace: str, to: str) -> str:
        """The database that a tenant is moved from."""
        Scope(namespace=namespace)
        self._parts(to)
        placed = self._settings.database_for(namespace)
        if self._settings.of_database(to).index_url is not None:
            why = "rows of an external index are not moved. Move tenants of databases without one."
            raise errors.InvalidSettings("index_url", "…", why)
        for database in (placed, to):
            pending = self._parts(database).pending
            if pending is not None and len(pending.shards) > 1:  # a switch is one call, and would need one per shard
                why = "a tenant is not moved from or to a Redis Cluster: its turns are in several shards."
                raise errors.InvalidSettings("redis_url", f"that of {database!r}", why)
        return placed

    def _parts(self, database: str) -> "Parts":
        if self._settings.moved.parts is None or database not in self._settings.database_names:
            names = ", ".join(self._settings.database_names)
            more = "" if self._settings.databases else " only. It names the databases that tenants can be moved to"
            raise errors.InvalidSettings("database", database, f"AFTERMIND_DATABASES has {names}{more}.")
        parts: Parts = self._settings.moved.parts(database)
        return parts

    @asynccontextmanager
    async def _open(self, namespace: str, placed: str, to: str) -> AsyncIterator["_Move"]:
        """Both ends of the move to `to`, from where the tenant is now: `placed`, unless it has moved since."""
        async with AsyncExitStack() as opened:
            target = await opened.enter_async_context(_open_end(self._parts(to), namespace))
            _, other = await target.state()  # of this move, or of an earlier one out of there
            source_name = placed if other is None else other
            for _ in self._settings.database_names:
                if source_name == to:
                    break
                source = await opened.enter_async_context(_open_end(self._parts(source_name), namespace))
                at, further = await source.state()
                if at != "moved" or further in (None, to):
                    if self._settings.database_for(namespace) != source_name and at != "moved":
                        self._settings.follow_move(namespace, source_name)  # an earlier one, unknown to this process
                    yield _Move(self._settings, self._parts(source_name), source, self._parts(to), target)
                    return
                source_name = str(further)
            why = f"it serves namespace {namespace!r} already."
            raise errors.InvalidSettings("to", to, why)


class _Move:
    """One move, with both ends open."""

    def __init__(
        self,
        settings: Settings,
        source_parts: "Parts",
        source: "TenantRows",
        target_parts: "Parts",
        target: "TenantRows",
    ) -> None:
        self._settings, self._source, self._target = settings, source, target
        self._from, self._to = source_parts, target_parts
        self._namespace = source.namespace
        self.on_step: Progress = lambda step: None
        self._rows = self._passes = 0
        self._changed: list[str] = []  # tables with rows that differed in the last pass
        self._paused_seconds = 0.0

    async def run(self) -> TenantMove:
        await self._lock()
        state, _ = await self._source.state()
        if state in (None, "incoming", "arrived", "copying", "paused"):
            await self._begin(state)
            await self._copy_while_served()
            await self._copy_the_rest()
        if (await self._source.state())[0] == "leaving":
            await self._switch()
        await self._serve()
        return TenantMove(
            namespace=self._namespace,
            source=self._source.database,
            target=self._target.database,
            rows=self._rows,
            passes=self._passes,
            paused_seconds=self._paused_seconds,
        )

    async def abort(self) -> None:
        await self._lock()
        state, other = await self._source.state()
        if state not in ("copying", "paused") and (await self._target.state())[0] != "incoming":
            why = "no move to this database can be aborted."
            raise errors.InvalidSettings("namespace", self._namespace, why)
        if state not in (None, "copying", "paused") or (other or self._target.database) != self._target.database:
            why = f"its switch to {other!r} has begun. Run the move again: it ends there."
            raise errors.InvalidSettings("namespace", self._namespace, why)
        await self._source.cancel()
        await self._target.delete()
        await self._target.cancel()
        await _audit(self._from, self._namespace, Action.MOVE, {"to": self._target.database, "step": "aborted"})

    async def _lock(self) -> None:
        """Until both connections end. An abort deletes the copy, so it must not run during a move."""
        if not (await self._source.lock() and await self._target.lock()):
            why = "another process moves this tenant. Wait for its end."
            raise errors.InvalidSettings("namespace", self._namespace, why)

    async def _begin(self, state: str | None) -> None:
        from aftermind.db import tenant_moves

        if state in ("incoming", "arrived"):
            why = f"it is being moved to {self._source.database!r}. End that move first."
            raise errors.InvalidSettings("namespace", self._namespace, why)
        if plans := await self._source.count_unfinished_plans():
            why = f"{plans:,} replay plans have jobs of it. Let them end, or `aftermind replay abort` them."
            raise errors.InvalidSettings("namespace", self._namespace, why)
        at, other = await self._target.state()
        is_begun = at == "incoming" and other == self._source.database
        if not is_begun and await self._target.checksums():
            how = "delete them by `aftermind tenants purge`" if at == "moved" else "no move has copied them"
            why = f"it has rows of namespace {self._namespace!r}: {how}."
            raise errors.InvalidSettings("to", self._target.database, why)
        await tenant_moves.match_embedders(owner_url(self._from), owner_url(self._to))
        await self._target.set_state(tenant_moves.INCOMING, self._source.database)
        await self._target.pause_jobs()
        if state is None:
            await _audit(self._from, self._namespace, Action.MOVE, {"to": self._target.database, "step": "begun"})
            await self._source.set_state(tenant_moves.COPYING, self._target.database)
        await asyncio.sleep(PAUSE_SEEN_SECONDS)

    async def _copy_while_served(self) -> None:
        for _ in range(MOST_PASSES):
            self.on_step("copying while the tenant is served")
            if await self._copy_changed() <= FEW_ROWS:
                return

    async def _copy_the_rest(self) -> None:
        """Writes pause from here. They continue in the source if this fails."""
        from aftermind.db import tenant_moves

        self.on_step("pausing its jobs")
        began: float | None = None
        try:
            await self._source.pause_jobs()
            await asyncio.sleep(PAUSE_SEEN_SECONDS)
            await self._drain()
            began = monotonic()
            await self._stop_writes()
            self.on_step("writes pause: copying the last rows")
            for _ in range(LAST_PASSES):
                # Later turns are accepted under this number at least, so that no moved erasure covers them.
                number = await self._target.raise_generation(await self._source.generation())
                if await self._copy_changed() == 0:
                    break
            else:
                why = f"rows still change although writes are paused, in {', '.join(self._changed)}"
                raise errors.StoreUnavailable(f"database {self._source.database!r}", why, "Repeat the move later.")
            await self._prepare_redis(number)
            self._paused_seconds = monotonic() - began
            await self._source.set_state(tenant_moves.LEAVING, self._target.database)
        except BaseException:
            if (await self._source.state())[0] in ("copying", "paused"):
                await self._source.set_state(tenant_moves.COPYING, self._target.database)
                await self._source.resume_jobs()
            raise

    async def _drain(self) -> None:
        for _ in range(round(DRAIN_SECONDS / POLL_SECONDS)):
            if not await self._source.count_running_jobs():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _stop_writes(self) -> None:
        for left in range(STOP_TRIES, 0, -1):
            try:
                await self._source.stop_writes(self._target.database)
                return
            except errors.StatementAborted:
                if left == 1:
                    raise
                await asyncio.sleep(POLL_SECONDS)

    async def _copy_changed(self) -> int:
        """Copy users whose rows differ; returns how many rows those have."""
        from aftermind.db import tenant_moves

        there, here = await asyncio.gather(self._target.checksums(), self._source.checksums())
        changed = tenant_moves.find_changed(here, there)
        self._rows, self._changed = sum(each.rows for each in here.values()), sorted({table for table, _ in changed})
        self._passes += 1
        users = sorted({user for _, user in changed if user is not None})
        copied = int(any(user is None for _, user in changed))
        if copied:
            await self._source.copy(self._target, None)
        for batch, rows in _batches(users, here):
            copied += rows or 1  # a user that has only rows in the target
            await self._source.copy(self._target, batch)
        return copied

    async def _prepare_redis(self, number: int) -> None:
        """Before the target serves it: no replica that lacks the rows is read, and no erasure covers later turns."""
        pending, redis = self._to.pending, self._to.redis
        assert pending is not None
        assert redis is not None  # of every Postgres store
        await pending.raise_generation(number)
        watermark, watermarks = await self._target.watermark(), Watermarks(redis, Keys(self._to.settings.redis_prefix))
        users = await self._target.list_users()
        for start in range(0, len(users), SCRIPT_OWNERS):
            owners = [owner_from_columns(self._namespace, user) for user in users[start : start + SCRIPT_OWNERS]]
            await watermarks.raise_to(watermark, owners)

    async def _switch(self) -> None:
        from aftermind.db import tenant_moves

        self.on_step("switching")
        there = self._to.pending
        assert there is not None
        await self._target.set_state(tenant_moves.ARRIVED, self._source.database)
        await there.serve_here(self._namespace)
        await self._forward()
        await self._source.leave(self._target.database)

    async def _serve(self) -> None:
        state, other = await self._target.state()
        is_new = state == "arrived" and other == self._source.database
        if is_new:
            await self._target.serve(copied=self._source)
        # What a Redis that has lost the switch accepted since, and turns that were handed over before it.
        await self._forward()
        self._settings.follow_move(self._namespace, self._target.database)
        if is_new:
            await _audit(self._to, self._namespace, Action.MOVE, {"from": self._source.database, "step": "ended"})
        self.on_step(f"served by {self._target.database!r}")

    async def _forward(self) -> None:
        """Give the other Redis the turns that wait, refuse later ones, and remove those that it has."""
        here, there = self._from.pending, self._to.pending
        assert here is not None
        assert there is not None
        _, begun = await here.raise_generation()
        known: dict[JobId, Offer] = {}
        while True:
            offers, since_ms = await here.list_namespace(self._namespace, begun=begun or 0)
            new = [offer for offer in offers if offer.turn.job_id not in known]
            for start in range(0, len(new), SCRIPT_TURNS):
                await there.accept(new[start : start + SCRIPT_TURNS], limits=_NO_LIMITS)
            known |= {offer.turn.job_id: offer for offer in new}
            if not await here.switch(self._namespace, self._target.database, since_ms=since_ms, known=known):
                break
        ids = list(known)
        for start in range(0, len(ids), SCRIPT_TURNS):
            await here.settle(ids[start : start + SCRIPT_TURNS], watermark=None)


def owner_url(parts: "Parts") -> str:
    """The URL of the owner of the tables of a database."""
    url = parts.settings.migrator_url or parts.settings.database_url
    assert url is not None  # a map names the database of each entry
    return with_password_file(url.get_secret_value(), parts.settings.database_password_file)


async def _audit(parts: "Parts", namespace: str, action: Action, detail: Mapping[str, Json]) -> None:
    assert parts.trail is not None  # databases of a map have one
    async with parts.db.transaction(namespace=namespace) as tx:
        await parts.trail.append(tx, namespace, action, detail=detail)
    await parts.trail.anchor()


@asynccontextmanager
async def _open_end(parts: "Parts", namespace: str) -> AsyncIterator["TenantRows"]:
    from aftermind.db import migrate, tenant_moves

    url, settings = owner_url(parts), parts.settings
    await migrate.check(url)
    async with tenant_moves.open_rows(
        url,
        database=settings.database,
        namespace=namespace,
        connect_seconds=settings.db_connect_timeout_seconds,
    ) as rows:
        await rows.check_role()
        yield rows


def _batches(users: list[str], rows: "Checksums") -> list[tuple[list[str], int]]:
    """Users, and how many rows those of a batch have together: about `BATCH_ROWS`."""
    counts: dict[str | None, int] = {}
    for (_, user), each in rows.items():
        counts[user] = counts.get(user, 0) + each.rows
    batches: list[tuple[list[str], int]] = []
    for user in users:
        count = counts.get(user, 0)
        if batches and batches[-1][1] + count <= BATCH_ROWS:
            batches[-1] = ([*batches[-1][0], user], batches[-1][1] + count)
        else:
            batches.append(([user], count))
    return batches
