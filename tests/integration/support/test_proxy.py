"""The proxy that other tests trust to break their connections."""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.proxy import Proxy, proxy_to
from tests.support.waiting import wait_until


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """A server that answers what it is told."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1000):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"redis://:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/0"


async def test_it_passes_what_it_is_given(echo: str) -> None:
    async with proxy_to(echo) as proxy:
        assert proxy.url(echo) == f"redis://:secret@127.0.0.1:{proxy.port}/0"
        assert await _ask(proxy, b"hello") == b"hello"
        assert proxy.connections == 1


async def test_it_delays(echo: str) -> None:
    async with proxy_to(echo) as proxy:
        proxy.delay(0.1)
        began = time.monotonic()

        assert await _ask(proxy, b"hello") == b"hello"

        assert time.monotonic() - began >= 0.2  # there and back


async def test_a_blackhole_neither_answers_nor_breaks(echo: str) -> None:
    async with proxy_to(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.blackhole()
        writer.write(b"hello")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(10), 0.3)

        proxy.let_pass()
        writer.write(b"again")
        assert await asyncio.wait_for(reader.read(10), 180) == b"again"
        writer.close()


async def test_a_reset_breaks_what_is_open_and_what_comes(echo: str) -> None:
    async with proxy_to(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.read(10) == b"hello"

        proxy.reset()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.readexactly(1), 180)
        writer.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await _ask(proxy, b"hello")
        proxy.let_pass()
        assert await _ask(proxy, b"hello") == b"hello"


async def test_wait_until_names_what_did_not_happen() -> None:
    with pytest.raises(AssertionError, match=r"0.05 s for: the moon \(last seen: None\)"):
        await wait_until(lambda: None, timeout=0.05, description="the moon")


async def _ask(proxy: Proxy, question: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(question)
        return await asyncio.wait_for(reader.readexactly(len(question)), 180)
    finally:
        writer.close()


async def test_what_connects_while_it_stops_is_closed(echo: str) -> None:
    for turns_of_the_loop in range(8):  # at one of them it is accepted, and not yet served
        async with proxy_to(echo) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
        with client, pytest.raises(ConnectionResetError):
            await asyncio.to_thread(client.recv, 10)
    gc.collect()  # a socket that stayed open would warn
