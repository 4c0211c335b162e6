"""Redis with Sentinel: `sentinel://[user:password@]host:26379,host:26379/service`, and the search for its primary."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit

from aftermind import errors
from aftermind.wire.redis.connection import RedisConnection
from aftermind.wire.redis.resp import Answer, Argument, pack

SCHEME = "sentinel"
DEFAULT_PORT = 26379
_OPTIONS = {"db", "sentinel_username", "sentinel_password"}

Dial = Callable[[str, int], Awaitable[RedisConnection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAddress:
    """A parsed URL: user and password are of Redis itself; the sentinels' own are options of the URL."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


def parse_url(url: str) -> SentinelAddress:
    """Parse `sentinel://user:password@h1:26379,h2/service?db=0&sentinel_username=…&sentinel_password=…`.

    Raises `ValueError` with the reason.
    """
    parts = urlsplit(url)
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, options = unquote(parts.path.strip("/")), parse_qs(parts.query)
    if not service or "/" in service:
        raise ValueError("name the service that the sentinels watch, as in sentinel://h1,h2,h3/mymaster")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ValueError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    given = {name: values[-1] for name, values in options.items()}
    if not given.get("db", "0").isdecimal():
        raise ValueError(f"db={given['db']} is not a number")
    check_login(unquote(username), unquote(password))
    check_login(given.get("sentinel_username"), given.get("sentinel_password"))
    return SentinelAddress(
        sentinels=tuple(parse_place(place, default_port=DEFAULT_PORT) for place in places.split(",")),
        service=service,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=int(given.get("db", 0)),
        sentinel_username=given.get("sentinel_username"),
        sentinel_password=given.get("sentinel_password"),
    )


def kombu_url(address: SentinelAddress) -> str:
    """The address as kombu takes it: a URL per sentinel; the service is one of its transport options."""
    login = f"{quote(address.username or '', safe='')}:{quote(address.password, safe='')}@" if address.password else ""
    return ";".join(f"{SCHEME}://{login}{_bracketed(host)}:{port}/{address.db}" for host, port in address.sentinels)


def kombu_options(address: SentinelAddress, *, timeout: float) -> dict[str, object]:
    """Transport options of kombu for the address; `timeout` (seconds) limits each answer of a sentinel."""
    own = {"username": address.sentinel_username, "password": address.sentinel_password}
    given = {name: value for name, value in own.items() if value is not None}
    limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    return {"master_name": address.service, "sentinel_kwargs": {**limits, **given}}


async def find_primary(address: SentinelAddress, dial: Dial) -> tuple[str, int]:
    """Host and port of the service's primary: the one of the latest failover that a majority of sentinels can name.

    The node confirms that it is a primary (`ROLE`). Raises `RedisUnavailable`; `UnknownSentinelService` if no sentinel
    that answers has the service.
    """
    votes: dict[tuple[str, int], int] = {}  # node → number of the failover that made it the primary
    refusals: list[Exception] = []
    asked = [asyncio.create_task(_ask(address, host, port, dial)) for host, port in address.sentinels]
    try:
        for task in asyncio.as_completed(asked):
            try:
                node, failover = await task
            except (errors.RedisUnavailable, OSError) as exc:
                refusals.append(exc)
                continue
            votes[node] = max(failover, votes.get(node, 0))
            answered = sum(each.done() for each in asked) - len(refusals)
            if answered > len(asked) // 2:
                break
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    for node in sorted(votes, key=lambda each: votes[each], reverse=True):
        try:
            if await _is_primary(address, node, dial):
                return node
        except (errors.RedisUnavailable, OSError) as exc:
            refusals.append(exc)
    unknown = [each for each in refusals if isinstance(each, errors.UnknownSentinelService)]
    if unknown and not votes:
        raise unknown[0]
    why = "; ".join(dict.fromkeys(str(each) for each in refusals)) or "the node that they name is not a primary now"
    raise errors.RedisUnavailable(f"the sentinels of {address.service!r} name no primary: {why}")


def login(username: str | None, password: str | None) -> list[tuple[Argument, ...]]:
    """The commands of a login; none without a password."""
    if password is None:
        return []
    return [("AUTH", *([username] if username else []), password)]


def check_login(username: str | None, password: str | None) -> None:
    """Raises `ValueError` for a user without a password: some clients would log in as the user, and others not."""
    if username and not password:
        raise ValueError("it has a user without a password: write both, or none of them")


async def _ask(address: SentinelAddress, host: str, port: int, dial: Dial) -> tuple[tuple[str, int], int]:
    commands = login(address.sentinel_username, address.sentinel_password)
    try:
        answer = await run(await dial(host, port), [*commands, ("SENTINEL", "MASTER", address.service)])
    except errors.Bug as exc:
        if "No such master" in str(exc):
            raise errors.UnknownSentinelService(address.service, f"{host}:{port}") from exc
        raise errors.RedisUnavailable(f"{host}:{port} is no sentinel, or refuses: {exc}") from exc
    found = {key.decode(): value.decode() for key, value in zip(answer[::2], answer[1::2], strict=False)}
    return (found["ip"], int(found["port"])), int(found["config-epoch"])


async def _is_primary(address: SentinelAddress, node: tuple[str, int], dial: Dial) -> bool:
    answer = await run(await dial(*node), [*login(address.username, address.password), ("ROLE",)])
    return bool(answer[0] == b"master")


async def run(connection: RedisConnection, commands: list[tuple[Argument, ...]]) -> Answer:
    """Run commands on a connection that is closed then; the answer to the last."""
    try:
        return (await asyncio.gather(*(connection.send(pack(command)) for command in commands)))[-1]
    finally:
        connection.close()


def parse_place(place: str, *, default_port: int) -> tuple[str, int]:
    """Host and port of one of the servers in a URL. Raises `ValueError`."""
    host, separator, port = place.rpartition(":")
    if place.endswith("]") or not separator:
        host, port = place, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise ValueError("a host is missing")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{port!r} is not a port")
    return host, int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
