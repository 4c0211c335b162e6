"""LlamaIndex: a memory block that recalls, and a `Memory` that gives its blocks every message when it is put."""

from typing import Any

from aftermind.integrations.conversations import recalled_text, remember_run
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory

with extra("llama-index"):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock
    from llama_index.core.memory import Memory as ChatMemory
    from llama_index.core.memory.memory import InsertMethod
    from pydantic import Field


class AftermindMemoryBlock(BaseMemoryBlock[str]):
    """What fits the user's last message without those of the queue, and a place for messages to be remembered.

    `options` are those of `memory.recall`. In a plain `Memory` of LlamaIndex a message reaches its blocks only when the
    queue is full; `AftermindMemory` gives it to them when it is put.
    """

    name: str = "aftermind"
    memory: Memory | SyncMemory
    user_id: str | None = None
    session_id: str | None = None
    namespace: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)  # `RecallOptions`, which pydantic cannot check

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        question = next((each.content for each in reversed(messages or ()) if each.role == "user"), None)
        session_id = self.session_id or block_kwargs.get("session_id")
        queue = {(each.role.value, each.content or "") for each in messages or ()}
        return await recalled_text(
            self.memory, question or "", in_prompt=queue, **self._whose(session_id), **self.options
        )

    async def _aput(self, messages: list[ChatMessage]) -> None:
        by_session: dict[str | None, list[tuple[str, str]]] = {}
        for each in messages:
            if each.role in ("user", "assistant"):
                session_id = self.session_id or each.additional_kwargs.get("session_id")
                by_session.setdefault(session_id, []).append((each.role.value, each.content or ""))
        for session_id, said in by_session.items():
            await remember_run(self.memory, said, **self._whose(session_id))

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Nothing: a part of the block would be no block. Set `token_budget` in the options instead."""
        return None

    def _whose(self, session_id: str | None) -> dict[str, Any]:
        return {"user_id": self.user_id, "session_id": session_id, "namespace": self.namespace}


class AftermindMemory(ChatMemory):
    """A `Memory` of LlamaIndex that gives its Aftermind blocks every message immediately.

    A message is then recalled in other sessions before the queue is full, and survives the process. What its blocks
    recall is inserted into the user's last message, not into the system message as LlamaIndex does.
    """

    insert_method: InsertMethod = InsertMethod.USER

    @classmethod
    def from_defaults(cls, *args: Any, insert_method: InsertMethod = InsertMethod.USER, **options: Any) -> Any:
        """See `Memory.from_defaults` of LlamaIndex, whose default is the system message."""
        return super().from_defaults(*args, insert_method=insert_method, **options)

    async def aput(self, message: ChatMessage) -> None:
        """Add a message."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages."""
        for block in self.memory_blocks:
            if isinstance(block, AftermindMemoryBlock):
                block.accept_short_term_memory = False  # when they leave the queue, they are remembered already
                await block._aput(
                    [
                        each.model_copy(update={"additional_kwargs": {"session_id": self.session_id}})
                        for each in messages
                    ]
                )
        await super().aput_messages(messages)
