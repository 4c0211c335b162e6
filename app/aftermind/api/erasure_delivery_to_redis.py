"""Delivery of a committed erasure to Redis, where it removes the turns that it covers."""

import asyncio
from collections.abc import Sequence

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.ledger.protocol import Ledger
from aftermind.outbox.single_background_task import OneTask
from aftermind.stores.protocol import Store
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId
from aftermind.types.tombstone import Tombstone
from aftermind.wire.pending import Pending

log = get_logger(__name__)

RETRY_SECONDS = (0.05, 1.0)  # first and longest wait for a Redis that does not answer


async def deliver(
    db: Database, store: Store, ledger: Ledger, pending: Pending, stone: Tombstone, gone: Sequence[JobId] = ()
) -> list[JobId]:
    """Raise the generation in Redis and remove the turns that the tombstone covers; returns them, with those already
    `gone`. Their receipts report `forgotten`. A repetition changes nothing.
    """
    await settle_generation(db, pending.shard_of(stone.owner))
    removed = [*gone, *await pending.forget(stone)]
    async with db.transaction(namespace=stone.owner.namespace) as tx:
        await ledger.record_forgotten(tx, stone.owner, removed)
        await store.delivered(tx, stone)
    return removed


async def settle_generation(db: Database, pending: Pending) -> None:
    """Before an erasure: let Redis have the generation of turns that it accepted before it had any number."""
    _, begun = await pending.raise_generation()
    if begun is None:
        await pending.raise_generation(begun=await db.generation_floor())


async def deliver_all(
    db: Database, store: Store, ledger: Ledger, pending: Pending, namespace: str, *, away: set[Pending]
) -> int:
    """Every erasure of a namespace that Redis may not have; how many were delivered.

    Those of shards in `away` wait; one that does not answer is added.
    """
    async with db.transaction(namespace=namespace, read_only=True) as tx:
        waiting = await store.undelivered(tx, namespace)
    delivered = 0
    for stone in waiting:
        shard = pending.shard_of(stone.owner)
        if shard in away:
            continue
        try:
            await deliver(db, store, ledger, pending, stone)
            delivered += 1
        except errors.RedisUnavailable as exc:
            away.add(shard)
            log.warning("erasures wait", extra={"namespace": namespace, "error": str(exc)})
    return delivered


class Deliveries:
    """Erasures of this process that Redis has not accepted yet: retried until it does.

    If the process ends before, or `task` is cancelled, the reconciler sends them: the tombstones record undelivered
    ones.
    """

    def __init__(self, db: Database, store: Store, ledger: Ledger, pending: Pending) -> None:
        self._db, self._store, self._ledger, self._pending = db, store, ledger, pending
        self._waiting: list[tuple[Tombstone, Sequence[JobId]]] = []
        self.task = OneTask()

    def begin(self, stone: Tombstone, gone: Sequence[JobId]) -> None:
        """Send it from the running loop as soon as Redis answers."""
        self._waiting.append((stone, gone))
        self.task.start(self._run)

    async def _run(self) -> None:
        wait, longest = RETRY_SECONDS
        while self._waiting:
            stone, gone = self._waiting[0]
            try:
                await deliver(self._db, self._store, self._ledger, self._pending, stone, gone)
            except errors.Unavailable:
                self._waiting.append(self._waiting.pop(0))  # others may be of another shard
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)
            except Exception:  # the edge of a background task: the reconciler retries
                log.exception("an erasure was not delivered")
                self._waiting.pop(0)
            else:
                self._waiting.pop(0)
                wait = RETRY_SECONDS[0]
