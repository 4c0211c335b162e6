"""All kinds of jobs in the agent's own process: the work of `aftermind.outbox.inmemory`, found by entry point."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.indexes.client import IndexClient
from aftermind.ledger.protocol import Ledger
from aftermind.llm.profile_schema import profile_schema
from aftermind.llm.protocols import Embedder, Extractor, Profiler, Summariser
from aftermind.llm.provider_connections import Providers
from aftermind.settings import Settings
from aftermind.stores.protocol import Store
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobKind, Lease
from aftermind_tasks import job_events, job_handlers, per_tenant_batches
from aftermind_tasks.job_runner import Handler, perform
from aftermind_tasks.runtime import Bus, Runtime

log = get_logger(__name__)

WORKER = "in-process"
STORE_LANES = 3  # batches of turns at the same time: while one is written or screened, the loop works on the other


def open_work(
    *,
    settings: Settings,
    db: Database,
    store: Store,
    ledger: Ledger,
    events: Bus,
    embedder: Embedder | None = None,
    index: IndexClient | None = None,
    extractor: Extractor | None = None,
    summariser: Summariser | None = None,
    profiler: Profiler | None = None,
    providers: Providers | None = None,
) -> Callable[[], Awaitable[bool]]:
    """A function that claims and runs all runnable jobs, each kind once, and returns whether there were any."""
    runtime = Runtime(
        settings=settings,
        worker=WORKER,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        index=index,
        extractor=extractor,
        summariser=summariser,
        profiler=profiler,
        providers=providers or Providers(),
        profile_schema=profile_schema(settings.profile_schema),
    )

    turns = {kind: per_tenant_batches.Turns(weight=job_handlers.handler(kind).weight) for kind in job_handlers.KINDS}

    async def work() -> bool:
        await job_events.expire_leases(runtime)  # of an earlier process, where a journal outlived it
        # One after the other: a later kind finds what an earlier one put in, and nothing competes with the answer.
        found = []
        for kind in job_handlers.KINDS:
            lanes = STORE_LANES if kind is JobKind.STORE else 1
            claims = [_once(runtime, job_handlers.handler(kind), turns[kind]) for _ in range(lanes)]
            found += await asyncio.gather(*claims)
        return any(found)

    return work


async def _once(runtime: Runtime, handler: Handler, turns: per_tenant_batches.Turns) -> bool:
    settings = runtime.settings

    async def claim(left_out: Sequence[str]) -> list[Lease]:
        return await runtime.ledger.claim(
            handler.kind,
            worker=runtime.worker,
            for_=timedelta(seconds=settings.lease_seconds),
            limit=handler.at_once(settings),
            weight=handler.weight,
            alone=True,  # nothing competes with the answer: one job after the other
            except_namespaces=left_out,
        )

    leases, _ = await turns.claim(claim)
    if leases:
        async with _renewed(runtime, leases):
            await perform(runtime, handler, leases)
    return bool(leases)


@asynccontextmanager
async def _renewed(runtime: Runtime, leases: Sequence[Lease]) -> AsyncIterator[None]:
    """Keep other processes from taking the jobs over. What a process does after it has lost a lease is refused."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(runtime.settings.heartbeat_seconds)
            try:
                await runtime.ledger.heartbeat(leases, for_=timedelta(seconds=runtime.settings.lease_seconds))
            except errors.AftermindError as exc:  # the next one tries again, long before they end
                log.warning("leases are not renewed", extra={"error": str(exc)})

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])
