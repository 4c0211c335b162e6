"""Where a webhook may lead: nowhere but to the public internet, however the address is written."""

import socket

import pytest

from aftermind import errors
from aftermind.events.webhooks import ssrf_guard

PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # Alibaba's metadata
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # Azure's host
    "169.254.169.254",  # metadata of most clouds
    "169.254.170.2",  # of containers
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # Oracle's metadata
    "192.0.2.1",
    "192.168.1.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",  # AWS's metadata
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]
LOOPBACK = ["127.1", "2130706433", "0x7f.0.0.1", "017700000001", "localhost", "127.0.0.1", "[::1]", "[::ffff:7f00:1]"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_a_private_place_is_told(address: str) -> None:
    assert not ssrf_guard.is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_told(address: str) -> None:
    assert ssrf_guard.is_public(address)


@pytest.mark.parametrize("host", LOOPBACK)
async def test_the_loopback_is_refused_however_it_is_written(host: str) -> None:
    named = ssrf_guard.target(f"https://{host}/hook")

    with pytest.raises(errors.InvalidWebhook, match="public internet"):
        await ssrf_guard.addresses(named.host, named.port)
    assert await ssrf_guard.addresses(named.host, named.port, allow_private=True)


async def test_a_name_of_which_one_address_is_private_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in ("93.184.216.34", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: told)

    with pytest.raises(errors.InvalidWebhook, match="public internet") as refused:
        await ssrf_guard.addresses("two.example", 443)
    assert "10.0.0.7" not in str(refused.value)  # what our resolver sees is nobody else's business


async def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(errors.InvalidWebhook, match="resolved"):
        await ssrf_guard.addresses("nobody.invalid", 443)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "https"),
        ("ftp://example.com/", "https"),
        ("file:///etc/passwd", "https"),
        ("gopher://example.com/", "https"),
        ("//example.com/", "https"),
        ("example.com", "https"),
        ("", "https"),
        ("https://", "host"),
        ("https:///path", "host"),
        ("https://user:secret@example.com/", "credentials"),
        ("https://example.com\\@127.0.0.1/", "credentials"),
        ("https://example.com:99999/", "read"),
        ("https://[::1/", "read"),
        ("https://bücher.example/", "xn--"),
        ("https://example.com/a b", "ASCII"),
        ("https://example.com/\r\nHost: x", "ASCII"),
        ("https://example.com/" + "a" * 2_100, "2,048"),
    ],
)
def test_a_url_that_cannot_be_posted_to_is_refused(url: str, why: str) -> None:
    with pytest.raises(errors.InvalidWebhook, match=why):
        ssrf_guard.target(url)


def test_plain_http_is_for_private_receivers() -> None:
    assert ssrf_guard.target("http://127.0.0.1:8000/x", allow_private=True).port == 8000
    assert ssrf_guard.target("https://example.com/x").port == 443
