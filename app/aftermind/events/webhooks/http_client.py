"""`Poster`: one HTTPS request to an untrusted host, connected to an address that was checked, with a deadline."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import httpcore

from aftermind import errors
from aftermind.events.webhooks import ssrf_guard

POST_SECONDS = 15.0  # for all of it: name, connection, answer
CONNECT_SECONDS = 5.0
ANSWER_BYTES = 16_384  # read, so that the connection can be used again; more ends it
CONNECTIONS = 64
IDLE_SECONDS = 10.0
LONGEST_RETRY_AFTER = 3_600


class DeliveryRejected(Exception):
    """The event was not accepted. `retry_after` is from the receiver; `is_gone`: it accepts no more events."""

    def __init__(self, why: str, *, retry_after: timedelta | None = None, is_gone: bool = False) -> None:
        self.retry_after, self.is_gone = retry_after, is_gone
        super().__init__(why)


class Poster:
    """Posts to public addresses, follows no redirect, uses no proxy of the environment, keeps no cookie."""

    def __init__(self, *, allow_private: bool = False) -> None:
        context = httpcore.default_ssl_context()
        context.load_default_certs()  # the system's too, and SSL_CERT_FILE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._allow_private = allow_private
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            network_backend=CheckedNetwork(allow_private=allow_private),
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS // 2,
            keepalive_expiry=IDLE_SECONDS,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post; returns where it was taken (2xx). Raises `DeliveryRejected` for everything else."""
        try:
            found = ssrf_guard.target(url, allow_private=self._allow_private)
            told = {"Host": _host(found), "Content-Type": "application/json", "User-Agent": "Aftermind-Webhooks"}
            told |= {"Content-Length": str(len(body)), **headers}
            async with asyncio.timeout(POST_SECONDS):
                await self._post(url, body, list(told.items()))
        except TimeoutError as exc:
            raise DeliveryRejected(f"no answer within {POST_SECONDS:g} s") from exc
        except errors.InvalidWebhook as exc:
            raise DeliveryRejected(str(exc)) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as exc:
            raise DeliveryRejected(f"{type(exc).__name__}: {exc}"[:300]) from exc

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def _post(self, url: str, body: bytes, headers: list[tuple[str, str]]) -> None:
        timeouts = {"connect": CONNECT_SECONDS, "read": POST_SECONDS, "write": POST_SECONDS, "pool": POST_SECONDS}
        async with self._pool.stream(
            "POST", url, headers=headers, content=body, extensions={"timeout": timeouts}
        ) as answer:
            if not 200 <= answer.status < 300:
                raise DeliveryRejected(f"HTTP {answer.status}", retry_after=_wait(answer), is_gone=answer.status == 410)
            taken = 0
            async for part in answer.aiter_stream():
                taken += len(part)
                if taken > ANSWER_BYTES:
                    return


class CheckedNetwork(httpcore.AnyIOBackend):
    """Connects to the addresses of a name if all of them are public; TLS still verifies the name."""

    def __init__(self, *, allow_private: bool) -> None:
        super().__init__()
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # Any: a socket option, in its three forms
        """A connection to the first address that answers."""
        failed: Exception | None = None
        for address in await ssrf_guard.addresses(host, port, allow_private=self._allow_private):
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failed = exc
        raise failed or httpcore.ConnectError("no address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise httpcore.ConnectError("a webhook is no socket of this machine")


def _host(found: ssrf_guard.Target) -> str:
    host = f"[{found.host}]" if ":" in found.host else found.host
    return host if found.port == ssrf_guard.PORTS[found.scheme] else f"{host}:{found.port}"


def _wait(answer: httpcore.Response) -> timedelta | None:
    told = {name.lower(): value for name, value in answer.headers}.get(b"retry-after", b"").decode("latin-1")
    return timedelta(seconds=min(int(told), LONGEST_RETRY_AFTER)) if told.isascii() and told.isdecimal() else None
