"""Deletes old rows in small batches: finished jobs, attempts, events, tombstones, expired episodes and those that
retention policies keep no longer.

It runs next to the reconciler that leads, in the same process, but apart: a slow archive must not delay notifications.
It holds no lock: its steps may run twice concurrently without harm, and can stop at any point.
"""

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from aftermind import errors
from aftermind.api.audit_anchors import witnesses
from aftermind.api.retention.policies import BATCH_EPISODES, DuePolicies, Retention
from aftermind.db import age_pruning, webhook_deliveries
from aftermind.db.audit.log import Trail, whoami
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyfiles import audit_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.stores.postgres import vector_index
from aftermind.stores.postgres.retention import PostgresRetention
from aftermind.telemetry.logger import get_logger
from aftermind.types import Scope
from aftermind.types.retention import RetentionPolicy
from aftermind_tasks.runtime import Runtime
from aftermind_workers import isolated_background_steps

log = get_logger(__name__)

BATCH_ROWS = 1_000  # of one statement, so that no lock is held for long
ROUND_SECONDS = 1.5  # limit of one step in one round
INDEX_STEPS = 20  # of 200 vectors each, for an owner with more episodes than the exact-scan limit


@dataclass(slots=True)
class Janitor:
    """One that clears away, between its rounds."""

    runtime: Runtime
    _due_policies: DuePolicies = field(init=False)

    def __post_init__(self) -> None:
        keeping = PostgresRetention(self.runtime.vault or Vault())
        every = timedelta(seconds=self.runtime.settings.retention_every_seconds)
        self._due_policies = DuePolicies(self.runtime.db, keeping, partial(self._retention, keeping), every=every)

    async def round(self) -> bool:
        """One round of all steps; returns whether there is more work now. Raises nothing but cancellation."""
        steps = (
            self._jobs,
            self._attempts,
            self._events,
            self._deliveries,
            self._tombstones,
            self._audit,
            self._vectors,
            self._expired,
            self._policies,
        )
        return any([await self._alone(step) for step in steps])

    async def _alone(self, step: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await step()
        except errors.Unavailable as exc:
            log.warning("janitor skips", extra={"step": step.__name__, "error": str(exc)})
        except Exception:  # the edge of a step: the others do not depend on it
            log.exception("janitor step failed", extra={"step": step.__name__})
        return False

    async def _jobs(self) -> bool:
        age = timedelta(days=self.runtime.settings.job_retention_days)
        return await self._batches(lambda: self.runtime.ledger.prune(older_than=age, limit=BATCH_ROWS))

    async def _attempts(self) -> bool:
        age = timedelta(days=self.runtime.settings.attempt_retention_days)
        return await self._batches(
            lambda: self._own(lambda tx: age_pruning.attempts(tx, older_than=age, limit=BATCH_ROWS))
        )

    async def _events(self) -> bool:
        age = timedelta(days=self.runtime.settings.event_retention_days)
        return await self._batches(lambda: self.runtime.events.prune(older_than=age, limit=BATCH_ROWS))

    async def _deliveries(self) -> bool:
        return await self._batches(lambda: self._own(lambda tx: webhook_deliveries.prune(tx, limit=BATCH_ROWS)))

    async def _tombstones(self) -> bool:
        age = timedelta(days=self.runtime.settings.tombstone_retention_days)

        async def prune(namespace: str) -> bool:
            return await self._batches(
                lambda: self._own(
                    lambda tx: age_pruning.tombstones(tx, namespace, older_than=age, limit=BATCH_ROWS), namespace
                )
            )

        namespaces = await age_pruning.namespaces(self.runtime.db)
        return any(await isolated_background_steps.run_each("tombstones", namespaces, prune))

    async def _audit(self) -> bool:
        trail, age = self._trail(), timedelta(days=self.runtime.settings.audit_retention_days)
        async with self.runtime.db.transaction(read_only=True) as tx:
            heads = await trail.heads(tx)

        async def prune(name: str) -> bool:
            return await self._batches(
                lambda: self._own(lambda tx: trail.prune(tx, name, older_than=age, limit=BATCH_ROWS), name)
            )

        is_more = any(await isolated_background_steps.run_each("audit", heads, prune))
        for witness in trail.witnesses:
            await witness.prune(heads)
        return is_more

    async def _vectors(self) -> bool:
        most, ends_at = self.runtime.settings.exact_search_max_rows, time.monotonic() + ROUND_SECONDS

        async def index(owner: Scope) -> bool:
            if time.monotonic() <= ends_at:
                await vector_index.index(self.runtime.db, owner, steps=INDEX_STEPS)
                return False  # the rest of an owner is work for the next round
            return True

        owners = await vector_index.grown(self.runtime.db, more_than=most)
        return any(await isolated_background_steps.run_each("vectors", owners, index))

    async def _expired(self) -> bool:
        keeping, ends_at = PostgresRetention(self.runtime.vault or Vault()), time.monotonic() + ROUND_SECONDS
        namespaces = await age_pruning.expired_namespaces(self.runtime.db)
        random.shuffle(namespaces)  # as below

        async def delete(name: str) -> bool:
            retention = self._retention(keeping, name)
            while time.monotonic() <= ends_at:
                if await retention.delete_expired() < BATCH_EPISODES:
                    return False
            return True

        return any(await isolated_background_steps.run_each("expired", namespaces, delete))

    async def _policies(self) -> bool:
        ends_at = time.monotonic() + ROUND_SECONDS

        async def apply(policy: RetentionPolicy) -> bool:
            return await self._due_policies.apply(policy, seconds=ends_at - time.monotonic())

        return any(await isolated_background_steps.run_each("policies", await self._due_policies.list(), apply))

    def _retention(self, keeping: PostgresRetention, namespace: str) -> Retention:
        return Retention(
            db=self.runtime.db,
            store=self.runtime.store,
            ledger=self.runtime.ledger,
            keeping=keeping,
            effect=self._effect,
            namespace=namespace,
            trail=self._trail(),
            is_indexed=self.runtime.index is not None,
        )

    def _trail(self) -> Trail:
        """The audit trail as this process writes it."""
        settings, redis = self.runtime.settings, self.runtime.redis
        anchors = [] if redis is None else witnesses(settings.audit_dir, redis, self.runtime.keys)
        return Trail(audit_keys(settings.audit_key, settings.state_dir), anchors, actor=f"janitor of {whoami()}")

    async def _effect(self, owner: Scope, work: Callable[[Transaction], Awaitable[object]]) -> object:
        async with self.runtime.db.transaction(namespace=owner.namespace) as tx:
            result = await work(tx)
            undelivered = await self.runtime.note_undelivered(tx, [owner])
        await self.runtime.after_commit([owner], [], {}, undelivered=undelivered)
        return result

    async def _own(self, work: Callable[[Transaction], Awaitable[int]], namespace: str | None = None) -> int:
        async with self.runtime.db.transaction(namespace=namespace) as tx:
            return await work(tx)

    async def _batches(self, delete: Callable[[], Awaitable[int]]) -> bool:
        """Delete batch by batch until nothing is left or time is up; whether anything may be left."""
        ends_at = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < ends_at:
            if await delete() < BATCH_ROWS:
                return False
        return True


async def run(
    runtime: Runtime,
    *,
    until: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]],
    is_leader: Callable[[], bool],
) -> None:
    """A round every `settings.housekeeping_seconds`, and immediately while there is more than a round's work."""
    janitor = Janitor(runtime=runtime)
    while not until():
        is_idle = False
        try:
            is_idle = is_leader() and not await janitor.round()
        except Exception:  # the edge of the loop: an error of one round must not end the clearing away
            log.exception("janitor round failed")
        seconds = runtime.settings.housekeeping_seconds if is_idle else runtime.settings.reconcile_seconds
        await pause(min(seconds, runtime.settings.housekeeping_seconds))
