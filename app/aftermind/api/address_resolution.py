"""Resolves the addresses of store, Redis and broker: arguments, settings, or the running embedded stack."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from aftermind import errors
from aftermind.api.store_from_url import is_index, make_journal, split_index
from aftermind.database_map import DEFAULT, VARIABLE
from aftermind.db.postgres_url import parse_hosts, with_password_file
from aftermind.db.record_store_journals.protocol import AnyJournal, is_shared
from aftermind.outbox.spool_deployment import (
    EMBEDDED_DATABASE,
    EMBEDDED_REDIS,
    Deployment,
    database_address,
    redis_address,
)
from aftermind.settings import Settings
from aftermind.url_redaction import ENCODE, is_cut, redact, why_unreadable
from aftermind.wire.redis import cluster, sentinel

if TYPE_CHECKING:  # it loads NumPy, which the light commands do not need
    from aftermind.indexes.protocol import VectorIndex

ENDPOINTS = "endpoints.json"  # there while an embedded stack is up, with its passwords
POSTGRES = ("postgresql", "postgres", "postgresql+asyncpg")
SERVER = ("redis", "rediss", "unix", "redis+socket")  # a single Redis, see `wire.redis.server_url`
REDIS = (*SERVER, sentinel.SCHEME, *cluster.SCHEMES)
AMQP = ("amqp", "amqps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything is. Without `redis` turns are accepted by the store itself; its jobs run in the processes that
    open it, or in Celery workers where there is a `broker`.
    """

    store: str = field(repr=False)  # URLs hold passwords
    replicas: tuple[str, ...] = field(default=(), repr=False)
    relay: str | None = field(default=None, repr=False)  # the store, as the role that sees every tenant's jobs
    owner: str | None = field(default=None, repr=False)  # the store, as the owner of its schema
    redis: str | None = field(default=None, repr=False)
    broker: str | None = field(default=None, repr=False)
    index: "str | VectorIndex | None" = field(default=None, repr=False)  # an external vector index
    journal: AnyJournal | None = None  # of a store without `redis` that outlives its process

    @property
    def scheme(self) -> str:
        """The kind of the store."""
        return self.store.partition(":")[0]

    @property
    def is_in_process(self) -> bool:
        """Whether the store accepts turns itself, and processes that open it share nothing but the store."""
        return self.redis is None

    @property
    def is_shared(self) -> bool:
        """Whether several processes may open such a store."""
        return self.journal is not None and is_shared(self.journal)

    @property
    def required_redis(self) -> str:
        """The Redis of a store that workers reach."""
        if self.redis is None:
            raise errors.Bug("a store of one process has no Redis.")
        return self.redis

    @property
    def required_broker(self) -> str:
        """The broker of a store that workers reach."""
        return self.broker or self.required_redis

    def environment(self) -> Mapping[str, str]:
        """The connections as settings, for processes that this one starts."""
        named = {"AFTERMIND_DATABASE_URL": self.store, "AFTERMIND_REPLICA_URLS": json.dumps(self.replicas)}
        more = {
            "AFTERMIND_RELAY_URL": self.relay,
            "AFTERMIND_REDIS_URL": self.redis,
            "AFTERMIND_BROKER_URL": self.broker,
        }
        return {**named, **{name: value for name, value in more.items() if value is not None}}


def resolve(
    settings: Settings,
    *,
    url: str | AnyJournal | None = None,
    index: "str | VectorIndex | None" = None,
    broker: str | None = None,
    redis: str | None = None,
    replicas: Sequence[str] = (),
) -> Addresses:
    """Resolve the connections, and the external vector index.

    Arguments have precedence over settings, settings over the embedded stack of `settings.state_dir`.

    Connects nothing. Raises `InvalidSettings` if a value is missing, unreadable or inconsistent.
    """
    check_queue_settings(settings)
    if isinstance(url, str) and is_index(url):
        if index is not None:
            raise errors.InvalidSettings("index", redact(str(index)), "the store names an index already.")
        url, index = split_index(url, settings.state_dir)
    found = _resolve(settings, url, broker=broker, redis=redis, replicas=replicas)
    return replace(_with_password_file(found, settings.database_password_file), index=index)


def _with_password_file(found: Addresses, file: Path | None) -> Addresses:
    if file is None or found.scheme not in POSTGRES:
        return found
    relay, owner = (None if url is None else with_password_file(url, file) for url in (found.relay, found.owner))
    replicas = tuple(with_password_file(url, file) for url in found.replicas)
    return replace(found, store=with_password_file(found.store, file), replicas=replicas, relay=relay, owner=owner)


def _resolve(
    settings: Settings,
    url: str | AnyJournal | None,
    *,
    broker: str | None,
    redis: str | None,
    replicas: Sequence[str],
) -> Addresses:
    if url is not None and not isinstance(url, str):
        if not callable(getattr(url, "commit", None)):
            raise errors.InvalidSettings("url", url, "it is a URL, a dict with one, or a journal.")
        return _in_process_addresses(url.name, url, broker=broker, redis=redis, replicas=replicas)
    store = url or _secret(settings.database_url)
    if store is None:
        return _embedded(settings, broker=broker, redis=redis, replicas=replicas)
    scheme = _scheme("url" if url else _setting_name(settings, "database_url"), store)
    if scheme not in POSTGRES:
        journal = make_journal(store, key_prefix=settings.redis_prefix)
        if url is None and journal is not None and is_shared(journal):
            broker = broker or _secret(settings.broker_url)
        return _in_process_addresses(store, journal, broker=broker, redis=redis, replicas=replicas)
    queue = resolve_queue(settings, broker=broker, redis=redis)
    if queue is None:
        known = _read_endpoints(settings.state_dir)
        if known is None or known.store != store:
            why = (
                "Postgres needs a Redis for its workers. Set AFTERMIND_BROKER_URL, "
                "or name it: Memory(url, broker='redis://localhost:6379/0')."
            )
            if settings.database != DEFAULT:  # the embedded stack's Redis serves the database `default` alone
                entry = f'{{"{settings.database}": {{"database_url": "…", "redis_url": "redis://…"}}}}'
                why = f"database {settings.database!r} needs its own redis_url: {VARIABLE}='{entry}'."
            raise errors.InvalidSettings("broker", None, why)
        queue = known.required_redis, known.required_redis
    broker, redis = queue
    named = named_replicas(settings, replicas)
    relay = _secret(settings.relay_url) if url is None else None  # another store than the one that the settings name
    owner = _secret(settings.migrator_url) if url is None else None
    return Addresses(store=store, replicas=named, relay=relay, owner=owner, redis=redis, broker=broker)


def named_replicas(settings: Settings, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Replicas that are given, else those of the settings. Raises `InvalidSettings`."""
    named = tuple(given) or tuple(each.get_secret_value() for each in settings.replica_urls)
    field_name = "replicas" if given else _setting_name(settings, "replica_urls")
    for each in named:
        if _scheme(field_name, each) not in POSTGRES:
            raise errors.InvalidSettings(field_name, redact(each), "a replica is a postgresql:// URL.")
        if len(parse_hosts(each)) > 1:
            why = "a replica's URL has one host. List one URL per replica."
            raise errors.InvalidSettings(field_name, redact(each), why)
    return named


def spool_deployment(settings: Settings, where: Addresses) -> Deployment:
    """What the spool files of a process name. The embedded stack of the state folder has fixed names in place of its
    ports, which may change.
    """
    prefix = settings.redis_prefix
    redis, database = redis_address(where.required_redis, prefix), database_address(where.store)
    also = frozenset({redis, database})
    with suppress(errors.InvalidSettings, ValueError):  # of a stack that this process may not use
        known = _read_endpoints(settings.state_dir)
        if known is not None and redis == redis_address(known.required_redis, prefix):
            redis = f"{EMBEDDED_REDIS}/{prefix}"
        if known is not None and database == database_address(known.store):
            database = EMBEDDED_DATABASE
    return Deployment(redis, database, also=also)


def resolve_stack(
    settings: Settings,
    stack: Addresses,
    *,
    broker: str | None = None,
    redis: str | None = None,
    replicas: Sequence[str] = (),
) -> Addresses:
    """The embedded stack, but for the replicas, broker and Redis that arguments or settings name.

    Raises `InvalidSettings`.
    """
    queue = resolve_queue(settings, broker=broker, redis=redis, stack_redis=stack.redis)
    stack = replace(stack, replicas=named_replicas(settings, replicas) or stack.replicas)
    return stack if queue is None else replace(stack, broker=queue[0], redis=queue[1])


def resolve_queue(
    settings: Settings, *, broker: str | None = None, redis: str | None = None, stack_redis: str | None = None
) -> tuple[str, str] | None:
    """Broker and Redis of arguments or settings, None if neither is named. Each is the default of the other if
    possible, `stack_redis` that of the Redis. Raises `InvalidSettings`, which names what was set.
    """
    broker_name = "broker" if broker else _setting_name(settings, "broker_url")
    redis_name = "redis" if redis else _setting_name(settings, "redis_url")
    broker, redis = broker or _secret(settings.broker_url), redis or _secret(settings.redis_url)
    if redis is not None:
        _check_redis(redis, redis_name)
    if broker is not None:
        check_broker(broker, broker_name)
    elif redis is not None:
        check_broker(redis, redis_name)
        broker = redis
    else:
        return None
    redis = redis or stack_redis or (None if _is_amqp(broker) else broker)
    if redis is None:
        why = "amqp is for doorbells only; pending turns, watermarks and events need redis='redis://…' too."
        raise errors.InvalidSettings("redis" if broker_name == "broker" else redis_name, None, why)
    return broker, redis


def check_queue_settings(settings: Settings) -> None:
    """Check the settings of broker and Redis, whether or not they are used. Raises `InvalidSettings`."""
    if broker := _secret(settings.broker_url):
        check_broker(broker, _setting_name(settings, "broker_url"))
    if redis := _secret(settings.redis_url):
        _check_redis(redis, _setting_name(settings, "redis_url"))


def check_broker(url: str, field_name: str = "broker") -> None:
    """Refuse what cannot be Celery's broker, such as a Redis Cluster. Raises `InvalidSettings`."""
    if cluster.is_cluster(str(url)):
        why = (
            "Celery cannot use a Redis Cluster as its broker. Set AFTERMIND_BROKER_URL to a single redis:// server, "
            "sentinel:// or amqp://; doorbells need no other state there."
        )
        raise errors.InvalidSettings(field_name, redact(url), why)
    schemes = {_scheme(field_name, each) for each in (url.split(";") if _is_amqp(url) else [url])}
    if not schemes <= set(REDIS) and not schemes <= set(AMQP):
        why = "a broker is a redis://, sentinel:// or amqp:// URL; those of a RabbitMQ cluster are separated by ';'."
        raise errors.InvalidSettings(field_name, redact(url), why)


def _check_redis(url: str, field_name: str) -> None:
    if _scheme(field_name, url) not in REDIS:
        why = "it is a redis://, rediss://, unix://, sentinel:// or redis+cluster:// URL."
        raise errors.InvalidSettings(field_name, redact(url), why)


def _is_amqp(url: object) -> bool:
    return str(url).startswith(tuple(f"{scheme}://" for scheme in AMQP))


def _in_process_addresses(
    store: str, journal: AnyJournal | None, *, broker: str | None, redis: str | None, replicas: Sequence[str]
) -> Addresses:
    is_for_workers = journal is not None and is_shared(journal)
    given = {"broker": None if is_for_workers else broker, "redis": redis, "replicas": replicas or None}
    for name, value in given.items():
        if value is not None:
            why = f"jobs of {store.split(':')[0]!r} run in this process, without workers. Leave {name} out."
            if is_for_workers:
                why = f"{store.split(':')[0]!r} accepts turns and answers by itself. Leave {name} out."
            raise errors.InvalidSettings(name, "…", why)
    if broker is not None:
        check_broker(broker)
    return Addresses(store=store, journal=journal, broker=broker)


def _embedded(settings: Settings, *, broker: str | None, redis: str | None, replicas: Sequence[str]) -> Addresses:
    found = _read_endpoints(settings.state_dir)
    if found is None:
        raise errors.NoStoreNamed(settings.state_dir)
    return resolve_stack(settings, found, broker=broker, redis=redis, replicas=replicas)


def _read_endpoints(state_dir: Path) -> Addresses | None:
    path = state_dir / ENDPOINTS
    try:
        known = json.loads(path.read_text())
        redis = str(known["redis_url"])
        return Addresses(
            store=str(known["postgres_url"]),
            replicas=tuple(known["replica_urls"]),
            relay=known.get("relay_url"),
            owner=known.get("owner_url"),
            redis=redis,
            broker=redis,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        why = f"it cannot be read ({exc}). `aftermind down` and `aftermind up` rewrite it."
        raise errors.InvalidSettings(ENDPOINTS, str(path), why) from exc


def _scheme(field_name: str, url: object) -> str:
    if not isinstance(url, str) or not url:
        raise errors.InvalidSettings(field_name, url, "it is a URL, as text.")
    try:
        parts = urlsplit(url)
        if parts.scheme in POSTGRES:
            parse_hosts(url)
        elif parts.scheme == sentinel.SCHEME:
            sentinel.parse_url(url)
        elif cluster.is_cluster(url):
            cluster.parse_url(url)
        elif parts.scheme in SERVER and url.startswith(f"{parts.scheme}://"):
            from aftermind.wire.redis import server_url  # redis-py: stores without Redis do without it

            server_url.parse_url(url)
        else:
            _ = parts.port  # a port that is no number shows here, not at the first call
        if parts.scheme in (*POSTGRES, *REDIS, *AMQP) and not url.startswith(f"{parts.scheme}://"):
            raise ValueError(f"it begins with {parts.scheme}://, in lower case")
        if parts.scheme in (*POSTGRES, *REDIS, *AMQP) and is_cut(url):
            raise ValueError(ENCODE)
    except ValueError as exc:
        raise errors.InvalidSettings(field_name, redact(url), why_unreadable(url, exc)) from None
    return parts.scheme or url.partition(":")[0]


def _setting_name(settings: Settings, field_name: str) -> str:
    if settings.database == DEFAULT:
        return f"AFTERMIND_{field_name.upper()}"
    return f"{VARIABLE}: {settings.database}.{field_name}"


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
