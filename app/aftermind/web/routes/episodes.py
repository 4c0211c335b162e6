"""Rows instead of a block: episodes, sessions, summaries, the profile."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from aftermind import errors
from aftermind.web import pagination, schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.pagination import Cursor, Limit, Page
from aftermind.web.routes.memory import User

router = APIRouter(tags=["episodes"])

Session = Annotated[str | None, Query(min_length=1, description="Of this session only.")]


@router.get("/users/{user_id:id}/episodes", summary="Episodes, by page")
async def episodes(
    user_id: User,
    memory: Remembering,
    who: Reader,
    session_id: Session = None,
    agent_id: Annotated[str | None, Query(min_length=1)] = None,
    role: Annotated[list[schemas.RoleName] | None, Query()] = None,
    metadata: Annotated[str | None, Query(description="A JSON object that the metadata has to contain.")] = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[schemas.EpisodeOut]:
    """The newest matching messages, oldest first, pending ones included; `next` pages back in time."""
    found = await memory.search(
        user_id=user_id,
        session_id=session_id,
        agent_id=agent_id,
        namespace=who.namespace,
        roles=role,
        metadata=_json(metadata),
        since=since,
        until=until,
        limit=limit + 1,
        before=pagination.before(cursor),
    )
    shown = found[-limit:]
    more = pagination.encode([shown[0].position, str(shown[0].id)]) if len(found) > limit else None
    return Page(items=[schemas.episode(each) for each in shown], next=more)


@router.get("/users/{user_id:id}/context", summary="The newest episodes within a token budget")
async def context(
    user_id: User,
    memory: Remembering,
    who: Reader,
    max_tokens: Annotated[int, Query(gt=0, le=1_000_000)] = 2_000,
    max_messages: Annotated[int | None, Query(gt=0, le=10_000)] = None,
    role: Annotated[list[schemas.RoleName] | None, Query()] = None,
    session_id: Session = None,
    *,
    summary: Annotated[bool, Query(description="Add the stored summary of the session.")] = False,
    tool_results: bool = True,
) -> schemas.ContextOut:
    """The messages that a chat continues from: whole messages, oldest first; tool calls with their results."""
    found = await memory.context_window(
        max_tokens,
        max_messages=max_messages,
        roles=role,
        summary=summary,
        tool_results=tool_results,
        user_id=user_id,
        session_id=session_id,
        namespace=who.namespace,
    )
    episodes = [schemas.episode(each) for each in found]
    return schemas.ContextOut(summary=found.summary, tokens=found.tokens, episodes=episodes)


@router.get("/users/{user_id:id}/extraction", summary="Extraction outcome of each episode")
async def learned(
    user_id: User, memory: Remembering, who: Reader, session_id: Session = None, limit: Limit = 100
) -> list[schemas.ExtractionOut]:
    """The newest episodes, oldest first; every one has a state, and all but `facts` a reason."""
    found = await memory.extraction(user_id=user_id, session_id=session_id, namespace=who.namespace, limit=limit)
    return [schemas.ExtractionOut.model_validate(each) for each in found]


@router.get("/users/{user_id:id}/sessions", summary="Sessions, the latest first")
async def sessions(
    user_id: User, memory: Remembering, who: Reader, limit: Limit = 100, cursor: Cursor = None
) -> Page[schemas.SessionOut]:
    """Those that have stored episodes."""
    found = await memory.sessions(
        user_id=user_id, namespace=who.namespace, limit=pagination.rows_to_read(cursor, limit)
    )
    return pagination.page(
        found,
        cursor=cursor,
        limit=limit,
        key=lambda each: each.session_id,
        shown=schemas.SessionOut.model_validate,
    )


@router.get("/users/{user_id:id}/session-metadata", summary="Metadata of a session")
async def session_metadata(
    user_id: User, memory: Remembering, who: Reader, session_id: Session = None
) -> dict[str, Any]:
    """A JSON object; empty if none was set."""
    return await memory.session_metadata(session_id=session_id, user_id=user_id, namespace=who.namespace)


@router.patch("/users/{user_id:id}/session-metadata", summary="Change metadata of a session")
async def update_session_metadata(
    user_id: User,
    values: dict[str, Any],
    memory: Remembering,
    who: Writer,
    session_id: Session = None,
    *,
    replace: Annotated[bool, Query(description="Remove all other fields.")] = False,
) -> dict[str, Any]:
    """Set fields, null removes one; returns the whole."""
    return await memory.update_session_metadata(
        values, session_id=session_id, user_id=user_id, namespace=who.namespace, replace=replace
    )


@router.get("/users/{user_id:id}/summary", summary="A session's summary")
async def summary(
    user_id: User, memory: Remembering, who: Reader, session_id: Session = None
) -> schemas.SummaryOut | None:
    """The latest of a session (of what has no session, where none is named); null where there is none yet."""
    found = await memory.summary(user_id=user_id, session_id=session_id, namespace=who.namespace)
    return None if found is None else schemas.summary(found)


@router.get("/users/{user_id:id}/profile", summary="The user's profile")
async def profile(user_id: User, memory: Remembering, who: Reader) -> schemas.ProfileOut | None:
    """Traits, each with the episodes that support it; null if there are none yet."""
    found = await memory.profile(user_id=user_id, namespace=who.namespace)
    return None if found is None else schemas.profile(found)


@router.get("/users/{user_id:id}/progress", summary="Progress of the user's turns")
async def progress(user_id: User, memory: Remembering, who: Reader) -> schemas.ProgressOut:
    """Counts of what is pending, stored, embedded, mined and dead."""
    return schemas.ProgressOut.model_validate(await memory.progress(user_id=user_id, namespace=who.namespace))


def _json(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as exc:
        raise errors.InvalidQuery("metadata", given, "it is a JSON object, as text.") from exc
    if not isinstance(found, dict):
        raise errors.InvalidQuery("metadata", given, "it is a JSON object, as text.")
    return found
