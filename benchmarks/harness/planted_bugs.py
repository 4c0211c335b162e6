"""Faults of our own making, one a run: each has to turn the comparison red, or the harness proves nothing.

They are planted in the harness's workers only, by replacing one function of each process that the environment names.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import text

from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import PgTransaction
from aftermind.ledger.postgres import leases as working
from aftermind.ledger.postgres import replay_step as stepping
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.postgres.replay_step import ReplayEngine
from aftermind.ledger.replay_protocol import Step
from aftermind.types import JobId, Lease, LeaseToken, Watermark
from aftermind.types.replay import PlanId
from aftermind_tasks import store
from aftermind_tasks.store_turns import Effects
from aftermind_tasks.turn_preparation import Prepared
from aftermind_workers import batching, reconciler

VARIABLE = "NOTHING_LOST_PLANT"
WINDOW = 0.3  # seconds between the two halves of what ought to be one step; without a fault a few milliseconds


class Plant(StrEnum):
    """What is broken on purpose."""

    ACK_BEFORE_COMMIT = "a job is acknowledged before its effect is committed"
    NO_FENCE = "an effect commits without the fence"
    NO_RECONCILER = "no reconciler runs"
    SHORT_LEASE = "a lease is shorter than its job, and nobody beats"
    EARLY_WATERMARK = "the watermark is taken before COMMIT"
    EARLY_CLEAR = "pending is cleared before COMMIT"
    POP_BEFORE_PUSH = "a replay takes the letter away before it puts the successor in"


def environment(plant: Plant | None) -> Mapping[str, str]:
    """What tells a process of ours which fault it has."""
    if plant is None:
        return {}
    more = {
        Plant.SHORT_LEASE: {
            "AFTERMIND_LEASE_SECONDS": "0.4",
            "AFTERMIND_HEARTBEAT_SECONDS": "0.399",
        },  # renewed too late
        Plant.NO_FENCE: {"AFTERMIND_MODEL_TIMEOUT_SECONDS": "30"},  # a zombie's call is not over when it wakes up
    }
    return {VARIABLE: plant.name, **more.get(plant, {})}


def has_reconciler(plant: Plant | None) -> bool:
    """Whether a reconciler is to be started."""
    return plant is not Plant.NO_RECONCILER


def plant(environ: Mapping[str, str]) -> None:
    """Break this process as its environment says, if it says so."""
    name = environ.get(VARIABLE)
    if name is not None:
        _PLANTS[Plant[name]]()


def _replace(owner: object, name: str, by: object) -> None:
    setattr(owner, name, by)


# a job is acknowledged before its effect is committed


def _ack_before_commit() -> None:
    claim = PostgresLedger.claim

    async def acknowledged(self: PostgresLedger, *args: Any, **named: Any) -> list[Lease]:  # Any: as the original
        leases = await claim(self, *args, **named)
        async with self._database.transaction() as tx:
            await working.close(tx, leases, "done", "done")
        return leases

    async def close(tx: object, leases: Sequence[Lease], *args: Any, **named: Any) -> frozenset[JobId]:
        return frozenset(lease.job.id for lease in leases)

    async def heartbeat(self: object, leases: Sequence[Lease], **named: Any) -> frozenset[LeaseToken]:
        return frozenset(lease.token for lease in leases)

    async def nothing(*args: Any, **named: Any) -> None:
        return None

    _replace(PostgresLedger, "claim", acknowledged)
    _replace(PostgresLedger, "heartbeat", heartbeat)
    _replace(PostgresLedger, "finish_all", lambda self, tx, leases: close(tx, leases))
    for name in ("finish", "save_answer", "retry", "snooze", "mark_dead"):
        _replace(PostgresLedger, name, nothing)


# an effect commits without the fence


def _no_fence() -> None:
    fence = "AND jobs.token = held.token AND jobs.state = 'running'"
    unfenced = str(working._CLOSE)
    assert fence in unfenced, "the fence has moved: plant the fault anew"
    _replace(working, "_CLOSE", text(unfenced.replace(fence, "")))
    _no_heartbeat()  # it would stop a zombie before the fence has to


def _no_heartbeat() -> None:
    def unheld(renew: object, **named: Any) -> Any:  # Any: as the original
        return nullcontext()

    _replace(batching, "held", unheld)


# no reconciler runs


def _no_reconciler() -> None:
    async def nothing(*args: Any, **named: Any) -> None:
        return None

    _replace(reconciler, "run", nothing)


# the watermark is taken before COMMIT


def _early_watermark() -> None:
    early: ContextVar[Watermark | None] = ContextVar("early", default=None)
    watermark, write = PostgresDatabase.connection_watermark, store._Batch._write

    async def told(self: PostgresDatabase, run: PgTransaction) -> Watermark:
        return early.get() or await watermark(self, run)

    async def written(self: store._Batch, namespace: str, prepared: Prepared) -> Effects:
        early.set(await self._runtime.db.watermark())
        await asyncio.sleep(WINDOW)
        try:
            return await write(self, namespace, prepared)
        finally:
            early.set(None)

    _replace(PostgresDatabase, "connection_watermark", told)
    _replace(store._Batch, "_write", written)


# pending is cleared before COMMIT


def _early_clear() -> None:
    write = store._Batch._write

    async def cleared(self: store._Batch, namespace: str, prepared: Prepared) -> Effects:
        pending = self._runtime.pending
        assert pending is not None
        await pending.settle([one.job_id for one, _ in self.groups[namespace]], watermark=None)
        await asyncio.sleep(WINDOW)
        return await write(self, namespace, prepared)

    _replace(store._Batch, "_write", cleared)


# a replay takes the letter away before it puts the successor in


def _pop_before_push() -> None:
    late: list[tuple[Any, Mapping[UUID, UUID]]] = []  # Any: a plan's row
    insert, step = stepping._insert, ReplayEngine.step

    async def popped(tx: PgTransaction, plan: Any, fresh: Mapping[UUID, UUID]) -> set[UUID]:
        late.append((plan, fresh))
        return set(fresh)

    async def stepped(self: ReplayEngine, plan_id: PlanId, *, limit: int = 100) -> Step:
        done = await step(self, plan_id, limit=1)
        while late:
            await asyncio.sleep(WINDOW)
            plan, fresh = late.pop()
            async with self._database.transaction() as tx:
                await insert(tx, plan, fresh)
        return done

    _replace(stepping, "_insert", popped)
    _replace(ReplayEngine, "step", stepped)


_PLANTS: Mapping[Plant, Callable[[], None]] = {
    Plant.ACK_BEFORE_COMMIT: _ack_before_commit,
    Plant.NO_FENCE: _no_fence,
    Plant.NO_RECONCILER: _no_reconciler,
    Plant.SHORT_LEASE: _no_heartbeat,
    Plant.EARLY_WATERMARK: _early_watermark,
    Plant.EARLY_CLEAR: _early_clear,
    Plant.POP_BEFORE_PUSH: _pop_before_push,
}
