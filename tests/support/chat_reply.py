"""The whole reply of a chat model."""

from collections.abc import Mapping, Sequence
from typing import Any

from aftermind.llm.protocols import ChatModel, ChatReply


async def reply_of(
    chat: ChatModel, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> ChatReply:
    """The last piece of its stream."""
    *_, reply = [piece async for piece in chat.stream(messages, tools)]
    assert isinstance(reply, ChatReply)
    return reply
