"""Builds the publisher from settings: the acceptor, the broker, the location of the spool."""

from functools import partial
from pathlib import Path

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.freshness import WatermarkDelivery
from aftermind.indexes.client import IndexClient
from aftermind.ledger.protocol import Ledger
from aftermind.llm.protocols import Embedder, Extractor, Profiler, Summariser
from aftermind.llm.provider_connections import Providers
from aftermind.outbox.accept_in_redis_or_postgres import LedgerAcceptor, RedisAcceptor
from aftermind.outbox.doorbell_sender import AGENT_SECONDS, BrokerBells, DoorbellSender
from aftermind.outbox.generation_from_postgres import GenerationLookup
from aftermind.outbox.group_commit import Acceptor
from aftermind.outbox.inmemory import Abandoned, InProcessQueue, Notify, OpenWork, Prepare, Tidy, load_work
from aftermind.outbox.protocol import Outbox
from aftermind.outbox.publish_or_spool import Publisher, Recorded
from aftermind.outbox.sharded_publisher import ShardedPublisher
from aftermind.outbox.spool import Spool
from aftermind.outbox.spool_deployment import Deployment
from aftermind.outbox.turn_positions import Positions
from aftermind.settings import Settings
from aftermind.stores.protocol import Store
from aftermind.types import Turn
from aftermind.wire.pending import BELLS, Pending, PendingLimits
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

EVERY_TURN = 2**31 - 1  # more bells than any list holds


def remember_link(settings: Settings, redis: str) -> RedisLink:
    """A connection whose answers come within the budget of `remember()`."""
    timeout = min(settings.redis_timeout_seconds, settings.remember_budget_seconds)
    return RedisLink(redis, timeout=timeout, name="aftermind-agent")


def make_publisher(
    settings: Settings,
    *,
    broker: str,
    link: RedisLink,
    database: Database | None = None,
    ledger: Ledger | None = None,
    delivery: WatermarkDelivery | None = None,
    pending: Pending | None = None,
    positions: Positions | None = None,
    spool_dir: Path | None = None,
    deployment: Deployment | None = None,
    ringing: DoorbellSender | None = None,
) -> Publisher:
    """Create the publisher of a process. `accept="postgres"` needs the database and its ledger. Publishers of a process
    share its positions and, in `pending`, the latest erasures. By default `spool_dir` is that of the settings, and
    `ringing` is made for the broker; without a `deployment` the spool is for any.

    The accepting call itself pushes doorbells if the broker is the Redis of `link`; for other brokers they are sent
    soon after it.
    """
    keys, budget = Keys(settings.redis_prefix), settings.remember_budget_seconds
    ringing = ringing or open_doorbells(settings, broker, link)
    pending = pending or Pending(link, keys)
    limits = PendingLimits.from_settings(settings)
    acceptor: Acceptor
    if settings.accept == "postgres":
        if database is None or ledger is None:
            raise errors.InvalidSettings("accept", "postgres", "it needs a Postgres store.")
        acceptor = LedgerAcceptor(
            database, ledger, ringing, delivery=delivery, pending=pending, limits=limits, budget_seconds=budget
        )
    else:
        acceptor = RedisAcceptor(
            link,
            pending,
            ringing,
            limits=limits,
            most_bells=EVERY_TURN if settings.ring_every_turn else BELLS,
            budget_seconds=budget,
        )
    folder = (spool_dir or settings.spool_dir).absolute()
    spool = Spool(folder, max_bytes=settings.spool_max_bytes, deployment=deployment)
    return Publisher(
        settings,
        acceptor=acceptor,
        ringing=ringing,
        spool=spool,
        positions=positions,
        asking=GenerationLookup(None if database is None else database.generation, pending.generation),
        recorded=None if database is None or ledger is None else _recorded(database, ledger),
    )


def make_outbox(
    settings: Settings,
    *,
    broker: str,
    link: RedisLink,
    database: Database,
    ledger: Ledger,
    delivery: WatermarkDelivery,
    pending: Pending,
    positions: Positions,
    deployment: Deployment,
) -> Outbox:
    """Create the publisher of a process; if a Redis Cluster accepts the turns, one for each shard."""
    make = partial(
        make_publisher,
        settings,
        broker=broker,
        database=database,
        ledger=ledger,
        delivery=delivery,
        positions=positions,
        deployment=deployment,
        ringing=open_doorbells(settings, broker, link),  # one connection to the broker for all shards
    )
    if settings.accept == "postgres" or len(link.shards) == 1:
        return make(link=link, pending=pending)
    shards = zip(link.shards, pending.shards, strict=True)
    folders = (settings.spool_dir / f"shard-{number}" for number in range(len(link.shards)))
    made = [make(link=at, pending=own, spool_dir=folder) for (at, own), folder in zip(shards, folders, strict=True)]
    return ShardedPublisher(positions, made)


def open_doorbells(settings: Settings, broker: str, link: RedisLink | None) -> DoorbellSender:
    """What notifies workers of turns: through `link` if it leads to the broker, else over a separate connection."""
    return DoorbellSender(BrokerBells(broker, link, prefix=settings.redis_prefix, timeout_seconds=AGENT_SECONDS))


def _recorded(database: Database, ledger: Ledger) -> Recorded:
    async def content_hash(turn: Turn) -> str | None:
        async with database.transaction(namespace=turn.scope.namespace, read_only=True) as tx:
            return await ledger.content_hash(tx, turn.scope, turn.job_id)

    return content_hash


def make_in_process(
    settings: Settings,
    *,
    db: Database,
    store: Store,
    ledger: Ledger,
    events: object,
    embedder: Embedder | None = None,
    index: IndexClient | None = None,
    extractor: Extractor | None = None,
    summariser: Summariser | None = None,
    profiler: Profiler | None = None,
    providers: Providers | None = None,
    prepare: Prepare | None = None,
    tidy: Tidy | None = None,
    replay: Tidy | None = None,
    abandoned: Abandoned | None = None,
    open_work: OpenWork | None = None,
    notify: Notify | None = None,
) -> InProcessQueue:
    """Create the queue of a store in this process. `events` stores and publishes events (`append`, `publish`).
    `open_work` replaces the handlers; with `notify`, workers run the jobs.

    Raises `InvalidSettings` at the first turn if no handlers are installed.
    """
    work = open_work or partial(
        load_work,
        settings=settings,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        index=index,
        extractor=extractor,
        summariser=summariser,
        profiler=profiler,
        providers=providers,
    )
    return InProcessQueue(
        settings,
        db=db,
        ledger=ledger,
        open_work=work,
        prepare=prepare,
        tidy=tidy,
        replay=replay,
        abandoned=abandoned,
        notify=notify,
    )
