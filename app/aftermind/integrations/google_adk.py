"""Google ADK: a memory service. Events are remembered once, however often their session is added."""

from collections.abc import Mapping, Sequence
from typing import Any

from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.conversations import match_text
from aftermind.integrations.extras import extra
from aftermind.integrations.message_records import Records
from aftermind.memory import Memory
from aftermind.types import Episode, ItemWrite, Match
from aftermind.types.message import keyed_ids
from aftermind.types.scope import Scope

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
    return "user" if record["author"] in (None, "user") else "assistant"


RECORDS = Records(framework="google-adk", role=_role, text_at=lambda record: ("content", "parts", 0, "text"))


class AftermindMemoryService(BaseMemoryService):
    """Memory of ADK's apps. Each app has its own namespace; with `namespace` all apps share the memory of a user.

    `limit` is how many memories a search returns. Events of a session that is added again are not stored twice; an
    event that was deleted stays deleted.
    """

    def __init__(self, memory: Memory, *, namespace: str | None = None, limit: int = 10) -> None:
        self.memory, self.namespace, self.limit = memory, namespace, limit

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
        """Remember events with content, in their order, each once. `custom_metadata` is kept with them: JSON."""
        whose = self._whose(app_name, user_id)
        given = {_key(each): each for each in events if each.content and each.content.parts and not each.partial}
        known = await self._known(list(given), whose)
        for key, event in given.items():
            if key not in known:
                message: dict[str, Any] = self._message(event.author, event.content, custom_metadata)
                message["occurred_at"] = event.timestamp
                await self.memory.remember(message, session_id=session_id, idempotency_key=key, **whose)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember explicit memories."""
        turn = [
            self._message(each.author, each.content, {**each.custom_metadata, **(custom_metadata or {})})
            for each in memories
        ]
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
        return RECORDS.to_message(record, limits(self.memory.settings), metadata=kept, is_cut=False)

    def _whose(self, app_name: str, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id, "namespace": self.namespace or app_name}


def _key(event: Event) -> str:
    return f"google-adk:{event.id}"


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
