"""Re-notifies about unclaimed jobs, and publishes unpublished events; the janitor in the same process deletes old rows.

Run it as a separate process: `python -m aftermind_workers.reconciler`. Store workers run it as standby, so that a
deployment of workers alone has one too. Only one does the work at any moment: the holder of the advisory lock of the
tick. The lock belongs to a transaction with an idle limit, so that a leader that freezes in the middle of a tick loses
it. A courier runs in the same process.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

from aftermind import errors
from aftermind.api import erasure_delivery_to_redis, webhook_courier
from aftermind.api.health import pending_age
from aftermind.db import age_pruning, metric_history, tenant_moves
from aftermind.db.leader_election import leading
from aftermind.ledger.postgres import job_admin
from aftermind.llm.factory import find_provider_pause
from aftermind.settings import Settings
from aftermind.telemetry import log_format
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, JobKind
from aftermind.types.job import LEASE_LOST
from aftermind.wire import queues
from aftermind.wire.pending import Pending
from aftermind.wire.redis.client import run_all, split_shards
from aftermind.wire.redis_epoch import ensure_epoch
from aftermind_tasks import job_events
from aftermind_tasks.runtime import NOT_READY, OPEN_SECONDS, Runtime, open_runtime
from aftermind_workers import isolated_background_steps, janitor, metrics, readiness_file

log = get_logger(__name__)

LEADER = "aftermind.reconciler"  # name of the advisory lock
BELLS_A_TICK = 8  # of one queue: notifies as many workers, and each continues until the queue is empty
# Seconds between two bells for work that does not move. It bounds how late work is found that a killed worker took the
# bell of; with 60 the last turns of a run of kills waited 27 s, and eight bells are 3 ms of work.
LONGEST_SILENCE = 5.0
SAMPLE_CHECK_SECONDS = 5.0  # between two checks whether the last minute has a sample


@dataclass(slots=True)
class RingBackoff:
    """When a queue was rung for, and whether that helped: each bell without effect doubles the wait for the next."""

    due_at: float = 0.0
    wait: float = 0.0
    runnable: int = 0

    def is_due(self, now: float, runnable: int, *, first: float) -> bool:
        """Whether to ring now; `first` is the shortest wait between two bells."""
        if runnable < self.runnable or not runnable:  # it moves, or it was done: forget the silence
            self.wait = 0.0
        self.runnable = runnable
        if not runnable or now < self.due_at:
            return False
        self.wait = min(LONGEST_SILENCE, self.wait * 2 if self.wait else first)
        self.due_at = now + self.wait
        return True


@dataclass(slots=True)
class Reconciler:
    """The state of one reconciler between its ticks."""

    runtime: Runtime
    is_leader: bool = False  # in its last tick
    sample_at: float = 0.0
    ringing: dict[str, RingBackoff] = field(default_factory=lambda: {name: RingBackoff() for name in queues.QUEUES})

    async def tick(self) -> bool:
        """One round, if this is the leader; whether it was. Raises nothing but cancellation."""
        try:
            async with leading(self.runtime.db, LEADER) as is_leader:
                self.is_leader = is_leader
                if is_leader:
                    await self.run_steps()
                return is_leader
        except errors.Unavailable as exc:
            self.is_leader = False
            log.warning("reconciler waits", extra={"error": str(exc)})
            # Without Postgres the ledger cannot be read, and doorbells for pending turns would do no work.
            return False

    async def run_steps(self) -> None:
        """Each step alone: what fails one of them does not stop the others.

        A store without Postgres needs two of them; its own queue calls this in place of handlers.
        """
        steps = [self._expire, self._ring]
        if self.runtime.serve_store is None:
            first, last = [self._moves, self._epoch, self._erasures, self._deliver], [self._relay, self._sample]
            steps = [*first, *steps, *last]
        for step in steps:
            try:
                await step()
            except errors.Unavailable as exc:
                log.warning("reconciler skips", extra={"step": step.__name__, "error": str(exc)})
            except Exception:  # the edge of a step: one row or key that it cannot handle would stop the doorbells
                log.exception("reconciler step failed", extra={"step": step.__name__})

    async def _moves(self) -> None:
        """Tenants that have left this database, for a Redis that has lost it."""
        if self.runtime.pending is not None:
            for namespace, database in (await tenant_moves.list_moved(self.runtime.db)).items():
                await self.runtime.pending.serve_elsewhere(namespace, database)

    async def _epoch(self) -> None:
        runtime, db = self.runtime, self.runtime.db
        if runtime.redis is not None:
            shards = split_shards(runtime.redis, runtime.keys)
            await run_all(ensure_epoch(link, keys, db.watermark, db.generation) for link, keys in shards)

    async def _erasures(self) -> None:
        """Erasures that Redis did not take when they were committed."""
        runtime = self.runtime
        if runtime.pending is None:
            return
        db, store, ledger, pending = runtime.db, runtime.store, runtime.ledger, runtime.pending
        away: set[Pending] = set()

        async def deliver(namespace: str) -> None:
            sent = await erasure_delivery_to_redis.deliver_all(db, store, ledger, pending, namespace, away=away)
            log.info("erasures delivered", extra={"namespace": namespace, "erasures": sent})

        await isolated_background_steps.run_each("erasures", await age_pruning.undelivered(db), deliver)

    async def _deliver(self) -> None:
        if self.runtime.delivery is not None:
            await self.runtime.delivery.deliver_late()

    async def _expire(self) -> None:
        expired = await job_events.expire_leases(self.runtime)
        for kind, jobs in expired.items():
            metrics.FAILURES.labels(kind, LEASE_LOST).inc(jobs)
        if expired:
            metrics.LEASES_EXPIRED.inc(expired.total())
            log.warning("leases expired", extra={"jobs": expired.total()})

    async def _ring(self) -> None:
        runnable = await self._runnable()
        now = time.monotonic()
        first = self.runtime.settings.reconcile_seconds
        for queue, ringing in self.ringing.items():
            count = runnable.get(queue, 0)
            if ringing.is_due(now, count, first=first):
                ids = [JobId(uuid4()) for _ in range(min(count, BELLS_A_TICK))]
                rung = await self.runtime.bells.ring(queue, ids)
                metrics.RUNG_AGAIN.labels(queue=queue).inc(rung)

    async def _runnable(self) -> dict[str, int]:
        """Jobs by queue that could run and that no bell has just been rung for."""
        found: dict[str, int] = {}
        for backlog in await self.runtime.ledger.backlog():
            queue = queues.QUEUE_OF[backlog.kind]
            found[queue] = found.get(queue, 0) + backlog.runnable - backlog.replays
            found[queues.REPLAY] = found.get(queues.REPLAY, 0) + backlog.replays
        found[queues.STORE] = found.get(queues.STORE, 0) + await self._pending()
        return found

    async def _pending(self) -> int:
        if self.runtime.pending is None:
            return 0
        pending = await self.runtime.pending.backlog()
        # The doorbell of a new turn was sent a moment ago.
        is_fresh = pending.oldest_age < timedelta(seconds=self.runtime.settings.reconcile_seconds)
        return 0 if is_fresh else pending.runnable

    async def _sample(self) -> None:
        """The metrics of the last minute, once it is over."""
        if not self.runtime.settings.metric_history or time.monotonic() < self.sample_at:
            return
        self.sample_at = time.monotonic() + SAMPLE_CHECK_SECONDS
        async with self.runtime.db.transaction() as tx:
            until = await metric_history.due(tx)
        if until is None:
            return
        gauges = await self._gauges()  # has its own transactions: within another, it would need a third connection
        async with self.runtime.db.transaction() as tx:
            await metric_history.sample(tx, until, gauges)

    async def _gauges(self) -> dict[str, float]:
        found: dict[str, float] = {}
        async with self.runtime.db.transaction(read_only=True) as tx:
            pauses = await job_admin.pauses(tx)
        states = await self.runtime.providers.gate.states()
        for row in await self.runtime.ledger.backlog():
            age = row.oldest_wait.total_seconds() if row.oldest_wait else 0.0
            runnable, running = row.runnable, row.running
            if row.kind is JobKind.STORE and self.runtime.pending is not None:
                pending = await self.runtime.pending.backlog()
                found["aftermind_pending_turns"] = float(pending.turns)
                could_run = pending.runnable + pending.handed_back
                runnable, running = runnable + could_run, running + pending.turns - could_run
                age = max(age, await pending_age(self.runtime.pending, pending, pauses))
            if find_provider_pause(row.kind, self.runtime.settings, states, is_worker=True):
                age = 0.0
            label = f'{{kind="{row.kind}"}}'
            found |= {
                f"aftermind_runnable_jobs{label}": float(runnable),
                f"aftermind_running_jobs{label}": float(running),
                f"aftermind_waiting_jobs{label}": float(row.waiting),
                f"aftermind_dead_letters{label}": float(row.dead),
                f"aftermind_oldest_runnable_seconds{label}": age,
            }
        return found

    async def _relay(self) -> None:
        before = self.runtime.events.unreadable
        try:
            await self.runtime.events.relay()
        finally:
            metrics.EVENTS_UNREADABLE.inc(self.runtime.events.unreadable - before)


async def run(
    runtime: Runtime, *, until: Callable[[], bool], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """A tick every `settings.reconcile_seconds`, until stopped; the leader's janitor runs in parallel."""
    reconciler = Reconciler(runtime=runtime)
    cleaning = asyncio.create_task(
        janitor.run(runtime, until=until, pause=pause, is_leader=lambda: reconciler.is_leader), name="janitor"
    )
    try:
        while not until():
            try:
                await reconciler.tick()
            except Exception:  # the edge of the loop: an error of one tick must not end the reconciling
                log.exception("reconciler tick failed")
            await pause(runtime.settings.reconcile_seconds)
    finally:
        cleaning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cleaning


async def _open(settings: Settings) -> Runtime:
    """Open the store, however long its database or the schema is missing. Raises `InvalidSettings`."""
    while True:
        try:
            return await open_runtime(settings, worker=f"{socket.gethostname()}:{os.getpid()}:reconciler")
        except NOT_READY as exc:
            log.warning("reconciler waits", extra={"error": str(exc)})
            await asyncio.sleep(OPEN_SECONDS)


def _on_stop_signal(callback: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, callback)


async def _main() -> None:
    settings = Settings()
    log_format.configure(level=settings.log_level, style=settings.log_format)
    stop = asyncio.Event()
    opening = asyncio.create_task(_open(settings), name="open the store")

    def end() -> None:
        stop.set()
        opening.cancel()

    _on_stop_signal(end)
    runtime = await opening

    async def pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()

    try:
        metrics.serve(settings)
        readiness_file.write_ready_file(runtime.settings)
        log.info("reconciler starts", extra={"every_seconds": runtime.settings.reconcile_seconds})
        await asyncio.gather(
            run(runtime, until=stop.is_set, pause=pause),
            webhook_courier.run(runtime, until=stop.is_set, pause=pause, count=metrics.count_webhook_post),
        )
    finally:
        await runtime.close()


if __name__ == "__main__":
    try:
        with contextlib.suppress(asyncio.CancelledError):  # stopped before the store was open
            asyncio.run(_main())
    except errors.AftermindError as exc:
        sys.exit(str(exc))
