"""Messages of a framework as messages of a session, read back exactly as they were."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson

from aftermind.memory import Memory
from aftermind.receipt import Receipt
from aftermind.types import Episode, Message
from aftermind.types.message import UNDONE

RECORD = "record"  # in the metadata: the framework's message as JSON, without the text that is the content
WHOLE = "whole"  # in its place if the content is all of it
PLACE = "text_at"
INLINE_BYTES = 12_000  # of the 16,384 of metadata
PAGE = 1_000


def to_message(role: str, record: Mapping[str, Any], text_at: Sequence[str | int]) -> dict[str, Any]:
    """A chat message whose content is the text at that place of the record, if there is one, else its JSON."""
    rest = deepcopy(dict(record))
    text = _take(rest, text_at)
    if text:
        told = orjson.dumps(rest).decode()
        if len(told.encode()) <= INLINE_BYTES:
            return {"role": role, "content": text, "metadata": {RECORD: told, PLACE: list(text_at)}}
    return {"role": role, "content": orjson.dumps(dict(record)).decode(), "metadata": {RECORD: WHOLE}}


def from_episode(episode: Episode) -> dict[str, Any] | None:
    """The record of an episode, None if it was not stored by `to_message`."""
    told, place = episode.metadata.get(RECORD), episode.metadata.get(PLACE)
    if not isinstance(told, str):
        return None
    record: dict[str, Any] = orjson.loads(episode.content if told == WHOLE else told)
    if isinstance(place, list):
        node: Any = record
        for step in place[:-1]:
            node = node[step]
        node[place[-1]] = episode.content
    return record


async def read_session(
    memory: Memory,
    session_id: str | None,
    limit: int | None,
    *,
    before: Episode | int | None = None,
    user_id: str | None,
    namespace: str | None,
) -> list[Episode]:
    """The newest episodes of a session, or of all for None, oldest first, pending ones included; None: all.

    Without those that were undone: an adapter's framework shows them to a model, or as part of the conversation.
    """
    found: list[Episode] = []
    while limit is None or len(found) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(found))
        page = await memory.history(
            user_id=user_id, session_id=session_id, namespace=namespace, limit=size, before=before
        )
        found = [*standing(page), *found]
        if len(page) < size:
            break
        before = page[0]
    return found


async def replace_episodes(
    memory: Memory,
    replaced: Sequence[Episode],
    content: str,
    metadata: Mapping[str, Any],
    *,
    occurred_at: datetime | None = None,
    user_id: str | None,
    namespace: str | None,
) -> Receipt:
    """Remember a message in place of episodes of its owner, then forget these with everything derived from them.

    It has the role, name, session and expiry of the last of them, and is kept for the same. A repeated call writes
    once.
    """
    last = replaced[-1]
    message = Message(
        role=last.role,
        content=content,
        name=last.name,
        metadata=metadata,
        occurred_at=occurred_at,
        expires_at=last.expires_at,
    )
    version = sha256(orjson.dumps([content, dict(metadata)])).hexdigest()
    receipt = await memory.remember(
        message,
        save=last.keep,
        session_id=last.scope.session_id,
        agent_id=last.scope.agent_id,
        idempotency_key=f"replace:{last.id}:{version}",
        user_id=user_id,
        namespace=namespace,
    )
    await memory.forget(ids=[each.id for each in replaced], user_id=user_id, namespace=namespace)
    return receipt


def standing(episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes that were not undone."""
    return [each for each in episodes if each.mark != UNDONE]


def _take(record: dict[str, Any], place: Sequence[str | int]) -> str | None:
    """Remove the text at a place of the record, and return it."""
    node: Any = record
    for step in place[:-1]:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            return None
    found = node.get(place[-1]) if isinstance(node, dict) else None
    if not isinstance(found, str) or not found.strip() or "\x00" in found:
        return None
    node[place[-1]] = ""
    return found
