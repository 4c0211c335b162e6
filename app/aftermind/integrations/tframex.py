"""Drop-in for TFrameX's memory stores: `from aftermind.integrations.tframex import AftermindMemoryStore`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from aftermind import errors
from aftermind.api.blocking_portal import to_async
from aftermind.api.turn_builder import limits
from aftermind.integrations.conversations import data_element
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.message_records import Records, read_session
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Episode, Json

with extra("tframex"):
    from tframex import BaseMemoryStore
    from tframex.models.primitives import Message

RECORDS = Records(framework="tframex", role=lambda record: str(record["role"]), text_at=lambda record: ("content",))
MAX_CALLS_CHARACTERS = 2_000  # that metadata has besides the record


class AftermindMemoryStore(BaseMemoryStore):
    """The messages of a session, exactly as they were added: they are remembered, recalled and mined for facts.

    It has what TFrameX's documentation shows as stores to write oneself. A history holds the newest `window_size`
    messages, and the newest that fit `max_tokens`; with `summary=True` the session's summary precedes it, if
    older messages are left out. `search` finds messages by meaning, with filters. `scoped` is a store of another user
    or session. Retention, audit and encryption are settings of the memory, for all its users.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        session_id: str,
        user_id: str | None = None,
        namespace: str | None = None,
        window_size: int | None = None,
        max_tokens: int | None = None,
        summary: bool = False,
        metadata: dict[str, Json] | None = None,
    ) -> None:
        for name, value in (("window_size", window_size), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise errors.InvalidQuery(name, value, "it is a whole number greater than 0, or None.")
        self.memory, self.session_id, self.user_id, self.namespace = to_async(memory), session_id, user_id, namespace
        self.window_size, self.max_tokens, self.summary = window_size, max_tokens, summary
        self.metadata = metadata or {}  # kept with each message, for filters of `search`

    async def add_message(self, message: Message) -> None:
        """Remember a message."""
        record = message.model_dump(mode="json", exclude_none=True)
        metadata = {**_of_tools(record), **self.metadata}
        turn = RECORDS.to_message(record, limits(self.memory.settings), metadata=metadata)
        await self.memory.remember(turn, session_id=self.session_id, **self._whose())

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[str] | None = None
    ) -> list[Message]:
        """The newest `limit` messages of the roles, oldest first, without the newest `offset` of them."""
        said = await self._newest()
        chosen = [each for each in map(_to_message, said) if not roles or each.role in roles]
        end = len(chosen) - max(0, offset)
        chosen = chosen[max(0, end - limit) if limit is not None else 0 : max(0, end)]
        while chosen and chosen[0].role == "tool" and not roles:  # its call is left out: models refuse the rest
            chosen = chosen[1:]
        if self.summary and said and not roles and not offset:
            found = await self.memory.summary(session_id=self.session_id, **self._whose())
            is_cut = await read_session(self.memory, self.session_id, 1, before=said[0], **self._whose())
            if found is not None and is_cut:
                text = f"Summary of the conversation so far:\n{data_element('summary', found.text)}"
                chosen = [Message(role="user", content=text), *chosen]
        return chosen

    async def search(
        self,
        query: str | None = None,
        *,
        roles: Sequence[str] | None = None,
        metadata: dict[str, Json] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 5,
        all_sessions: bool = False,
    ) -> list[Message]:
        """Messages that fit every filter: a query's best matches first, then the newest others; else oldest first."""
        found = await self.memory.search(
            query,
            session_id=None if all_sessions else self.session_id,
            roles=roles,
            metadata=metadata,
            since=since,
            until=until,
            limit=limit,
            undone=False,
            **self._whose(),
        )
        return [_to_message(each) for each in found]

    async def clear(self) -> None:
        """Forget the session, with everything derived from it."""
        await self.memory.forget(session_id=self.session_id, **self._whose())

    def scoped(self, *, session_id: str | None = None, user_id: str | None = None) -> "AftermindMemoryStore":
        """A store with the same options for another session or user."""
        return AftermindMemoryStore(
            self.memory,
            session_id=session_id or self.session_id,
            user_id=user_id or self.user_id,
            namespace=self.namespace,
            window_size=self.window_size,
            max_tokens=self.max_tokens,
            summary=self.summary,
            metadata=self.metadata,
        )

    async def _newest(self) -> list[Episode]:
        if self.max_tokens is not None:
            said = await self.memory.context_window(self.max_tokens, session_id=self.session_id, **self._whose())
            return said[-self.window_size :] if self.window_size else said
        return await read_session(self.memory, self.session_id, self.window_size, **self._whose())

    def _whose(self) -> dict[str, Any]:
        return {"user_id": self.user_id, "namespace": self.namespace}


def _of_tools(record: dict[str, Any]) -> dict[str, Json]:
    """What `context_window` keeps a call and its results together by; of long calls the ids alone."""
    found = {name: record[name] for name in ("tool_calls", "tool_call_id") if record.get(name)}
    if len(str(found)) > MAX_CALLS_CHARACTERS:
        found["tool_calls"] = [{"id": each["id"]} for each in record["tool_calls"]]
    return found


def _to_message(episode: Episode) -> Message:
    plain = {"role": episode.role.value, "content": episode.content}
    return Message.model_validate(RECORDS.from_episode(episode) or plain)
