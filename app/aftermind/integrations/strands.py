"""Strands Agents: a memory store, and a storage for its session manager."""

import base64
import logging
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Unpack
from uuid import uuid4

from aftermind import errors
from aftermind.api.blocking_portal import to_async
from aftermind.integrations.conversations import match_text, split_text
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Episode, ItemWrite, Match

with extra("strands"):
    from strands.memory.extraction.triggers import InvocationTrigger
    from strands.memory.types import AddMessagesContext, MemoryEntry, MemoryStore, SearchOptions
    from strands.storage import Storage
    from strands.types.content import Message

log = logging.getLogger(__name__)

# A value: its first part in the item of its key, the others below a path of that write alone (key, version, count).
KEYS, PARTS = ("strands", "keys"), ("strands", "parts")
PART_BYTES = 700_000  # of the 1,048,576 of an item, as base64
MAX_READS = 100  # of a value that is replaced between the reads of its parts


class AftermindMemoryStore(MemoryStore):
    """A store for Strands' `MemoryManager`: recall as search, and every message of an agent is remembered.

    The manager hands the messages over after each invocation, in the background; one that it hands over again is
    stored once. Facts are extracted by Aftermind's workers, not by a call to the agent's model. `options` are those of
    `memory.recall`.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
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
        self.memory, self.options = to_async(memory), options
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
            for at, piece in enumerate(split_text(text, self.memory.settings.message_max_bytes) if text else ()):
                digest = sha256(piece.encode("utf-8", "replace")).hexdigest()[:16]
                key = None if number is None else f"strands:{self._run}:{number}:{at}:{digest}"
                try:
                    await self.memory.remember(
                        {"role": message["role"], "content": piece},
                        session_id=self._session_id,
                        idempotency_key=key,
                        **self._whose,
                    )
                except errors.InvalidMessage as exc:  # raised, it would return with each batch: no later one is stored
                    log.error("a message of an agent was not remembered: %s", exc)
        self._highest = max((number for number in numbers if number is not None), default=-1)


class AftermindStorage(Storage[str, str]):
    """Bytes by key, for `SnapshotSessionManager(session_id, storage=AftermindStorage(memory, user_id=…))`.

    A value is written as a whole; a read includes every write that has returned, from any process and through any
    replica. `memory.forget` of the user deletes the values.
    """

    def __init__(
        self, memory: Memory | SyncMemory, *, user_id: str | None = None, namespace: str | None = None
    ) -> None:
        self.memory = to_async(memory)
        self._whose: dict[str, Any] = {"user_id": user_id, "namespace": namespace}

    async def write(self, key: str, data: bytes) -> None:
        """Store the value of a key. Raises `InvalidItem` and `StoreUnavailable`."""
        first, *rest = [
            base64.b64encode(data[at : at + PART_BYTES]).decode() for at in range(0, len(data) or 1, PART_BYTES)
        ]
        path = (*_parts(key), f"{uuid4().hex}-{len(rest)}")
        writes = [ItemWrite(path=KEYS, key=key, value={"parts": path[-1], "data": first})]
        writes += await self._removals(key)
        writes += [ItemWrite(path=path, key=str(at), value={"data": text}) for at, text in enumerate(rest)]
        await self.memory.items.write(writes, **self._whose)

    async def read(self, key: str) -> bytes | None:
        """The value of a key, None if there is none. Raises `StoreUnavailable`."""
        for _ in range(MAX_READS):
            (head,) = await self.memory.items.get((KEYS, key), **self._whose)
            if head is None:
                return None
            names = _names((*_parts(key), str(head.value["parts"])))
            rest = await self.memory.items.get(*names, **self._whose) if names else []
            parts = [each for each in (head, *rest) if each is not None]
            if len(parts) == 1 + len(names):  # else the value was replaced after its first part was read
                return b"".join(base64.b64decode(str(each.value["data"])) for each in parts)
        raise errors.StoreUnavailable("read of a Strands session", f"{key!r} was replaced in each of {MAX_READS} reads")

    async def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        removals = await self._removals(key)
        await self.memory.items.write([ItemWrite(path=KEYS, key=key, value=None), *removals], **self._whose)

    async def list(self, query: str) -> list[str]:
        """The keys that start with a prefix, sorted."""
        found: list[str] = []
        while True:
            page = await self.memory.items.search(KEYS, limit=1_000, offset=len(found), renew=False, **self._whose)
            found += [each.key for each in page]
            if len(page) < 1_000:
                return sorted(key for key in found if key.startswith(query))

    async def _removals(self, key: str) -> Sequence[ItemWrite]:
        """Of all parts that the key has, of whichever write."""
        paths = [path for path in await self.memory.items.paths(**self._whose) if path[:-1] == _parts(key)]
        return [ItemWrite(path=path, key=at, value=None) for path in paths for _, at in _names(path)]


def _parts(key: str) -> tuple[str, ...]:
    return *PARTS, sha256(key.encode("utf-8", "replace")).hexdigest()  # a key may have what a path may not


def _names(path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """The items of the parts below a path, whose last label ends in their count."""
    return [(path, str(at)) for at in range(int(path[-1].rpartition("-")[2]))]


def _metadata(match: Match) -> dict[str, Any]:
    item = match.item
    known: dict[str, Any] = {"kind": type(item).__name__.lower(), "score": match.score}
    if isinstance(item, Episode):
        known |= {"id": str(item.id), "role": item.role.value, "occurred_at": item.occurred_at.isoformat()}
    return known
