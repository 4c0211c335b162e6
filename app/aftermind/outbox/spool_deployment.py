"""For which deployment a spool file is: its name has the addresses of Redis and database, without credentials.

`TIME-ID@REDIS@DATABASE.spool`. The name is there before the first turn and cannot be torn, and an earlier release sends
the file all the same. A file without addresses in its name, as earlier releases write it, is for any deployment.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from aftermind.db import postgres_url
from aftermind.wire.redis import cluster, sentinel

EMBEDDED_REDIS = "embedded-redis"  # of the folder that the spool is in: its ports may change
EMBEDDED_DATABASE = "embedded-postgres"
MAX_ADDRESS_CHARS = 80  # file systems allow 255 bytes for a name; a longer list of hosts is cut, with a digest of it
_DIGEST_CHARS = 16
_LOOPBACK = frozenset({"localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Redis and a database, as files name them. `also`: other names of the same two, for files of other processes."""

    redis: str
    database: str
    also: frozenset[str] = field(default=frozenset())

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
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    if parts.scheme in ("unix", "redis+socket"):
        number = options.get("db", options.get("virtual_host", ["0"]))[-1]
        return f"{parts.path}/{number.strip('/')}/{prefix}"
    if parts.scheme == sentinel.SCHEME:
        service = sentinel.parse_url(url)
        return f"{_join_places(service.sentinels)}/{service.service}/{service.db}/{prefix}"
    if cluster.is_cluster(url):
        return f"{_join_places(cluster.parse_url(url).seeds)}/0/{prefix}"
    number = options.get("db", [parts.path.strip("/") or "0"])[-1]
    return f"{_join_places([(parts.hostname or 'localhost', parts.port or cluster.DEFAULT_PORT)])}/{number}/{prefix}"


def database_address(url: str) -> str:
    """Hosts, ports and name of a Postgres database."""
    parts = urlsplit(url)
    places = postgres_url.parse_hosts(url) or (("localhost", postgres_url.DEFAULT_PORT),)
    name = parse_qs(parts.query).get("dbname", [unquote(parts.path.strip("/")) or parts.username or ""])[-1]
    return f"{_join_places(places)}/{name}"


def _join_places(places: Iterable[tuple[str, int]]) -> str:
    """In one order and spelling, however a URL lists them."""
    named = ((host.lower(), port) for host, port in places)
    return ",".join(sorted(f"{'127.0.0.1' if host in _LOOPBACK else host}:{port}" for host, port in named))


def _encode(address: str) -> str:
    encoded = quote(address, safe=":,")
    if len(encoded) <= MAX_ADDRESS_CHARS:
        return encoded
    digest = sha256(encoded.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{encoded[: MAX_ADDRESS_CHARS - _DIGEST_CHARS - 1]}~{digest}"
