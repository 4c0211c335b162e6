"""Postgres URLs with one host or several, as libpq has them: `@h1:5432,h2:5433/db` and `?host=h1:5432,h2:5433`."""

from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from aftermind import errors, url_redaction

SCHEMES = ("postgresql", "postgres")
DEFAULT_PORT = 5432
PASSWORD_FILE = "password_file"  # an option of ours in the query: the driver must not get it


def plain(url: str) -> str:
    """The URL without a driver's name in its scheme. Raises `InvalidSettings` for another scheme or bad hosts."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.split("+")[0] not in SCHEMES:
        raise errors.InvalidSettings("database_url", url_redaction.redact(url), "it must begin with postgresql://")
    try:
        parse_hosts(url)
    except ValueError as exc:
        why = url_redaction.why_unreadable(url, exc)
        raise errors.InvalidSettings("database_url", url_redaction.redact(url), why) from None
    return f"postgresql://{rest}"


def parse_hosts(url: str) -> tuple[tuple[str, int], ...]:
    """Hosts and ports of a URL, in its order; hosts before the path have precedence over `?host=`, as for libpq.

    A port of `?port=` applies to hosts without their own: one port to all of them, or as many ports as hosts. Empty
    where the URL names no host. Raises `ValueError`.
    """
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    places = parts.netloc.rpartition("@")[2] or options.get("host", [""])[-1]
    if not places:
        return ()
    hosts = [_parse_host(place) for place in places.split(",")]
    ports = [_parse_port(port) for port in options.get("port", [str(DEFAULT_PORT)])[-1].split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise ValueError(f"it has {len(hosts)} hosts and {len(ports)} ports")
    return tuple((host, given or port) for (host, given), port in zip(hosts, ports, strict=True))


def with_password_file(url: str, file: Path | None) -> str:
    """The URL with a file to read its password from; as it is if it has a password, or names such a file."""
    parts = urlsplit(url)
    named = {each.partition("=")[0] for each in parts.query.split("&")}
    if file is None or parts.password or {"password", "passfile", PASSWORD_FILE} & named:
        return url
    separator = "&" if parts.query else "" if url.endswith("?") else "?"
    return f"{url}{separator}{PASSWORD_FILE}={quote(str(file.absolute()), safe='')}"


def split_password_file(url: str) -> tuple[str, Path | None]:
    """The URL for the driver, and the file to read its password from, if it names one."""
    place, _, query = url.partition("?")
    options = [each for each in query.split("&") if each]
    named = [unquote(each.partition("=")[2]) for each in options if each.partition("=")[0] == PASSWORD_FILE]
    if not named:
        return url, None
    others = "&".join(each for each in options if each.partition("=")[0] != PASSWORD_FILE)
    return f"{place}?{others}" if others else place, Path(named[-1]) if named[-1] else None


def redact(url: str) -> str:
    """Hosts, ports and database of a URL: for logs and errors."""
    places = ",".join(f"{host}:{port}" for host, port in parse_hosts(url)) or f"local:{DEFAULT_PORT}"
    return f"{places}{urlsplit(url).path}"


def _parse_host(place: str) -> tuple[str, int | None]:
    place = unquote(place)
    if place.startswith("/"):  # the folder of a socket
        return place, None
    host, separator, port = place.rpartition(":")
    if place.endswith("]") or not separator:  # an IPv6 address in brackets, or no port
        host, port = place, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise ValueError("a host is missing")
    return host, _parse_port(port) if port else None


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise ValueError(f"{text!r} is not a port")
    return int(text)
