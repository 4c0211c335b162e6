"""`/v1/users/{user}/events` over real sockets: what is heard, and what a listener gets that comes again."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
import redis.asyncio
import uvicorn

from aftermind.db.engine import PostgresDatabase
from aftermind.events.bus import EventBus
from aftermind.settings import Settings
from aftermind.stack.ports import choose
from aftermind.types import Scope
from aftermind.web import create_app, event_fanout
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.conformance.bus_contract import ALICE, BOB, Rig, completed, ids
from tests.support.event_listener import Event, listening
from tests.support.fork_server import start_module
from tests.support.proxy import Proxy
from tests.support.servers import Database, psql_async
from tests.support.service import local_token
from tests.support.waiting import wait_until
from tests.support.workers import environment

PATH = "/v1/users/alice/events"


@pytest.fixture
async def rig(database: Database, redis_url: str) -> AsyncIterator[Rig]:
    """A bus as a worker has it: it keeps events and tells them."""
    link, db = RedisLink(redis_url, timeout=2.0, name="test"), PostgresDatabase(database.url)
    bus = EventBus(db, link, Keys())
    yield Rig(db=db, bus=bus)
    await bus.close()
    await link.close()
    await db.close()


@pytest.fixture
async def serve(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """Services of the test's own, with other settings where it names them; each gives its address, a token in it."""
    async with AsyncExitStack() as stack:

        async def start(**more: object) -> str:
            given = {
                "database_url": database.app_url,
                "broker_url": redis_url,
                "embedder": "hash",
                "state_dir": tmp_path,
            }
            given |= more
            app = create_app(Settings(**given))  # type: ignore[arg-type]
            server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
            own = socket.create_server(("127.0.0.1", 0))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that who does not read is soon felt
            task = asyncio.create_task(server.serve(sockets=[own]))
            await wait_until(lambda: server.started, description="the service listens")

            async def stop() -> None:
                app.state.feeds.end()
                server.should_exit = True
                await task

            stack.push_async_callback(stop)
            return f"http://{local_token(tmp_path)}@127.0.0.1:{own.getsockname()[1]}"

        yield start


def told(events: list[Event]) -> list[str]:
    """Their ids as the memory knows them."""
    return [event.json["id"] for event in events]


async def test_events_come_as_they_happen_and_only_those_of_their_user(rig: Rig, serve: Callable[..., object]) -> None:
    base = await serve()

    async with listening(base, PATH) as stream:
        await wait_until(_subscribed(rig), description="the service subscribes")
        await rig.tell(completed(BOB))
        await rig.tell(completed(Scope(namespace="other", user_id="alice")))
        kept = await rig.tell(completed(), completed())
        events = await stream.next(2)

    assert stream.status == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"
    assert told(events) == ids(kept)
    assert [event.name for event in events] == ["MemoryUpdateCompleted"] * 2
    assert [event.id for event in events] == ["1", "2"]
    assert events[0].json["message_count"] == 2


async def test_a_listener_that_is_cut_off_and_returns_misses_nothing(rig: Rig, serve: Callable[..., object]) -> None:
    base, heard, cursor = await serve(), [], None
    everything: list[str] = []

    for _ in range(8):  # comes, hears some, is cut off in the middle of what is told
        async with listening(base, PATH, last_id=cursor) as stream:
            telling = asyncio.create_task(_tell(rig, 25, everything))
            heard += told(await stream.next(10))
            cursor = stream.last_id
        await telling
    async with listening(base, PATH, last_id=cursor) as stream:
        heard += told(await stream.next(200 - len(heard)))

    assert heard == everything
    assert len(everything) == 200


async def test_a_listener_that_heard_nothing_yet_is_told_where_it_stands(
    rig: Rig, serve: Callable[..., object]
) -> None:
    base = await serve()
    await rig.tell(completed())

    async with listening(base, PATH) as stream:
        await rig.tell(completed())
        await stream.next(1)
    async with listening(base, PATH) as stream:
        await wait_until(lambda: _read_line(stream.reader, b"id: 2"), description="the stream says where it begins")
    missed = await rig.tell(completed())

    async with listening(base, PATH, last_id="2") as stream:
        assert told(await stream.next(1)) == ids(missed)


async def test_a_cursor_older_than_the_record_gets_a_gap_first(
    rig: Rig, database: Database, serve: Callable[..., object]
) -> None:
    await rig.tell(*(completed() for _ in range(3)))
    await psql_async(database.url, "UPDATE aftermind.events SET created_at = created_at - interval '8 days'")
    assert isinstance(rig.bus, EventBus)
    await rig.bus.prune(older_than=timedelta(days=7), limit=100)
    (kept,) = await rig.tell(completed())

    async with listening(await serve(), PATH, last_id="1") as stream:
        gap, event = await stream.next(2)

    assert (gap.name, gap.id, gap.json["event"]) == ("gap", "3", "MemoryGap")
    assert told([event]) == [kept.id]


async def test_many_listeners_take_one_connection_of_redis(
    rig: Rig, redis_url: str, serve: Callable[..., object]
) -> None:
    base = await serve()
    async with AsyncExitStack() as stack, redis.asyncio.Redis.from_url(redis_url) as client:
        users = [f"user-{number % 50}" for number in range(400)]
        streams = [await stack.enter_async_context(listening(base, f"/v1/users/{user}/events")) for user in users]
        await wait_until(lambda: _channels(client, 50), description="every user's channel is subscribed to")
        subscribers = [each for each in await client.client_list() if int(each["sub"])]
        kept = {user: (await rig.tell(completed(Scope(user_id=user))))[0].id for user in set(users)}
        heard = await asyncio.gather(*(stream.next(1) for stream in streams))

    assert len(subscribers) == 1
    assert [told(events) for events in heard] == [[kept[user]] for user in users]
    await wait_until(lambda: _nobody_subscribes(redis_url), description="nothing stays subscribed")


async def test_a_listener_that_does_not_read_is_cut_off_and_can_come_again(
    rig: Rig, serve: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftermind.web.sse.SEND_SECONDS", 0.5)
    base = await serve()
    everything: list[str] = []

    async with listening(base, PATH, buffer=1024) as slow, listening(base, PATH) as quick:
        reading = asyncio.create_task(quick.next(3_000))
        for _ in range(30):
            await _tell(rig, 100, everything, each=100)
        heard = told(await reading)
        late = told(await slow.next(3_000))
    assert len(late) < 3_000
    async with listening(base, PATH, last_id=slow.last_id) as again:
        late += told(await again.next(3_000 - len(late)))

    assert heard == everything
    assert late == everything


async def test_while_redis_is_away_events_come_from_the_record(
    rig: Rig, redis_url: str, serve: Callable[..., object]
) -> None:
    at = urlsplit(redis_url)
    proxy = Proxy(at.hostname or "", at.port or 0)
    await proxy.start()
    try:
        base = await serve(redis_url=proxy.url(redis_url))
        async with listening(base, PATH) as stream:
            first = await rig.tell(completed())
            assert told(await stream.next(1)) == ids(first)
            proxy.reset()
            second = await rig.tell(completed())
            assert told(await stream.next(1)) == ids(second)
            proxy.let_pass()
            third = await rig.tell(completed())
            assert told(await stream.next(1)) == ids(third)
    finally:
        await proxy.stop()


async def test_silence_is_broken_by_a_comment(serve: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_fanout, "HEARTBEAT_SECONDS", 0.1)
    async with listening(await serve(), PATH) as stream:
        silence = asyncio.create_task(stream.next(1))
        await wait_until(lambda: len(stream.comments) >= 3, description="it was broken three times")
        assert not silence.done()
        silence.cancel()
        with suppress(asyncio.CancelledError):
            await silence


async def test_a_stream_ends_in_time_for_its_key_to_be_asked_for_again(
    serve: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(event_fanout, "CONNECTION_SECONDS", 0.3)

    async with listening(await serve(), PATH) as stream:
        assert await stream.ended()


async def test_one_listener_too_many_is_refused_and_the_others_stay(rig: Rig, serve: Callable[..., object]) -> None:
    base = await serve(web_max_listeners=2)

    async with listening(base, PATH) as one:
        async with listening(base, PATH), listening(base, PATH) as third:
            assert third.status == 503
        async with _client(base) as client:
            await wait_until(lambda: _is_taken(client), description="a place that is free again is given away")
        kept = await rig.tell(completed())
        assert told(await one.next(1)) == ids(kept)


async def test_a_cursor_that_is_none_is_refused(serve: Callable[..., object]) -> None:
    async with _client(await serve()) as client:
        for cursor in ("yesterday", "-1", "1.5", "9" * 40, "٣"):
            answer = await client.get(f"{PATH}?after={quote(cursor)}")

            assert answer.status_code == 422, cursor
            assert "cursor" in answer.text, cursor


def test_a_service_that_is_stopped_sends_its_listeners_away(database: Database, redis_url: str, tmp_path: Path) -> None:
    port = choose(1)[0]
    env = environment(database.app_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path))
    with (tmp_path / "web.log").open("wb") as out:
        service = start_module(["aftermind.cli", "web", "--port", str(port)], env=env, output=out)
    try:

        async def listen() -> bool:
            base = f"http://127.0.0.1:{port}"
            await wait_until(lambda: _answers(base), description="the service answers")
            async with listening(f"http://{local_token(tmp_path)}@127.0.0.1:{port}", PATH) as stream:
                service.send_signal(signal.SIGTERM)
                return await stream.ended()

        assert asyncio.run(listen())
        assert service.wait(10) in (0, -signal.SIGTERM)
    finally:
        service.kill()
        service.wait()


async def _tell(rig: Rig, count: int, everything: list[str], *, each: int = 1) -> None:
    for _ in range(count // each):
        everything += ids(await rig.tell(*(completed() for _ in range(each))))


def _subscribed(rig: Rig) -> Callable[[], object]:
    async def asked() -> bool:
        assert isinstance(rig.bus, EventBus)
        found = await rig.bus._link.call("PUBSUB", "NUMSUB", Keys().events(ALICE))
        return isinstance(found, list) and bool(found[1])

    return asked


async def _channels(client: "redis.asyncio.Redis", count: int) -> bool:
    return len(await client.pubsub_channels()) == count


async def _nobody_subscribes(url: str) -> bool:
    async with redis.asyncio.Redis.from_url(url) as client:
        return not await client.pubsub_channels()


async def _read_line(reader: asyncio.StreamReader, wanted: bytes) -> bool:
    return (await reader.readline()).rstrip() == wanted


def _client(base: str) -> httpx.AsyncClient:
    at = urlsplit(base)
    headers = {"Authorization": f"Bearer {at.username}"}
    return httpx.AsyncClient(base_url=f"http://{at.hostname}:{at.port}", headers=headers)


async def _is_taken(client: httpx.AsyncClient) -> bool:
    async with client.stream("GET", PATH) as answer:
        return answer.status_code == 200


async def _answers(base: str) -> bool:
    async with httpx.AsyncClient() as client:
        with suppress(httpx.TransportError):
            return (await client.get(f"{base}/healthz")).status_code == 200
        return False
