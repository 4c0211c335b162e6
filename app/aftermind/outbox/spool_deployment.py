"""For which deployment a spool file is: its name has the addresses of Redis and database, without credentials.

`TIME-ID@REDIS@DATABASE.spool`. The name is there before the first turn and cannot be torn, and an earlier release sends
the file all the same. A file without addresses in its name, as earlier releases write it, is for any deployment.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from aftermind.db import postgres_url
from aftermind.wire.redis import cluster, sentinel

EMBEDDED_REDIS = "embedded-redis"  # of the folder that the spool is in: its ports may change
EMBEDDED_DATABASE = "embedded-postgres"
MAX_ADDRESS_CHARS = 45  # a name may have 143 bytes on encrypted file systems; a longer one is cut, with a digest of it
_DIGEST_CHARS = 16
_LOOPBACK = frozenset({"localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Redis and a database, as files name them. `also`: other names of the same two, for files of other processes."""

    redis: str
    database: str
    also: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def file_suffix(self) -> str:
        """What its spool files have in their names, between the id and `.spool`."""
        return f"@{_encode(self.redis)}@{_encode(self.database)}"

    def owns(self, path: Path) -> bool:
        """Whether a file is for this deployment: one of the two addresses is the same, or the name has none.

        One is enough, so that turns arrive after Redis was replaced, or the database failed over to another host.
        """
        _, *addresses = path.stem.split("@")
        own = {_encode(each) for each in (self.redis, self.database, *self.also)}
        return not addresses or not own.isdisjoint(addresses)


def describe_target(path: Path) -> str:
    """Redis and database that a file name has, for logs and reports."""
    _, *addresses = path.stem.split("@")  # two, but for a name that was edited by hand
    return " and ".join(map(unquote, addresses))


def redis_address(url: str, prefix: str) -> str:
    """Hosts, ports, database number or service, and key prefix: another prefix is another deployment."""
    if urlsplit(url).scheme == sentinel.SCHEME:
        service = sentinel.parse_url(url)
        return f"{_join_places(service.sentinels)}/{service.service}/{service.db}/{prefix}"
    if cluster.is_cluster(url):
        return f"{_join_places(cluster.parse_url(url).seeds)}/0/{prefix}"
    from aftermind.wire.redis import server_url  # redis-py: `aftermind status` needs no Redis

    given = server_url.parse_url(url)
    place = given.get("host", "localhost"), given.get("port", cluster.DEFAULT_PORT)
    return f"{given.get('path') or _join_places([place])}/{given.get('db', 0)}/{prefix}"


def database_address(url: str) -> str:
    """Hosts, ports and name of a Postgres database, or the service that has them; as asyncpg reads URL and `PG*`."""
    parts, environment = urlsplit(url), os.environ
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if service := options.get("service") or environment.get("PGSERVICE"):
        return f"service={service}"
    ports = options.get("port") or environment.get("PGPORT") or str(postgres_url.DEFAULT_PORT)
    hosts = environment.get("PGHOST") or "localhost"
    places = postgres_url.parse_hosts(url) or postgres_url.parse_hosts(f"postgresql:///?host={hosts}&port={ports}")
    user = unquote(parts.username or "") or options.get("user") or environment.get("PGUSER", "")
    named = options.get("dbname") or options.get("database") or environment.get("PGDATABASE")
    name = unquote(parts.path.strip("/")) if parts.path else named
    return f"{_join_places(places)}/{name or user}"


def _join_places(places: Iterable[tuple[str, int]]) -> str:
    """In one order and spelling, however a URL lists them."""
    return ",".join(sorted(f"{_spell(host)}:{port}" for host, port in places))


def _spell(host: str) -> str:
    if host.startswith("/"):  # the folder of a socket
        return host
    plain = host.lower().rstrip(".")
    with suppress(ValueError):  # a name
        plain = str(ip_address(plain))
    return "127.0.0.1" if plain in _LOOPBACK else plain


@lru_cache(maxsize=1024)  # of each file at each recall
def _encode(address: str) -> str:
    encoded = quote(address, safe=",")  # some mounts refuse a colon
    if len(encoded) <= MAX_ADDRESS_CHARS:
        return encoded
    digest = sha256(encoded.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{encoded[: MAX_ADDRESS_CHARS - _DIGEST_CHARS - 1]}~{digest}"
