"""Google ADK: a memory service. Events are remembered once, however often their session is added."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from aftermind import errors
from aftermind.api.blocking_portal import to_async
from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.conversations import match_text
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.message_records import Records, text_place
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Episode, ItemWrite, Match
from aftermind.types.message import keyed_ids
from aftermind.types.scope import Scope
from aftermind.types.validation import without_inline_data

with extra("google-adk"):
    from google.adk.events import Event
    from google.adk.memory import BaseMemoryService
    from google.adk.memory.base_memory_service import SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session
    from google.genai import types

DELETED = ("google-adk", "deleted")  # items: ids of events that were deleted and must not come back with their session
CHUNK = 500


def _role(record: Mapping[str, Any]) -> str:
    if any("function_response" in part for part in record["content"].get("parts") or ()):
        return "tool"
    return "user" if record["author"] in (None, "user") else "assistant"


def _without_files(record: Mapping[str, Any]) -> Any:  # Any: JSON of any shape
    """With the kind, length and digest of each large file as text: bytes that are no file cannot be read back."""
    parts = [_without_file(each) for each in record["content"].get("parts") or ()]
    return without_inline_data({**record, "content": {**record["content"], "parts": parts}})


def _without_file(part: Mapping[str, Any]) -> dict[str, Any]:
    blob = part.get("inline_data") or {}
    if (note := without_inline_data(blob.get("data"))) != blob.get("data"):
        return {"text": f"{blob.get('mime_type')} {note}"}
    kept = {name: value for name, value in part.items() if name != "thought_signature"}  # bytes of a model's own use
    if "function_response" in kept:  # its parts are files alone
        kept["function_response"] = {
            name: value for name, value in kept["function_response"].items() if name != "parts"
        }
    return kept


RECORDS = Records(
    framework="google-adk",
    role=_role,
    text_at=lambda record: text_place(record["content"].get("parts"), "content", "parts"),
    shorten=_without_files,
    is_call=lambda record: all(
        part.get("function_call") or part.get("thought") for part in record["content"].get("parts") or ()
    ),
)


class AftermindMemoryService(BaseMemoryService):
    """Memory of ADK's apps. Each app has its own namespace; with `namespace` all apps share the memory of a user.

    `limit` is how many memories a search returns. Events of a session that is added again are not stored twice; an
    event that was deleted stays deleted.
    """

    def __init__(self, memory: Memory | SyncMemory, *, namespace: str | None = None, limit: int = 10) -> None:
        self.memory, self.namespace, self.limit = to_async(memory), namespace, limit

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the session's events that are not remembered yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember events with content, in their order, each once. `custom_metadata` is kept with them: JSON.

        Raises `InvalidMessage` for an event that memory refuses, once the others are remembered.
        """
        whose = self._whose(app_name, user_id)
        given = {_key(each): each for each in events if each.content and each.content.parts and not each.partial}
        known = await self._known(list(given), whose)
        refused: errors.InvalidMessage | None = None
        for key, event in given.items():
            if key in known:
                continue
            try:
                message = self._message(event.author, event.content, custom_metadata)
                message["occurred_at"] = event.timestamp
                await self.memory.remember(message, session_id=session_id, idempotency_key=key, **whose)
            except errors.InvalidMessage as exc:
                refused = refused or exc
        if refused is not None:
            raise refused

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember explicit memories."""
        turn = []
        for each in memories:
            message = self._message(each.author, each.content, {**each.custom_metadata, **(custom_metadata or {})})
            turn.append(message | {"occurred_at": _to_time(each.timestamp)})
        if turn:
            for part, _ in split_turn(turn, self.memory.settings):
                await self.memory.remember(part, **self._whose(app_name, user_id))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """The best matches, messages and facts, best first."""
        found = await self.memory.recall_scored(query, limit=self.limit, **self._whose(app_name, user_id))
        return SearchMemoryResponse(memories=[_to_entry(each) for each in found[: self.limit]])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget a message and everything that was derived from it."""
        if not memory_id:
            return
        whose = self._whose(app_name, user_id)
        (found,) = await self.memory.get(memory_id, **whose)
        if found is None:
            return
        # First the mark: the session may be added again at any moment.
        await self.memory.items.write([ItemWrite(path=DELETED, key=str(found.id), value={})], **whose)
        await self.memory.forget(ids=[found.id], **whose)

    async def _known(self, keys: Sequence[str], whose: Mapping[str, Any]) -> set[str]:
        """Keys of events that are remembered, or were deleted."""
        scope = Scope(namespace=whose["namespace"], user_id=whose["user_id"])
        ids = {str(keyed_ids(scope, key, 1)[1][0]): key for key in keys}
        known: set[str] = set()
        for start in range(0, len(ids), CHUNK):
            part = list(ids)[start : start + CHUNK]
            stored = await self.memory.get(*part, **whose)
            marks = await self.memory.items.get(*((DELETED, each) for each in part), renew=False, **whose)
            known |= {ids[id_] for id_, *there in zip(part, stored, marks, strict=True) if any(there)}
        return known

    def _message(
        self, author: str | None, content: types.Content, metadata: Mapping[str, object] | None
    ) -> dict[str, Any]:
        record = {"content": content.model_dump(mode="json", exclude_none=True), "author": author}
        kept = {"custom": dict(metadata)} if metadata else {}
        return RECORDS.to_message(record, limits(self.memory.settings), metadata=kept)

    def _whose(self, app_name: str, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id, "namespace": self.namespace or app_name}


def _key(event: Event) -> str:
    return f"google-adk:{event.id}"


def _to_time(timestamp: str | None) -> datetime | str | None:
    """With its zone: ADK's own times are local ones without it. One that is not ISO is returned, to be refused."""
    try:
        found = timestamp and datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    return found.astimezone() if isinstance(found, datetime) else None


def _to_entry(match: Match) -> MemoryEntry:
    item = match.item
    if not isinstance(item, Episode):
        return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=match_text(match))]))
    plain = {"content": {"role": "user", "parts": [{"text": item.content}]}, "author": None}
    record = RECORDS.from_episode(item) or plain
    return MemoryEntry(
        id=str(item.id),
        content=types.Content.model_validate(record["content"]),
        author=record["author"] or item.role.value,
        timestamp=item.occurred_at.isoformat(),
        custom_metadata=item.metadata.get("custom") or {},
    )
