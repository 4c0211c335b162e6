"""`/v1/users/{user_id}/events`: what happens to a user's memory, as it happens."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from aftermind import errors
from aftermind.types import Scope
from aftermind.web.auth import Reader
from aftermind.web.event_fanout import Feeds
from aftermind.web.routes.memory import User
from aftermind.web.sse import EventStream

router = APIRouter(tags=["events"])

LastEventId = Annotated[str | None, Header(description="The `id` of the last event seen. Browsers send it themselves.")]
After = Annotated[str | None, Query(description="The same, for a first connection, which has no such header.")]

DESCRIPTION = """
Server-sent events. Each has the name of its kind (`MemoryUpdateCompleted`, …) and its fields as JSON; ids and counts,
never content.

Events with an `id` are stored, in order and without gaps, for `AFTERMIND_EVENT_RETENTION_DAYS`. Reconnect with
`Last-Event-ID` to get the missed ones first; an event `gap` means that some of them were too old. Events without an
`id` are sent live only.

A comment is sent every 15 seconds. The stream ends after about 15 minutes, if its reader is too slow, and when the
process stops; a client that reconnects misses nothing.
"""


@router.get(
    "/users/{user_id:id}/events",
    summary="Listen to events",
    description=DESCRIPTION,
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    request: Request, user_id: User, who: Reader, *, last_event_id: LastEventId = None, after: After = None
) -> EventStream:
    """A stream of the user's events."""
    return await listen(request, Scope(namespace=who.namespace, user_id=user_id), last_event_id or after)


async def listen(request: Request, owner: Scope, cursor: str | None) -> EventStream:
    """An owner's events after a cursor, or from now on. Raises `InvalidQuery` and `TooManyListeners`."""
    feeds: Feeds = request.app.state.feeds
    listener = feeds.listen(owner, _number(cursor))
    try:
        return EventStream(listener, await listener.open())
    except BaseException:
        listener.leave()
        raise


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:  # of a bigint
        raise errors.InvalidQuery("Last-Event-ID", cursor, "a cursor is the `id` that an event had.")
    return int(cursor)
