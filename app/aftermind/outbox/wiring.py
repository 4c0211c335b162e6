"""From settings to a publisher: which acceptor, which broker, where the spool lies."""

from dataclasses import dataclass

from aftermind import errors
from aftermind.db.base import Database
from aftermind.ledger.base import Ledger
from aftermind.outbox.acceptors import LedgerAcceptor, RedisAcceptor
from aftermind.outbox.doorbell import Doorbell
from aftermind.outbox.group import Acceptor
from aftermind.outbox.publisher import Publisher
from aftermind.outbox.ringing import Ringing
from aftermind.outbox.spool import Spool
from aftermind.settings import Settings
from aftermind.wire.bells import Bells
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.pending import BELLS, Pending, PendingLimits

EVERY_TURN = 2**31 - 1  # more bells than any list holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where to ring and where to keep: Celery's broker, and the Redis of pending, watermarks and events."""

    broker: str
    redis: str


def addresses(broker: str, redis: str | None) -> Addresses:
    """The Redis defaults to the broker where that is one. Raises `InvalidSettings` for a broker that we cannot ring."""
    is_redis = broker.startswith(("redis:", "rediss:", "redis+socket:", "unix:"))
    if not is_redis and not broker.startswith(("amqp:", "amqps:")):
        shown = broker.split("@")[-1]
        raise errors.InvalidSettings("broker", shown, "a broker is redis://, rediss://, redis+socket:// or amqp://.")
    if redis is None and not is_redis:
        why = "RabbitMQ rings, and keeps no pending turns: name a Redis too (redis=, or AFTERMIND_REDIS_URL)."
        raise errors.InvalidSettings("redis", None, why)
    return Addresses(broker=broker, redis=redis or broker)


def remember_link(settings: Settings, redis: str) -> RedisLink:
    """A connection whose answers come within the budget of `remember()`."""
    timeout = min(settings.redis_timeout_seconds, settings.remember_budget_seconds)
    return RedisLink(redis, timeout=timeout, name="aftermind-agent")


def make_publisher(
    settings: Settings,
    where: Addresses,
    *,
    link: RedisLink,
    database: Database | None = None,
    ledger: Ledger | None = None,
) -> Publisher:
    """The publisher of a process. `accept="postgres"` needs the database and its ledger."""
    keys = Keys(settings.redis_prefix)
    rings_in_redis = where.broker == where.redis
    bells = Bells(link, keys) if rings_in_redis else None
    ringing = Ringing(Doorbell(where.broker, prefix=settings.redis_prefix), bells)
    acceptor: Acceptor
    if settings.accept == "postgres":
        if database is None or ledger is None:
            raise errors.InvalidSettings("accept", "postgres", "it needs a Postgres store.")
        acceptor = LedgerAcceptor(database, ledger, ringing, budget_seconds=settings.remember_budget_seconds)
    else:
        acceptor = RedisAcceptor(
            link,
            Pending(link, keys),
            ringing,
            limits=PendingLimits.from_settings(settings),
            most_bells=EVERY_TURN if settings.ring_every_turn else BELLS,
            budget_seconds=settings.remember_budget_seconds,
        )
    spool = Spool(settings.state_dir / "spool", max_bytes=settings.spool_max_bytes)
    return Publisher(settings, acceptor=acceptor, ringing=ringing, spool=spool)
