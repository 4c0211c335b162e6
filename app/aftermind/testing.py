"""For users' own tests: a model with scripted answers."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aftermind import errors
from aftermind.llm.protocols import ChatReply, ToolCall, Usage

__all__ = ["ChatReply", "Scripted", "ScriptedChatModel", "ToolCall"]

Scripted = str | ToolCall | ChatReply | Exception | Callable[[Sequence[Mapping[str, Any]]], str]  # Any: chat messages


class ScriptedChatModel:
    """A `ChatModel` that gives the scripted replies, one a call, in order; the last one again and again.

    A text is an answer, a `ToolCall` asks for a tool, an exception is raised, a function answers from the messages.
    `calls` keeps the messages of every call, `tools` the tools that were offered.
    """

    def __init__(self, *replies: Scripted, name: str = "scripted") -> None:
        if not replies:
            raise errors.InvalidSettings("replies", replies, "a scripted model needs at least one answer.")
        self.name = name
        self.calls: list[list[Mapping[str, Any]]] = []  # Any: chat messages
        self.tools: list[list[Mapping[str, Any]]] = []  # Any: tools as JSON
        self._replies = list(replies)

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),  # Any: as above
    ) -> AsyncIterator[str | ChatReply]:
        """The next reply word by word, and whole at the end."""
        reply = self._next(messages, tools)
        for index, word in enumerate(reply.content.split(" ") if reply.content else ()):
            yield word if index == 0 else f" {word}"
        yield reply

    def _next(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> ChatReply:
        self.calls.append([dict(message) for message in messages])
        self.tools.append([dict(tool) for tool in tools])
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ChatReply):
            return reply
        if isinstance(reply, ToolCall):
            return ChatReply(content="", tool_calls=(reply,), usage=self._usage(""))
        text = reply if isinstance(reply, str) else reply(messages)
        return ChatReply(content=text, usage=self._usage(text))

    def _usage(self, text: str) -> Usage:
        return Usage(model=self.name, tokens_out=len(text.split()))
