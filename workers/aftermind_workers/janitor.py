"""Clears away what is old, in small batches: finished jobs, attempts, events, tombstones, and what policies let go.

It runs beside the reconciler, wherever that runs, under a lock of its own: an archive that is slow to answer must not
keep anybody from ringing. What it does may be done twice at once without harm, and stops anywhere.
"""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from aftermind import errors
from aftermind.db import pruning, webhooks
from aftermind.db.audit import Trail, whoami
from aftermind.db.base import Transaction
from aftermind.db.keyfiles import audit_keys
from aftermind.db.leader import leading
from aftermind.db.vault import Vault, no_masters
from aftermind.faces.retention import Retention
from aftermind.faces.witnesses import witnesses
from aftermind.stores.postgres import indexing
from aftermind.stores.postgres.keeping import PostgresKeeping
from aftermind.types import Scope
from aftermind_tasks.runtime import Runtime

log = logging.getLogger(__name__)

LEADER = "aftermind.janitor"  # begins the names of the advisory locks
BATCH_ROWS = 1_000  # of one statement, so that no lock is held for long
# Of one step in one round. Its lock's transaction is idle meanwhile, and ends at `db_timeout_seconds` x 2.
ROUND_SECONDS = 1.5
INDEX_STEPS = 20  # of 200 vectors each, for an owner who has outgrown comparing them one by one


@dataclass(slots=True)
class Janitor:
    """One that clears away, between its rounds."""

    runtime: Runtime
    # Behind which user the run of each namespace goes on.
    _stopped: dict[str, str | None] = field(default_factory=dict, init=False)

    async def round(self) -> bool:
        """One round of what nobody else does at this moment; whether anything is left to do at once.

        Each step has a lock of its own, so that none waits for the time that another one takes. Raises nothing but
        cancellation.
        """
        steps = (
            self._jobs,
            self._attempts,
            self._events,
            self._deliveries,
            self._tombstones,
            self._audit,
            self._vectors,
            self._policies,
        )
        return any([await self._alone(step) for step in steps])

    async def _alone(self, step: Callable[[], Awaitable[bool]]) -> bool:
        try:
            async with leading(self.runtime.db, f"{LEADER}{step.__name__}") as is_leader:
                return is_leader and await step()
        except errors.Unavailable as exc:
            log.warning("janitor skips", extra={"step": step.__name__, "error": str(exc)})
            return False

    async def _jobs(self) -> bool:
        age = timedelta(days=self.runtime.settings.job_retention_days)
        return await self._batches(lambda: self.runtime.ledger.prune(older_than=age, limit=BATCH_ROWS))

    async def _attempts(self) -> bool:
        age = timedelta(days=self.runtime.settings.attempt_retention_days)
        return await self._batches(lambda: self._own(lambda tx: pruning.attempts(tx, older_than=age, limit=BATCH_ROWS)))

    async def _events(self) -> bool:
        age = timedelta(days=self.runtime.settings.event_retention_days)
        return await self._batches(lambda: self.runtime.events.prune(older_than=age, limit=BATCH_ROWS))

    async def _deliveries(self) -> bool:
        return await self._batches(lambda: self._own(lambda tx: webhooks.prune(tx, limit=BATCH_ROWS)))

    async def _tombstones(self) -> bool:
        age = timedelta(days=self.runtime.settings.tombstone_retention_days)
        is_more = False
        for namespace in await pruning.namespaces(self.runtime.db):
            is_more |= await self._batches(
                lambda namespace=namespace: self._own(  # type: ignore[misc]  # mypy cannot type a default
                    lambda tx: pruning.tombstones(tx, namespace, older_than=age, limit=BATCH_ROWS), namespace
                )
            )
        return is_more

    async def _audit(self) -> bool:
        trail, age = self._trail(), timedelta(days=self.runtime.settings.audit_retention_days)
        async with self.runtime.db.transaction(read_only=True) as tx:
            heads = await trail.heads(tx)
        is_more = False
        for name in heads:
            is_more |= await self._batches(
                lambda name=name: self._own(  # type: ignore[misc]  # as above
                    lambda tx: trail.prune(tx, name, older_than=age, limit=BATCH_ROWS), name
                )
            )
        for witness in trail.witnesses:
            await witness.prune(heads)
        return is_more

    async def _vectors(self) -> bool:
        most, ends_at = self.runtime.settings.exact_search_max_rows, time.monotonic() + ROUND_SECONDS
        for owner in await indexing.grown(self.runtime.db, more_than=most):
            if time.monotonic() > ends_at:
                return True
            await indexing.index(self.runtime.db, owner, steps=INDEX_STEPS)
        return False  # what is left of an owner is a round's work of its own

    async def _policies(self) -> bool:
        keeping = PostgresKeeping(self.runtime.vault or Vault(no_masters))
        every = timedelta(seconds=self.runtime.settings.retention_every_seconds)
        async with self.runtime.db.transaction(read_only=True) as tx:
            policies = list(await keeping.policies(tx))
        random.shuffle(policies)  # one that has much to do must not keep the same others waiting
        is_more, ends_at = False, time.monotonic() + ROUND_SECONDS
        for policy in policies:
            if policy.ran_at is not None and self.runtime.clock.utc_now() - policy.ran_at < every:
                continue
            left = ends_at - time.monotonic()
            if left <= 0:
                return True
            try:
                after = self._stopped.pop(policy.namespace, None)
                done = await self._retention(keeping, policy.namespace).run(seconds=left, after=after)
            except (errors.ArchiveUnavailable, errors.InvalidSettings) as exc:  # of this namespace alone
                log.warning("archive refuses", extra={"namespace": policy.namespace, "error": str(exc)})
                continue
            log.info("let go", extra={"namespace": policy.namespace, "episodes": done.episodes, "users": done.users})
            if not done.is_done:
                self._stopped[policy.namespace], is_more = done.stopped_after, True
        return is_more

    def _retention(self, keeping: PostgresKeeping, namespace: str) -> Retention:
        return Retention(
            db=self.runtime.db,
            store=self.runtime.store,
            ledger=self.runtime.ledger,
            keeping=keeping,
            effect=self._effect,
            namespace=namespace,
            trail=self._trail(),
        )

    def _trail(self) -> Trail:
        """The audit trail as this process writes it."""
        settings, redis = self.runtime.settings, self.runtime.redis
        told = [] if redis is None else witnesses(settings.state_dir, redis, self.runtime.keys)
        return Trail(audit_keys(settings.audit_key, settings.state_dir), told, actor=f"janitor of {whoami()}")

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


async def run(runtime: Runtime, *, until: Callable[[], bool], pause: Callable[[float], Awaitable[None]]) -> None:
    """A round every `settings.housekeeping_seconds`, and at once while there is more than a round's work."""
    janitor = Janitor(runtime=runtime)
    while not until():
        is_more = False
        try:
            is_more = await janitor.round()
        except Exception:  # the edge of the loop: an error of one round must not end the clearing away
            log.exception("janitor round failed")
        seconds = runtime.settings.reconcile_seconds if is_more else runtime.settings.housekeeping_seconds
        await pause(min(seconds, runtime.settings.housekeeping_seconds))
