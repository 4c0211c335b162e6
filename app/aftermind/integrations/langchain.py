"""LangChain: the messages of a session as a chat history, and recall as a retriever."""

from collections.abc import Mapping, Sequence
from typing import Any

from aftermind import errors
from aftermind.api import blocking_portal
from aftermind.api.blocking_portal import to_async
from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.message_records import Records, read_session, text_place
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Block, Episode, Fact, Json, Match
from aftermind.types.validation import to_role

with extra("langgraph"):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.documents import Document
    from langchain_core.messages import (
        BaseMessage,
        BaseMessageChunk,
        FunctionMessage,
        ToolMessage,
        message_chunk_to_message,
        message_to_dict,
        messages_from_dict,
    )
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, Field

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}


def _role(record: Mapping[str, Any]) -> str:
    """Raises `InvalidMessage` for a kind that is not part of a conversation."""
    if record["type"] == "chat":
        return to_role(record["data"]["role"]).value
    if record["type"] not in ROLES:
        why = f"a history keeps messages of these types: {', '.join(ROLES)}."
        raise errors.InvalidMessage("type", record["type"], why)
    return ROLES[record["type"]]


RECORDS = Records(
    framework="langchain",
    role=_role,
    text_at=lambda record: text_place(record["data"]["content"], "data", "content"),
    is_call=lambda record: bool(record["data"].get("tool_calls")),
)


class AftermindChatMessageHistory(BaseChatMessageHistory):
    """The messages of a session. They are remembered: stored in the background, recalled, and mined for facts.

    A read includes every message whose `add_messages` has returned. `clear` forgets the session and what was derived
    from it. `limit` is how many of the newest messages are read; None: all. With it, the first one is no result of a
    tool: its call would be missing.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        session_id: str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        limit: int | None = None,
    ) -> None:
        self.memory, self.session_id, self.limit = to_async(memory), session_id, limit
        self.user_id, self.namespace = user_id, namespace

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages, oldest first."""
        return blocking_portal.call(self.aget_messages, instead="Use `await history.aget_messages()`.")

    async def aget_messages(self) -> list[BaseMessage]:
        """The messages, oldest first."""
        episodes = await read_session(
            self.memory, self.session_id, self.limit, user_id=self.user_id, namespace=self.namespace
        )
        found = messages_from_dict([RECORDS.from_episode(each) or _from_chat(each) for each in episodes])
        while self.limit is not None and found and isinstance(found[0], ToolMessage | FunctionMessage):
            found = found[1:]  # its call is not among the newest: models refuse a result without it
        return found

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Remember the messages, as one turn if its size allows."""
        blocking_portal.call(lambda: self.aadd_messages(messages), instead="Use `await history.aadd_messages(…)`.")

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Remember the messages, as one turn if its size allows."""
        if messages:
            settings = self.memory.settings
            whole = [
                message_chunk_to_message(each) if isinstance(each, BaseMessageChunk) else each for each in messages
            ]
            turn = [RECORDS.to_message(message_to_dict(each), limits(settings), is_cut=False) for each in whole]
            for part, _ in split_turn(turn, settings):
                await self.memory.remember(
                    part, session_id=self.session_id, user_id=self.user_id, namespace=self.namespace
                )

    def clear(self) -> None:
        """Forget the session."""
        blocking_portal.call(self.aclear, instead="Use `await history.aclear()`.")

    async def aclear(self) -> None:
        """Forget the session."""
        await self.memory.forget(session_id=self.session_id, user_id=self.user_id, namespace=self.namespace)


class AftermindRetriever(BaseRetriever):
    """The `k` best matches of a recall as documents: messages, facts, summaries. The score is in their metadata."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    memory: Memory | SyncMemory
    user_id: str | None = None
    session_id: str | None = None
    namespace: str | None = None
    k: int = 4
    options: dict[str, Any] = Field(default_factory=dict)  # those of `RecallOptions`

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self._aget_relevant_documents
        instead = "Use `await retriever.ainvoke(…)`."
        return blocking_portal.call(lambda: found(query, run_manager=None, k=k), instead=instead)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun | None, k: int | None = None
    ) -> list[Document]:
        limit = self.k if k is None else k
        matches = await to_async(self.memory).recall_scored(
            query,
            user_id=self.user_id,
            session_id=self.session_id,
            namespace=self.namespace,
            **{"limit": limit, **self.options},
        )
        return [_to_document(match) for match in matches[:limit]]


def _to_document(match: Match) -> Document:
    item = match.item
    metadata: dict[str, Json] = {"kind": type(item).__name__.lower(), "score": match.score}
    if isinstance(item, Episode):
        metadata |= {"role": item.role.value, "session_id": item.scope.session_id}
        metadata |= {"occurred_at": item.occurred_at.isoformat(), "mark": item.mark}
        return Document(id=str(item.id), page_content=item.content, metadata=metadata)
    if isinstance(item, Fact):
        metadata["confidence"] = item.confidence
        text = f"{item.subject} {item.predicate.replace('_', ' ')} {item.object}"
        return Document(id=str(item.id), page_content=text, metadata=metadata)
    if isinstance(item, Block):
        return Document(page_content=item.content, metadata={**metadata, "name": item.name})
    return Document(page_content=item.text, metadata={**metadata, "session_id": item.scope.session_id})


def _from_chat(episode: Episode) -> dict[str, Any]:
    """A message that another part of the program has remembered in this session."""
    kind = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}[episode.role.value]
    data = {"type": kind, "content": episode.content}
    return {"type": kind, "data": {**data, "tool_call_id": ""} if kind == "tool" else data}
