"""`Runtime`: all that a handler may use, opened once per process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from aftermind import errors
from aftermind.db.base import Database, Transaction, Watermark
from aftermind.db.keyfiles import master_keys
from aftermind.events.types import MemoryEvent
from aftermind.freshness import WatermarkDelivery
from aftermind.ledger.base import Ledger
from aftermind.ledger.overrides import OverrideRules
from aftermind.ledger.replays import Replays
from aftermind.llm import resolver
from aftermind.llm.base import Embedder, Extractor, Profiler, Summariser, identity_of
from aftermind.llm.providers import Providers, gate_of
from aftermind.llm.traits import ProfileSchema, profile_schema
from aftermind.settings import Settings
from aftermind.stores.base import Store
from aftermind.storing.base import AtOnce
from aftermind.types import EmbedderIdentity, JobId, Scope, StoredEmbedders
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.pending import SCRIPT_TURNS, Pending
from aftermind.wire.watermark import Watermarks
from aftermind_tasks.lease_returns import LeaseReturns
from aftermind_tasks.observer import Observer

if TYPE_CHECKING:  # it loads SQLAlchemy, which a store of one process does without
    from aftermind.db.postgres import PostgresDatabase
    from aftermind.db.vault import Vault

log = logging.getLogger(__name__)

MARK_SECONDS = 0.25  # told events are marked together; a quarter of the age at which the relay takes them for untold

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
    """Where events are kept and told; see `aftermind.events.bus.EventBus`."""

    unreadable: int  # rows and messages that were no event, so far

    async def append(self, tx: Transaction, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Keep events in the effect's transaction; the same with their cursors."""

    async def publish(self, events: Sequence[MemoryEvent], watermark: Watermark | None = None) -> None:
        """Tell events that are committed."""

    async def relay(self, *, limit: int = 500) -> int:
        """Tell what nobody told."""

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete told events that are so old."""

    async def close(self) -> None:
        """Let go of connections."""


class Bells(Protocol):
    """Wakes workers of a queue. Best effort: the reconciler rings again."""

    async def ring(self, queue: str, ids: Sequence[JobId]) -> int:
        """Ring; how many bells were rung. Raises `Unavailable`."""


class Silence:
    """No bells: one process looks at its own ledger."""

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

    `pending`, `redis`, `delivery` and `at_once` are None where one process does everything.
    """

    settings: Settings
    worker: str
    db: Database
    store: Store
    ledger: Ledger
    events: Bus
    replays: Replays | None = None
    vault: "Vault | None" = None
    at_once: AtOnce | None = None
    bells: Bells = field(default_factory=Silence)
    clock: Clock = field(default_factory=SystemClock)
    observer: Observer = field(default_factory=Observer)
    providers: Providers = field(default_factory=Providers)
    embedder: Embedder | None = None
    extractor: Extractor | None = None
    summariser: Summariser | None = None
    profiler: Profiler | None = None
    profile_schema: ProfileSchema | None = None
    pending: Pending | None = None
    redis: RedisLink | None = None
    keys: Keys = field(default_factory=Keys)
    delivery: WatermarkDelivery | None = None
    returns: LeaseReturns = field(init=False)
    opened: Opened = field(default_factory=Opened)
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.returns = LeaseReturns(self.ledger, self.pending)

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
        """What follows a commit: watermark, pending cleared, events told, bells rung; how many turns are runnable.

        The watermark is taken here, after the commit and not before, unless the caller has taken one since. Each step
        that fails is made good later: a turn that stays pending is stored again without effect, the relay raises the
        watermark and publishes the events, the reconciler rings. `undelivered` are rows of `note_undelivered`.
        """
        watermark = watermark or await self.db.watermark()
        telling = partial(self._try, "tell events")
        runnable = 0
        if settle and self.pending is not None:
            *first, last = [settle[start : start + SCRIPT_TURNS] for start in range(0, len(settle), SCRIPT_TURNS)]
            for some in first:
                await self.pending.settle(some, watermark=watermark, owners=owners)
            # Both on their way at once, in this order, over one connection: who hears of a turn finds it settled, and
            # Redis syncs its file once for the two. Where the first has to be sent again, the turn is still pending.
            settling = self.pending.settle(last, watermark=watermark, owners=owners)
            settled = await _both(settling, telling(self.events.publish(events, watermark)))
            runnable = settled.runnable
        elif await self._raise(watermark, owners, undelivered):
            await telling(self.events.publish(events, watermark))
        for queue, job_id in ring.items():
            await self._try("ring", self.bells.ring(queue, [job_id]))
        return runnable

    async def close(self) -> None:
        """Let go of everything."""
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


async def _both(first: Awaitable[T], second: Awaitable[object]) -> T:
    """What the first returns, begun before the second. Both end, then it raises what either raised."""
    told, other = await asyncio.gather(first, second, return_exceptions=True)
    for outcome in (told, other):
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(T, told)


async def open_runtime(settings: Settings, *, worker: str) -> Runtime:
    """The runtime of a worker process, from settings. Raises `InvalidSettings`, `SchemaOutdated`, `StoreUnavailable`.

    Connects to nothing but the database, whose schema it checks.
    """
    from aftermind.db import migrate
    from aftermind.db.postgres import PostgresDatabase
    from aftermind.db.vault import Vault
    from aftermind.events.bus import EventBus
    from aftermind.ledger.postgres import PostgresLedger
    from aftermind.ledger.postgres_replays import PostgresReplays
    from aftermind.stores.postgres import PostgresStore
    from aftermind.storing.postgres import PostgresAtOnce

    if settings.database_url is None:
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", None, "a worker needs the address of its store.")
    url = (settings.relay_url or settings.database_url).get_secret_value()
    providers = Providers(gate_of(settings))
    embedder = resolver.embedder(settings, providers=providers)
    configured = None if embedder is None else await asyncio.to_thread(identity_of, embedder)
    secret = settings.database_password_file
    lax = settings.allow_owner
    await _settled_schema(partial(migrate.check, url, allow_owner=lax, password_file=secret))
    database = PostgresDatabase(
        url,
        timeout_seconds=settings.db_timeout_seconds,
        connect_timeout_seconds=settings.db_connect_timeout_seconds,
        pool_size=settings.db_pool_size,
        application_name="aftermind-worker",
        allow_owner=lax,
        pooled=settings.database_pooler,
        password_file=secret,
    )
    await _adopt(database, configured)
    redis_url = settings.redis_url or settings.broker_url
    if redis_url is None or not redis_url.get_secret_value().startswith(("redis", "unix")):
        raise errors.InvalidSettings("AFTERMIND_REDIS_URL", None, "a worker needs the Redis of pending turns.")
    keys = Keys(settings.redis_prefix)
    # A worker may wait longer than an agent: nobody's answer hangs on it.
    link = RedisLink(
        redis_url.get_secret_value(), timeout=max(2.0, settings.redis_timeout_seconds), name="aftermind-worker"
    )
    providers.gate.bind(link, keys)
    events = EventBus(database, link, keys, mark_after=MARK_SECONDS)
    vault = Vault(master_keys(settings.encryption_key, settings.state_dir))
    runtime = Runtime(
        settings=settings,
        worker=worker,
        db=database,
        store=PostgresStore(language=settings.language, vault=vault),
        vault=vault,
        at_once=PostgresAtOnce(database, vault, language=settings.language),
        ledger=PostgresLedger(database, max_lost_leases=settings.max_lost_leases),
        events=events,
        replays=PostgresReplays(database, rules=OverrideRules(extractors=resolver.replayable(settings))),
        bells=_bells(settings, link, keys),
        providers=providers,
        embedder=embedder,
        extractor=resolver.extractor(settings, providers=providers),
        summariser=resolver.summariser(settings, providers=providers),
        profiler=resolver.profiler(settings, providers=providers),
        profile_schema=profile_schema(settings.profile_schema),
        pending=Pending(link, keys),
        redis=link,
        keys=keys,
        delivery=WatermarkDelivery(database, Watermarks(link, keys)),
        opened=Opened(configured=configured),
    )
    for close in (database.close, link.close, events.close, providers.close):
        runtime.closing.push_async_callback(close)
    return runtime


async def _settled_schema(check: Callable[[], Awaitable[None]]) -> None:
    """Wait a little for a database that starts beside us, and for its migration."""
    for pause in (0.2, 0.5, 1.0, 2.0, 4.0):
        try:
            await check()
            return
        except (errors.StoreUnavailable, errors.SchemaOutdated):
            await asyncio.sleep(pause)
    await check()


async def _adopt(database: "PostgresDatabase", configured: EmbedderIdentity | None) -> None:
    """Make the configured embedder the active one of a database without vectors; log if it is another's."""
    from aftermind.stores.postgres import embedders

    if configured is None:
        return
    async with database.transaction() as tx:
        known = await embedders.stored(tx)
        if (known is not None and configured in known) or await embedders.adopt(tx, configured):
            return
    mismatch = errors.EmbedderMismatch(known and known.active, configured)
    log.error("embed jobs wait", extra={"error": str(mismatch)})


def _bells(settings: Settings, link: RedisLink, keys: Keys) -> Bells:
    from aftermind.outbox.ringing import WorkerBells

    broker = link.given_url if settings.broker_url is None else settings.broker_url.get_secret_value()
    return WorkerBells(broker, link, keys, prefix=settings.redis_prefix)
