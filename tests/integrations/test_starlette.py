"""A route of a user's own application streams the events of its user, and of nobody else."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aftermind import Memory, errors
from aftermind.events.types import MemoryEvent
from aftermind.integrations.starlette import event_response
from tests.support.waiting import wait_until


async def test_a_user_gets_each_event_and_after_a_reconnection_the_missed_ones() -> None:
    async with Memory("inmemory") as memory:
        first = _pieces(memory, "ann", {})
        opening = await anext(first)
        assert opening.startswith(b"id: ")
        assert opening.endswith(b"\n: connected\n\n")
        await (await memory.remember("I like tea.", user_id="ben")).stored(timeout=30)
        await (await memory.remember("I like jazz.", user_id="ann")).stored(timeout=30)
        seen = [await _event(first) for _ in range(2)]
        await first.aclose()  # type: ignore[attr-defined]  # a generator

        again = _pieces(memory, "ann", {"last-event-id": seen[0]["id"]})
        repeated = await _event(again)
        await again.aclose()  # type: ignore[attr-defined]  # a generator

    assert [each["event"] for each in seen] == ["MemoryUpdateStarted", "MemoryUpdateCompleted"]
    assert {json.loads(each["data"])["user_id"] for each in seen} == {"ann"}
    assert "jazz" not in json.dumps(seen)
    assert repeated == seen[1]


async def test_a_browser_that_got_no_event_yet_gets_those_that_it_missed_too() -> None:
    async with Memory("inmemory") as memory:
        first = _pieces(memory, "ann", {})
        position = (await anext(first)).decode().partition("\n")[0].removeprefix("id: ")
        await first.aclose()  # type: ignore[attr-defined]  # a generator
        await (await memory.remember("I like jazz.", user_id="ann")).stored(timeout=30)

        again = _pieces(memory, "ann", {"last-event-id": position})
        missed = await _event(again)
        await again.aclose()  # type: ignore[attr-defined]  # a generator

    assert missed["event"] == "MemoryUpdateStarted"


async def test_a_stream_that_the_browser_leaves_listens_no_longer() -> None:
    async with Memory("inmemory") as memory:
        pieces = _pieces(memory, "ann", {})
        await anext(pieces)
        await (await memory.remember("I like jazz.", user_id="ann")).stored(timeout=30)
        await _event(pieces)
        listeners: dict[Any, Any] = memory._parts.events._listeners  # type: ignore[attr-defined]  # of this store
        assert any(listeners.values())
        await pieces.aclose()  # type: ignore[attr-defined]  # a generator

        assert not any(listeners.values())


async def test_a_browser_that_leaves_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with Memory("inmemory") as memory:

        async def events(request: Request) -> Response:
            return event_response(request, memory, user_id="ann")

        app = Starlette(routes=[Route("/events", events)])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve())
        await wait_until(lambda: server.started, description="the server has started")
        port = server.servers[0].sockets[0].getsockname()[1]
        listeners: dict[Any, Any] = memory._parts.events._listeners  # type: ignore[attr-defined]  # of this store
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for said in (None, "I like jazz."):  # before an event, and after one
                async with client.stream("GET", "/events") as stream:
                    pieces = stream.aiter_text()
                    assert (await anext(pieces)).endswith(": connected\n\n")
                    if said is not None:
                        await memory.remember(said, user_id="ann")
                        assert "event: " in await anext(pieces)
                    else:
                        await wait_until(lambda: any(listeners.values()), description="the stream listens")
                await wait_until(lambda: not any(listeners.values()), description="it has ended")
        server.should_exit = True
        await serving

    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_stream_ends_with_the_events() -> None:
    async with Memory("inmemory") as memory:
        real = memory.events

        async def one(**options: Any) -> AsyncGenerator[MemoryEvent, None]:
            async with aclosing(real(**options)) as events:
                yield await anext(events)

        memory.events = one  # type: ignore[method-assign]
        pieces = _pieces(memory, "ann", {})
        await anext(pieces)
        await memory.remember("I like jazz.", user_id="ann")

        (event,) = [piece async for piece in pieces if not piece.startswith(b":")]
        assert event.startswith(b"id: ")


def test_a_cursor_that_no_event_had_is_refused() -> None:
    with pytest.raises(errors.InvalidQuery, match="Last-Event-ID"):
        event_response(_request({"last-event-id": "x"}), Memory("inmemory"), user_id="ann")


def _request(headers: Mapping[str, str]) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw})


def _pieces(memory: Memory, user: str, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    response = event_response(_request(headers), memory, user_id=user)
    assert response.media_type == "text/event-stream"
    return aiter(response.body_iterator)  # type: ignore[arg-type]  # always bytes here


async def _event(pieces: AsyncIterator[bytes]) -> dict[str, str]:
    """The next event, without comments."""
    while "\nevent: " not in f"\n{(piece := (await anext(pieces)).decode())}":
        pass
    return dict(line.split(": ", 1) for line in piece.strip().split("\n"))
