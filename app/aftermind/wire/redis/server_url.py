"""URLs of a single Redis server: `redis://`, `rediss://` and `unix://`, as redis-py spells them, or as kombu does."""

from functools import cache, lru_cache
from ssl import SSLContext
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import RedisSSLContext, SSLConnection
from redis.asyncio.connection import parse_url as parse_redis_url
from redis.driver_info import DriverInfo

from aftermind.wire.redis.sentinel import check_login

ServerAddress = dict[str, Any]  # Any: keyword arguments of redis-py's connection and pool

# Those that a URL can have the value of: redis-py takes each keyword argument, also `retry`, which is an object.
_OPTIONS = {
    *("host", "port", "path", "db", "virtual_host", "username", "password", "protocol", "client_name"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size"),
    *("retry_on_timeout", "health_check_interval", "max_connections", "timeout"),
    *("ssl_keyfile", "ssl_certfile", "ssl_password", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
    *("ssl_include_verify_flags", "ssl_exclude_verify_flags"),
}


def parse_url(url: str) -> ServerAddress:
    """Parse and check the URL with all of its options. Raises `ValueError` with the reason."""
    url = url.replace("redis+socket://", "unix://", 1)
    address: ServerAddress = dict(parse_redis_url(url))
    if unknown := sorted(address.keys() - _OPTIONS - {"connection_class"}):
        raise ValueError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    if url.startswith("unix:"):
        if not address.get("path"):
            raise ValueError("name the path of the socket, as in unix:///run/redis.sock")
    elif (path := unquote(urlsplit(url).path).strip("/")) and not path.isdecimal():  # redis-py ignores it
        raise ValueError("its path is not the number of a database")  # without it: it may have a part of the password
    if "virtual_host" in address:  # kombu's `db`
        database = str(address.pop("virtual_host")).strip("/") or "0"
        if not database.isdecimal():
            raise ValueError(f"virtual_host={database} is not the number of a database")
        address["db"] = int(database)
    if "ssl_cert_reqs" in address:  # kombu's CERT_NONE
        address["ssl_cert_reqs"] = address["ssl_cert_reqs"].removeprefix("CERT_").lower()
    try:
        # Connects nothing, and raises what the first call would raise.
        pool = BlockingConnectionPool(**address, driver_info=driver_info())
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (exceptions.RedisError, TypeError) as exc:
        raise ValueError(f"redis-py refuses an option: {exc}") from exc
    check_login(address.get("username"), address.get("password"))
    if has_tls(address):
        try:
            _check_tls(tuple(sorted((name, _frozen(value)) for name, value in tls_options(address).items())))
        except (OSError, TypeError, ValueError) as exc:  # ssl.SSLError is an OSError
            given = ", ".join(sorted(name for name in address if name.startswith("ssl_")))
            raise ValueError(f"TLS is not possible with {given or 'the defaults'}: {exc}") from exc
    return address


@cache
def driver_info() -> DriverInfo:
    """The name and version of redis-py, which it reads from the installed package for each connection: 0.9 ms."""
    return DriverInfo()


def has_tls(address: ServerAddress) -> bool:
    """Whether connections are encrypted."""
    return address.get("connection_class") is SSLConnection


def make_tls_context(address: ServerAddress) -> SSLContext:
    """The context for the options of TLS; reads their files."""
    options = {name.removeprefix("ssl_"): value for name, value in tls_options(address).items()}
    return RedisSSLContext(**options).get()


# Twenty: a process has a few Redis servers. An error is not cached, so a file that is corrected is read again.
@lru_cache(maxsize=20)
def _check_tls(options: tuple[tuple[str, Any], ...]) -> None:  # Any: as above
    """A context takes about 40 ms, and a process parses the same URL several times."""
    make_tls_context(dict(options))


def _frozen(value: Any) -> Any:  # Any: as above
    return tuple(value) if isinstance(value, list) else value


def tls_options(address: ServerAddress) -> dict[str, Any]:  # Any: redis-py's keyword arguments
    """The options of TLS, for kombu too: the server is verified unless the URL has another option."""
    given = {name: value for name, value in address.items() if name.startswith("ssl_")}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}


def kombu_url(url: str) -> str:
    """The URL as kombu takes it: a socket is `redis+socket://`, and TLS options are no part of it."""
    address = parse_url(url)
    password, database = address.get("password"), address.get("db", 0)
    login = f"{quote(address.get('username', ''), safe='')}:{quote(password, safe='')}@" if password else ""
    if "path" in address:
        return f"redis+socket://{login}{quote(address['path'])}?virtual_host={database}"
    host = address.get("host", "localhost")
    where = f"[{host}]" if ":" in host else host
    scheme = "rediss" if has_tls(address) else "redis"
    return f"{scheme}://{login}{where}:{address.get('port', 6379)}/{database}"
