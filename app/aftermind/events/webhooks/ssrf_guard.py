"""Allowed targets of webhooks: addresses of the public internet only, whatever a name resolves to.

The tenant chooses the target and this network makes the connection: without these checks a webhook could reach
databases, metadata services and neighbours that are not public. Checked when a webhook is created, and again for the
address of each connection, so that a name that resolves differently the second time gains nothing.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from aftermind import errors

URL_BYTES = 2_048
LOOKUP_SECONDS = 5.0

# Addresses that `is_global` of Python 3.11 treats as public although they are not: protocol assignments, relays and
# translations into IPv4 networks of their operator, documentation, and the address of Azure's host.
NOT_PUBLIC = tuple(
    ip_network(each)
    for each in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "168.63.129.16/32",
        "240.0.0.0/4",
        "::/96",
        "64:ff9b:1::/48",
        "100:0:0:1::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
NAT64 = ip_network("64:ff9b::/96")


PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be posted to as far as it shows by itself."""

    scheme: str
    host: str
    port: int


def target(url: str, *, allow_private: bool = False) -> Target:
    """What a URL names. Raises `InvalidWebhook`. Plain HTTP is for private targets, where those are allowed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("ascii")
    except UnicodeError as exc:
        raise errors.InvalidWebhook("url", url, "its host is not ASCII: write an IDN as xn--….") from exc
    except ValueError as exc:
        raise errors.InvalidWebhook("url", url, f"it cannot be read: {exc}.") from exc
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        why = "it must begin with https://. AFTERMIND_WEBHOOK_ALLOW_PRIVATE allows http:// to your own network."
        raise errors.InvalidWebhook("url", url, why)
    if not host or "%" in host:
        raise errors.InvalidWebhook("url", url, "it names no host.")
    if parts.username is not None or parts.password is not None:
        raise errors.InvalidWebhook(
            "url", url, "credentials in it would be stored and shown; receivers verify the signature instead."
        )
    if len(url.encode()) > URL_BYTES or not url.isascii() or any(ord(each) <= 32 for each in url):
        raise errors.InvalidWebhook("url", url, f"at most {URL_BYTES:,} printable ASCII characters.")
    return Target(parts.scheme, host, port or PORTS[parts.scheme])


async def addresses(host: str, port: int, *, allow_private: bool = False) -> list[str]:
    """Where a host is to be found. Raises `InvalidWebhook` where any of its addresses is not public, or there is none.

    A name of which one address is private is refused whole: it is no mistake that should be worked around.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as exc:
        raise errors.InvalidWebhook("url", host, "its name cannot be resolved.") from exc
    resolved = list(dict.fromkeys(str(each[4][0]) for each in found))
    private = [each for each in resolved if not is_public(each)]
    if private and not allow_private:
        why = "it leads to an address that is not of the public internet. AFTERMIND_WEBHOOK_ALLOW_PRIVATE allows it."
        raise errors.InvalidWebhook("url", host, why)
    return resolved


def is_public(address: str) -> bool:
    """Whether an address is of the public internet; one that carries an IPv4 address is judged by that."""
    if "%" in address:  # of a link
        return False
    ip: IPv4Address | IPv6Address = ip_address(address)
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in NAT64:
            ip = IPv4Address(int(ip) & 0xFFFF_FFFF)
    if any(ip.version == network.version and ip in network for network in NOT_PUBLIC):
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
