"""`/v1/users/{user_id}/events`: what happens to a user's memory, as it happens."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from aftermind import errors
from aftermind.events.types import is_cursor
from aftermind.types import Scope, stream_token
from aftermind.types.stream_token import MAX_CHARACTERS
from aftermind.web import schemas
from aftermind.web.auth import Caller, Listener, Reader, Remembering
from aftermind.web.event_fanout import Feeds
from aftermind.web.event_schemas import REFERENCE
from aftermind.web.path_ids import ANONYMOUS
from aftermind.web.routes.memory import User
from aftermind.web.sse import EventStream

router = APIRouter(tags=["events"])

LastEventId = Annotated[str | None, Header(description="The `id` of the last event seen. Browsers send it themselves.")]
StreamTokenText = Annotated[
    str | None,
    Query(max_length=MAX_CHARACTERS, description="A stream token, for browsers: an `EventSource` sends no headers."),
]
After = Annotated[str | None, Query(description="The same, for a first connection, which has no such header.")]

DESCRIPTION = """
Server-sent events. Each has the name of its kind (`MemoryUpdateCompleted`, …) and its fields as JSON; ids and counts,
never content.

Events with an `id` are stored, in order and without gaps, for `AFTERMIND_EVENT_RETENTION_DAYS`. Reconnect with
`Last-Event-ID` to get the missed ones first; an event `gap` means that some of them were too old. Events without an
`id` are sent live only.

A comment is sent every 15 seconds. The stream ends after about 15 minutes, if its reader is too slow, some seconds
after its API key is revoked, and when the process stops; a client that reconnects misses nothing.
"""


@router.get(
    "/users/{user_id:id}/events",
    summary="Listen to events",
    description=DESCRIPTION,
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": REFERENCE}}}},
)
async def events(
    request: Request,
    user_id: User,
    who: Listener,
    *,
    last_event_id: LastEventId = None,
    after: After = None,
    token: StreamTokenText = None,
) -> EventStream:
    """A stream of the user's events."""
    owner = Scope(namespace=who.namespace, user_id=user_id)
    return await listen(request, owner, last_event_id or after, who)


class StreamTokenIn(schemas.Shape):
    """How long a stream token is to last."""

    lifetime_seconds: int = Field(300, ge=1, le=3_600)


class StreamTokenOut(BaseModel):
    """A token, its end, and the address of the stream with it, for an `EventSource`."""

    token: str
    expires_at: datetime
    url: str


@router.post("/users/{user_id:id}/stream-token", status_code=201, summary="Create a stream token for a browser")
async def create_stream_token(
    request: Request, user_id: User, memory: Remembering, who: Reader, wanted: StreamTokenIn
) -> StreamTokenOut:
    """It opens this user's events and nothing else, until it ends or the API key is revoked.

    Call it from your backend, and give the page the `url`. The stream ends with the token; get a new one then.
    """
    if who.key is None:
        why = "stream tokens are signed by an API key: `aftermind api-keys create NAME`."
        raise errors.InvalidKey("key", None, why)
    lifetime = timedelta(seconds=wanted.lifetime_seconds)
    token = await memory.api_keys.create_stream_token(who.key.id, user_id=user_id, lifetime=lifetime)
    named = {"token": token, **({"anonymous": "true"} if user_id is None else {})}
    whose = ANONYMOUS if user_id is None else quote(user_id, safe="")
    url = f"{request.base_url.path}v1/users/{whose}/events?{urlencode(named)}"
    parsed = stream_token.parse(token)
    assert parsed is not None
    return StreamTokenOut(token=token, expires_at=parsed.expires_at, url=url)


async def listen(request: Request, owner: Scope, cursor: str | None, who: Caller) -> EventStream:
    """An owner's events after a cursor, or from now on, until the caller's key or token ends.

    Raises `InvalidQuery` and `TooManyListeners`.
    """
    feeds: Feeds = request.app.state.feeds
    listener = feeds.listen(owner, _number(cursor), key=who.key)
    if who.stream is not None:
        left = max(0.0, (who.stream.expires_at - datetime.now(UTC)).total_seconds())
        asyncio.get_running_loop().call_later(left, listener.end)
    try:
        return EventStream(listener, await listener.open())
    except BaseException:
        listener.leave()
        raise


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not is_cursor(cursor):
        raise errors.InvalidQuery(
            "after", cursor, "a cursor, also in the header Last-Event-ID, is the `id` that an event had."
        )
    return int(cursor)
