"""`Runtime`: all that a handler may use, opened once per process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from aftermind import errors
from aftermind.api.process_registry import announced_state, process_description
from aftermind.db.database_protocol import Database, Transaction, Watermark
from aftermind.db.postgres_url import with_password_file
from aftermind.events.types import MemoryEvent
from aftermind.freshness import WatermarkDelivery
from aftermind.indexes.client import IndexClient
from aftermind.ledger.protocol import Ledger
from aftermind.llm import factory
from aftermind.llm.profile_schema import ProfileSchema, profile_schema
from aftermind.llm.protocols import Embedder, Extractor, Profiler, Summariser, embedder_identity
from aftermind.llm.provider_connections import Providers, make_limiter
from aftermind.settings import Settings
from aftermind.stores.protocol import Store
from aftermind.telemetry.logger import get_logger
from aftermind.types import EmbedderIdentity, JobId, Scope, StoredEmbedders
from aftermind.wire.pending import SCRIPT_TURNS, Pending
from aftermind.wire.process_registry import keep_announcing
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind_tasks.job_observer import Observer
from aftermind_tasks.lease_release_retries import LeaseReturns

if TYPE_CHECKING:  # it loads SQLAlchemy, which a store of one process does without
    from aftermind.db.encryption.keyring import Vault
    from aftermind.db.engine import PostgresDatabase
    from aftermind.ledger.postgres.replay_step import ReplayEngine
    from aftermind.store_turns_sql import BatchWriter

log = get_logger(__name__)

# What a process waits for at its start: a server, or an operator's migration or correction of the login.
NOT_READY = (errors.Unavailable, errors.SchemaOutdated, errors.WrongRole)
OPEN_SECONDS = 1.0  # between two attempts to open the store, in addition to the time of the attempts

# published events are marked together; a quarter of the age at which the relay publishes unmarked ones
MARK_SECONDS = 0.25

T = TypeVar("T")


class Clock(Protocol):
    """The time to store; tests inject their own."""

    def utc_now(self) -> datetime:
        """Now, in UTC."""


class SystemClock:
    """The machine's clock."""

    def utc_now(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)


class Bus(Protocol):
    """Stores and publishes events; see `aftermind.events.bus.EventBus`."""

    unreadable: int  # rows and messages that were no event, so far

    async def append(self, tx: Transaction, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Keep events in the effect's transaction; the same with their cursors."""

    async def publish(self, events: Sequence[MemoryEvent], watermark: Watermark | None = None) -> None:
        """Publish committed events."""

    async def relay(self, *, limit: int = 500) -> int:
        """Publish events that were not published."""

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete published events older than the age."""

    async def close(self) -> None:
        """Close the connections."""


class WorkerNotifier(Protocol):
    """Notifies workers of a queue. Best effort: the reconciler does it again."""

    async def ring(self, queue: str, ids: Sequence[JobId]) -> int:
        """Ring; how many bells were rung. Raises `Unavailable`."""


class Silence:
    """Sends no doorbells: one process checks its ledger."""

    async def ring(self, queue: str, ids: Sequence[JobId]) -> int:
        """Nothing to ring."""
        return 0


@dataclass(slots=True)
class Opened:
    """Embedders that a process has opened, and what it has read of those of the store: see `embedders`."""

    configured: EmbedderIdentity | None = None
    others: dict[EmbedderIdentity, Embedder] = field(default_factory=dict)
    stored: StoredEmbedders | None = None
    read_at: float = float("-inf")


@dataclass(slots=True, kw_only=True)
class Runtime:
    """What a handler may use.

    `pending`, `redis`, `delivery` and `batch_writer` are None for every store but Postgres. In a Celery worker of such
    a store, `serve_store` takes the place of the reconciler, the janitor and the courier, and calls `notify` as long as
    there are unfinished jobs.
    """

    settings: Settings
    worker: str
    db: Database
    store: Store
    ledger: Ledger
    events: Bus
    replays: "ReplayEngine | None" = None
    vault: "Vault | None" = None
    batch_writer: "BatchWriter | None" = None
    bells: WorkerNotifier = field(default_factory=Silence)
    clock: Clock = field(default_factory=SystemClock)
    observer: Observer = field(default_factory=Observer)
    providers: Providers = field(default_factory=Providers)
    embedder: Embedder | None = None
    index: IndexClient | None = None
    extractor: Extractor | None = None
    summariser: Summariser | None = None
    profiler: Profiler | None = None
    profile_schema: ProfileSchema | None = None
    pending: Pending | None = None
    redis: RedisLink | None = None
    keys: Keys = field(default_factory=Keys)
    delivery: WatermarkDelivery | None = None
    serve_store: "Callable[[], Coroutine[Any, Any, None]] | None" = None
    notify: Callable[[], Awaitable[None]] | None = None
    returns: LeaseReturns = field(init=False)
    opened: Opened = field(default_factory=Opened)
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.returns = LeaseReturns(self.ledger)

    async def after_commit(
        self,
        owners: Iterable[Scope],
        events: Sequence[MemoryEvent],
        ring: Mapping[str, JobId],
        *,
        settle: Sequence[JobId] = (),
        undelivered: Sequence[int] = (),
        watermark: Watermark | None = None,
    ) -> int:
        """Steps after a commit: watermark, pending cleared, events published, doorbells sent; returns the number of
        runnable turns.

        The watermark is taken here, after the commit and not before, unless the caller has taken one since. Each failed
        step is repeated later: a turn that stays pending is stored again without effect, the relay raises the watermark
        and publishes the events, the reconciler sends doorbells. `undelivered` are rows of `note_undelivered`.
        """
        watermark = watermark or await self.db.watermark()
        telling = partial(self._try, "publish events")
        runnable = 0
        if settle and self.pending is not None:
            *first, last = [settle[start : start + SCRIPT_TURNS] for start in range(0, len(settle), SCRIPT_TURNS)]
            for some in first:
                await self.pending.settle(some, watermark=watermark, owners=owners)
            # Both are sent together, in this order, over one connection: a listener that gets the event finds the turn
            # settled, and Redis syncs its file once for both. If the first has to be repeated, the turn is still
            # pending.
            settling = self.pending.settle(last, watermark=watermark, owners=owners)
            settled = await _both(settling, telling(self.events.publish(events, watermark)))
            runnable = settled.runnable
        elif await self._raise(watermark, owners, undelivered):
            await telling(self.events.publish(events, watermark))
        elif self.pending is not None and len(self.pending.shards) > 1:  # those of the shards that answer
            await asyncio.gather(*(self._publish_of(owner, events, watermark) for owner in _owners(events)))
        for queue, job_id in ring.items():
            await self._try("ring", self.bells.ring(queue, [job_id]))
        return runnable

    async def _publish_of(self, owner: Scope, events: Sequence[MemoryEvent], watermark: Watermark | None) -> None:
        if await self._raise(watermark, [owner], ()):
            own = [event for event in events if event.scope.owner == owner]
            await self._try("publish events", self.events.publish(own, watermark))

    async def close(self) -> None:
        """Close all resources."""
        await self.returns.close()
        await self.closing.aclose()

    async def note_undelivered(self, tx: Transaction, owners: Iterable[Scope]) -> Sequence[int]:
        """In the transaction of an effect that writes no event: rows by which its watermark is raised at last."""
        return () if self.delivery is None else await self.delivery.add(tx, owners)

    async def _raise(self, watermark: Watermark | None, owners: Iterable[Scope], undelivered: Sequence[int]) -> bool:
        """Whether it was raised. If not, events must not be published yet: a recall that follows one could miss it."""
        if self.delivery is None:
            return True
        return await self._try("raise the watermark", self.delivery.deliver(owners, undelivered, watermark))

    async def _try(self, what: str, work: Awaitable[object]) -> bool:
        try:
            await work
        except errors.Unavailable as exc:
            log.warning("left for later", extra={"what": what, "error": str(exc)})
            return False
        return True


def _owners(events: Sequence[MemoryEvent]) -> frozenset[Scope]:
    return frozenset(event.scope.owner for event in events)


async def _both(first: Awaitable[T], second: Awaitable[object]) -> T:
    """What the first returns, begun before the second. Both end, then it raises what either raised."""
    told, other = await asyncio.gather(first, second, return_exceptions=True)
    for outcome in (told, other):
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(T, told)


async def open_runtime(
    settings: Settings, *, worker: str, consumed: Sequence[str] = (), concurrency: int | None = None
) -> Runtime:
    """The runtime of a worker process, from settings; `consumed` are its queues, `concurrency` its threads.

    Connects to nothing but the database, whose schema it checks.
    Raises `InvalidSettings`, and one of `NOT_READY` where another attempt may succeed.
    """
    from aftermind.api import address_resolution

    if settings.database_url is None:
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", None, "a worker needs the address of its store.")
    async with AsyncExitStack() as opened:  # closed if a later step fails: a worker tries again, with a new runtime
        if settings.database_url.get_secret_value().partition(":")[0] in address_resolution.POSTGRES:
            runtime = await _open_runtime_of_postgres(settings, opened, worker, consumed, concurrency)
        else:
            runtime = await _open_runtime_of_record_store(settings, opened, worker)
        runtime.closing = opened.pop_all()
    return runtime


async def _open_runtime_of_postgres(
    settings: Settings, opened: AsyncExitStack, worker: str, consumed: Sequence[str], concurrency: int | None
) -> Runtime:
    from aftermind.api import address_resolution
    from aftermind.api.wiring import open_backend, open_database
    from aftermind.db import migrate
    from aftermind.indexes.factory import open_index
    from aftermind.ledger.postgres.ledger import PostgresLedger
    from aftermind.ledger.postgres.replay_step import ReplayEngine
    from aftermind.store_turns_sql import BatchWriter

    database_url = settings.relay_url or settings.database_url
    assert database_url is not None
    url = with_password_file(database_url.get_secret_value(), settings.database_password_file)
    providers = Providers(make_limiter(settings))
    opened.push_async_callback(providers.close)
    embedder = factory.embedder(settings, providers=providers)
    configured = None if embedder is None else await asyncio.to_thread(embedder_identity, embedder)
    await _settled_schema(partial(migrate.check, url, allow_owner=settings.allow_owner))
    database = open_database(settings, url, name="aftermind-worker")
    opened.push_async_callback(database.close)
    await _adopt(database, configured)
    queue = address_resolution.resolve_queue(settings)
    if queue is None:
        raise errors.InvalidSettings("AFTERMIND_REDIS_URL", None, "a worker needs the Redis of pending turns.")
    broker, redis = queue
    # A worker may wait longer than an agent: no answer depends on it.
    link = RedisLink(redis, timeout=max(2.0, settings.redis_timeout_seconds), name="aftermind-worker")
    opened.push_async_callback(link.close)
    backend = open_backend(settings, database, link, providers, mark_after=MARK_SECONDS)
    keys, events, vault = backend.keys, backend.events, backend.vault
    opened.push_async_callback(events.close)
    index = open_index(settings)
    if index is not None:
        opened.push_async_callback(index.close)
    runtime = Runtime(
        settings=settings,
        worker=worker,
        db=database,
        store=backend.store,
        vault=vault,
        batch_writer=BatchWriter(database, vault, language_for=settings.language_for),
        ledger=PostgresLedger(database, max_lost_leases=settings.max_lost_leases),
        events=events,
        replays=ReplayEngine(database),
        bells=_open_bells(settings, broker, link, opened),
        providers=providers,
        embedder=embedder,
        index=index,
        extractor=factory.extractor(settings, providers=providers),
        summariser=factory.summariser(settings, providers=providers),
        profiler=factory.profiler(settings, providers=providers),
        profile_schema=profile_schema(settings.profile_schema),
        pending=backend.pending,
        redis=link,
        keys=keys,
        delivery=backend.delivery,
        opened=Opened(configured=configured),
    )
    announcing = keep_announcing(
        link,
        keys,
        f"worker {worker}",
        announced_state(settings, concurrency=concurrency),
        process_description(*consumed),
    )
    task = asyncio.get_running_loop().create_task(announcing, name="aftermind key fingerprints")
    opened.push_async_callback(_cancel, task)
    return runtime


async def _open_runtime_of_record_store(settings: Settings, opened: AsyncExitStack, worker: str) -> Runtime:
    """The runtime of a worker of `sqlite:`, `redis://`, `mongodb://` or `sql+…`, whose jobs are rows of the store."""
    from aftermind.api import address_resolution
    from aftermind.api.wiring import open_parts

    where = address_resolution.resolve(settings)
    if not where.is_shared or where.broker is None:
        why = "Celery workers need a store that several processes can open, and AFTERMIND_BROKER_URL."
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", where.scheme, why)
    providers = Providers(make_limiter(settings))
    opened.push_async_callback(providers.close)
    embedder = factory.embedder(settings, providers=providers)
    configured = None if embedder is None else await asyncio.to_thread(embedder_identity, embedder)

    async def notify() -> bool:
        if runtime.notify is not None:
            await runtime.notify()
        return False  # no job was run here

    served = settings.model_copy(update={"run_jobs": True})
    parts = open_parts(where, served, embedder=embedder, open_work=lambda: notify)
    opened.push_async_callback(parts.close)
    runtime = Runtime(
        settings=settings,
        worker=worker,
        db=parts.db,
        store=parts.store,
        ledger=parts.ledger,
        events=cast(Bus, parts.events),
        bells=_open_bells(settings, where.broker, None, opened),
        providers=providers,
        embedder=embedder,
        index=parts.index,
        extractor=factory.extractor(settings, providers=providers),
        summariser=factory.summariser(settings, providers=providers),
        profiler=factory.profiler(settings, providers=providers),
        profile_schema=profile_schema(settings.profile_schema),
        opened=Opened(configured=configured),
    )

    async def serve_store() -> None:
        task = asyncio.ensure_future(parts.serve_jobs())
        runtime.closing.push_async_callback(_cancel, task)
        await asyncio.wait([task])

    runtime.serve_store = serve_store
    await parts.open_store()
    await parts.adopt_embedder()
    return runtime


async def _cancel(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _settled_schema(check: Callable[[], Awaitable[None]]) -> None:
    """Wait a little for a database that starts concurrently, and for its migration."""
    for pause in (0.2, 0.5, 1.0, 2.0, 4.0):
        try:
            await check()
            return
        except (errors.StoreUnavailable, errors.SchemaOutdated, errors.NotAllowed):
            await asyncio.sleep(pause)
    await check()


async def _adopt(database: "PostgresDatabase", configured: EmbedderIdentity | None) -> None:
    """Make the configured embedder the active one of a database without vectors; log if it is another's."""
    from aftermind.stores.postgres import episode_vectors

    if configured is None:
        return
    async with database.transaction() as tx:
        known = await episode_vectors.stored(tx)
        if (known is not None and configured in known) or await episode_vectors.adopt(tx, configured):
            return
    mismatch = errors.EmbedderMismatch(known and known.active, configured)
    log.error("embed jobs wait", extra={"error": str(mismatch)})


def _open_bells(settings: Settings, broker: str, link: RedisLink | None, opened: AsyncExitStack) -> WorkerNotifier:
    from aftermind.outbox.doorbell_sender import WORKER_SECONDS, BrokerBells

    bells = BrokerBells(broker, link, prefix=settings.redis_prefix, timeout_seconds=WORKER_SECONDS)
    opened.push_async_callback(bells.close)
    return bells
