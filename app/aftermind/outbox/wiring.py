"""From settings to a way out: which acceptor, which broker, where the spool lies."""

from functools import partial

from aftermind import errors
from aftermind.db.base import Database
from aftermind.freshness import WatermarkDelivery
from aftermind.ledger.base import Ledger
from aftermind.llm.base import Embedder, Extractor, Profiler, Summariser
from aftermind.outbox.acceptors import LedgerAcceptor, RedisAcceptor
from aftermind.outbox.asking import Asking
from aftermind.outbox.doorbell import Doorbell
from aftermind.outbox.group import Acceptor
from aftermind.outbox.in_process import InProcessQueue, load_work
from aftermind.outbox.positions import Positions
from aftermind.outbox.publisher import Publisher, Recorded
from aftermind.outbox.ringing import Ringing
from aftermind.outbox.spool import Spool
from aftermind.settings import Settings
from aftermind.stores.base import Store
from aftermind.types import Turn
from aftermind.wire.bells import Bells
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.pending import BELLS, Pending, PendingLimits

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
) -> Publisher:
    """The publisher of a process. `accept="postgres"` needs the database and its ledger. What publishers of a process
    share are its positions, and in `pending` what it knows of erasures.

    Bells are pushed by the accepting call itself where the broker is the Redis of `link`; any other broker is rung by
    kombu, in a thread.
    """
    keys, budget = Keys(settings.redis_prefix), settings.remember_budget_seconds
    bells = Bells(link, keys) if broker == link.given_url else None
    ringing = Ringing(Doorbell(broker, prefix=settings.redis_prefix), bells)
    pending = pending or Pending(link, keys)
    acceptor: Acceptor
    if settings.accept == "postgres":
        if database is None or ledger is None:
            raise errors.InvalidSettings("accept", "postgres", "it needs a Postgres store.")
        acceptor = LedgerAcceptor(database, ledger, ringing, delivery=delivery, pending=pending, budget_seconds=budget)
    else:
        acceptor = RedisAcceptor(
            link,
            pending,
            ringing,
            limits=PendingLimits.from_settings(settings),
            most_bells=EVERY_TURN if settings.ring_every_turn else BELLS,
            budget_seconds=budget,
        )
    spool = Spool(settings.state_dir.absolute() / "spool", max_bytes=settings.spool_max_bytes)
    return Publisher(
        settings,
        acceptor=acceptor,
        ringing=ringing,
        spool=spool,
        positions=positions,
        asking=Asking(None if database is None else database.generation, pending.generation),
        recorded=None if database is None or ledger is None else _recorded(database, ledger),
    )


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
    extractor: Extractor | None = None,
    summariser: Summariser | None = None,
    profiler: Profiler | None = None,
) -> InProcessQueue:
    """The queue of a store of this process alone. `events` keeps and tells events (`append`, `publish`).

    Raises `InvalidSettings` at the first turn where no handlers are installed.
    """
    work = partial(
        load_work,
        settings=settings,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        extractor=extractor,
        summariser=summariser,
        profiler=profiler,
    )
    return InProcessQueue(settings, db=db, ledger=ledger, open_work=work)
