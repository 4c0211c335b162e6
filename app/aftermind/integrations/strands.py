"""Strands Agents: a memory store, and a storage for its session manager."""

import base64
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Unpack
from uuid import uuid4

from aftermind.integrations.conversations import match_text
from aftermind.integrations.extras import extra
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.types import Episode, ItemWrite, Match

with extra("strands"):
    from strands.memory.extraction.triggers import InvocationTrigger
    from strands.memory.types import AddMessagesContext, MemoryEntry, MemoryStore, SearchOptions
    from strands.storage import Storage
    from strands.types.content import Message

KEYS, PARTS = ("strands", "keys"), ("strands", "parts")
PART_BYTES = 700_000  # of the 1,048,576 of an item, as base64


class AftermindMemoryStore(MemoryStore):
    """A store for Strands' `MemoryManager`: recall as search, and every message of an agent is remembered.

    The manager hands the messages over after each invocation, in the background; one that it hands over again is
    stored once. Facts are extracted by Aftermind's workers, not by a call to the agent's model. `options` are those of
    `memory.recall`.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        name: str = "aftermind",
        description: str | None = "Long-term memory of the user: messages and facts of earlier conversations.",
        max_search_results: int = 5,
        writable: bool = True,
        **options: Unpack[RecallOptions],
    ) -> None:
        self.memory, self.options = memory, options
        self.name, self.description, self.max_search_results = name, description, max_search_results
        self.writable = writable
        self.extraction = {"trigger": InvocationTrigger()} if writable else None
        self._session_id = session_id
        self._whose: dict[str, Any] = {"user_id": user_id, "namespace": namespace}
        self._run, self._highest = uuid4().hex, -1

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """The best matches, messages and facts, best first."""
        limit = (options or {}).get("max_search_results") or self.max_search_results
        chosen: RecallOptions = {"limit": limit, **self.options}
        found = await self.memory.recall_scored(query, session_id=self._session_id, **self._whose, **chosen)
        return [MemoryEntry(content=match_text(each), metadata=_metadata(each)) for each in found[:limit]]

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> None:
        """Remember a text, which the agent's model has chosen, as one of the assistant."""
        message = {"role": "assistant", "content": content, "metadata": {"from": "strands", **(metadata or {})}}
        await self.memory.remember(message, session_id=self._session_id, **self._whose)

    async def add_messages(self, messages: list[Message], context: AddMessagesContext | None = None) -> None:
        """Remember the texts of messages, each once for its sequence number."""
        numbers = (context.sequence_numbers if context else None) or [None] * len(messages)
        if numbers and numbers[0] is not None and numbers[0] <= self._highest:
            self._run = uuid4().hex  # everything up to `_highest` was stored: another agent counts from 0
        for message, number in zip(messages, numbers, strict=True):
            text = "\n".join(part["text"] for part in message["content"] if part.get("text", "").strip())
            if text:
                digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
                key = None if number is None else f"strands:{self._run}:{number}:{digest}"
                await self.memory.remember(
                    {"role": message["role"], "content": text},
                    session_id=self._session_id,
                    idempotency_key=key,
                    **self._whose,
                )
        self._highest = max((number for number in numbers if number is not None), default=-1)


class AftermindStorage(Storage[str, str]):
    """Bytes by key, for `SnapshotSessionManager(session_id, storage=AftermindStorage(memory, user_id=…))`.

    A value is written as a whole; a read includes every write that has returned, from any process and through any
    replica. `memory.forget` of the user deletes the values.
    """

    def __init__(self, memory: Memory, *, user_id: str | None = None, namespace: str | None = None) -> None:
        self.memory = memory
        self._whose: dict[str, Any] = {"user_id": user_id, "namespace": namespace}

    async def write(self, key: str, data: bytes) -> None:
        """Store the value of a key. Raises `InvalidItem` and `StoreUnavailable`."""
        texts = [base64.b64encode(data[at : at + PART_BYTES]).decode() for at in range(0, len(data), PART_BYTES)]
        before = await self._head(key)
        head = {"parts": len(texts), "data": texts[0] if texts else ""}
        writes = [ItemWrite(path=KEYS, key=key, value=head)]
        writes += [ItemWrite(path=PARTS, key=f"{key}#{at}", value={"data": texts[at]}) for at in range(1, len(texts))]
        writes += [_removal(key, at) for at in range(max(1, len(texts)), before)]
        await self.memory.items.write(writes, **self._whose)

    async def read(self, key: str) -> bytes | None:
        """The value of a key, None if there is none."""
        (head,) = await self.memory.items.get((KEYS, key), **self._whose)
        if head is None:
            return None
        names = [(PARTS, f"{key}#{at}") for at in range(1, _count(head.value))]
        rest = await self.memory.items.get(*names, **self._whose) if names else []
        return b"".join(base64.b64decode(str(each.value["data"])) for each in (head, *rest) if each is not None)

    async def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        removals = [_removal(key, at) for at in range(1, await self._head(key))]
        await self.memory.items.write([ItemWrite(path=KEYS, key=key, value=None), *removals], **self._whose)

    async def list(self, query: str) -> list[str]:
        """The keys that start with a prefix, sorted."""
        found: list[str] = []
        while True:
            page = await self.memory.items.search(KEYS, limit=1_000, offset=len(found), renew=False, **self._whose)
            found += [each.key for each in page]
            if len(page) < 1_000:
                return sorted(key for key in found if key.startswith(query))

    async def _head(self, key: str) -> int:
        """How many parts the stored value has."""
        (head,) = await self.memory.items.get((KEYS, key), **self._whose)
        return 0 if head is None else _count(head.value)


def _count(value: Mapping[str, Any]) -> int:
    return int(value["parts"])


def _removal(key: str, at: int) -> ItemWrite:
    return ItemWrite(path=PARTS, key=f"{key}#{at}", value=None)


def _metadata(match: Match) -> dict[str, Any]:
    item = match.item
    known: dict[str, Any] = {"kind": type(item).__name__.lower(), "score": match.score}
    if isinstance(item, Episode):
        known |= {"id": str(item.id), "role": item.role.value, "occurred_at": item.occurred_at.isoformat()}
    return known
