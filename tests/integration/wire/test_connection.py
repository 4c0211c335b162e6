"""One connection a loop: answers in order, deadlines kept, errors named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aftermind import errors
from aftermind.wire.redis.client import RedisLink, unavailable
from tests.support.loop_clock import loop_clock
from tests.support.proxy import proxy_to
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = pytest.mark.asyncio


class Answering(asyncio.Protocol):
    """A server that greets in order and answers every later command alike: for states a server cannot be put in."""

    def __init__(self, reply: bytes, open_: list[asyncio.Transport]) -> None:
        self._reply, self._open, self._greeted = reply, open_, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.append(transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._reply if self._greeted else b"+OK\r\n")
        self._greeted = True


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[str]:
    open_: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(lambda: Answering(reply, open_), "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for transport in open_:
            transport.abort()
        await asyncio.sleep(0)


async def test_concurrent_calls_share_one_connection_and_each_gets_its_own_answer(
    valkey: Valkey, link: RedisLink
) -> None:
    answers = await asyncio.gather(*(link.call("ECHO", f"e{i}") for i in range(300)))

    assert answers == [f"e{i}".encode() for i in range(300)]
    with valkey.client() as client:
        assert sum(one["name"] == "aftermind" for one in client.client_list()) == 1


async def test_an_answer_of_many_megabytes_arrives_whole(link: RedisLink) -> None:
    big = b"x" * 8_000_000
    await link.call("SET", "big", big)

    assert await link.call("MGET", "big", "nothing", "big") == [big, None, big]


async def test_bytes_that_look_like_protocol_pass_through(link: RedisLink) -> None:
    nasty = b"$-1\r\n*3\r\n\x00\xff:1\r\n"
    await link.call("SET", nasty, nasty)

    assert await link.call("GET", nasty) == nasty
    assert await link.call("EVAL", "return {1, {2, {}}, false, 'x'}", 0) == [1, [2, []], None, b"x"]


async def test_a_frozen_server_is_given_up_after_the_deadline_and_found_again_later(
    valkey: Valkey, link: RedisLink
) -> None:
    await link.call("PING")
    with valkey.frozen():
        async with loop_clock() as clock:
            with pytest.raises(errors.RedisUnavailable, match=r"no answer within 0.5 s"):
                await link.call("PING")
        assert clock.seconds < 0.9
        with pytest.raises(errors.RedisUnavailable):
            await link.call("PING")

    assert await link.call("PING") == b"PONG"


async def test_a_late_answer_never_reaches_another_call(valkey: Valkey) -> None:
    async with proxy_to(valkey.url) as proxy:
        link = RedisLink(proxy.url(valkey.url), timeout=0.3)
        await link.call("PING")
        proxy.delay(0.2)
        with pytest.raises(errors.RedisUnavailable):
            await link.call("ECHO", "late")
        proxy.let_pass()

        assert [await link.call("ECHO", str(i)) for i in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        await link.close()


async def test_a_cancelled_call_leaves_the_connection_in_step(link: RedisLink) -> None:
    await link.call("PING")
    calls = [asyncio.create_task(link.call("ECHO", str(i))) for i in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert answers[1::2] == [b"1", b"3", b"5", b"7", b"9"]
    assert await link.call("ECHO", "after") == b"after"


async def test_a_reset_connection_fails_what_is_in_flight_and_the_next_call_connects_anew(valkey: Valkey) -> None:
    async with proxy_to(valkey.url) as proxy:
        link = RedisLink(proxy.url(valkey.url), timeout=0.5)
        await link.call("PING")
        proxy.delay(0.2)
        call = asyncio.create_task(link.call("PING"))
        await asyncio.sleep(0)

        proxy.reset()

        with pytest.raises(errors.RedisUnavailable):
            await call
        proxy.let_pass()
        assert await link.call("PING") == b"PONG"
        await link.close()


@pytest.mark.parametrize(
    "word", ["OOM", "READONLY", "LOADING", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM", "MASTERDOWN", "BUSY"]
)
async def test_each_word_of_refusal_is_redis_being_away(word: str) -> None:
    async with answering(f"-{word} for some reason\r\n".encode()) as url:
        link = RedisLink(url, timeout=0.5)

        with pytest.raises(errors.RedisUnavailable, match=word):
            await link.call("GET", "x")

        await link.close()


async def test_something_else_that_listens_there_is_no_redis() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        link = RedisLink(url, timeout=0.5)

        with pytest.raises(errors.RedisUnavailable, match="no Redis"):
            await link.call("GET", "x")

        await link.close()


async def test_a_wrong_command_is_a_bug_of_ours_and_harms_nobody_else(link: RedisLink) -> None:
    await link.call("SET", "text", "x")

    with pytest.raises(errors.Bug, match="WRONGTYPE"):
        await link.call("LPUSH", "text", "y")

    assert await link.call("GET", "text") == b"x"


async def test_a_wrong_password_is_told(valkey: Valkey) -> None:
    link = RedisLink(valkey.url.replace(valkey.password, "wrong"), timeout=0.5)

    with pytest.raises(errors.RedisUnavailable, match="WRONGPASS"):
        await link.call("PING")


async def test_a_url_that_is_none_is_told_without_its_password() -> None:
    with pytest.raises(errors.InvalidSettings) as caught:
        RedisLink("mysql://root:hunter2@db/1", timeout=0.5)

    assert "hunter2" not in str(caught.value)


async def test_redis_pys_own_client_shares_the_errors(valkey: Valkey, link: RedisLink) -> None:
    assert await link.client().ping()
    valkey.kill()

    async def away() -> bool:
        try:
            with unavailable():
                await link.client().ping()
        except errors.RedisUnavailable:
            return True
        return False

    await wait_until(away, description="the client says that Redis is away")
