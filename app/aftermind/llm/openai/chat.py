"""A model to talk to, with tools, whole or in pieces."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aftermind import errors
from aftermind.llm.openai.client import Client, prompt_tokens, usage
from aftermind.llm.protocols import ChatReply, ToolCall


class OpenAIChat:
    """Chat completions."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self.name = f"{client.kind}:{model}"

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply:
        """One answer. Raises the model errors of `aftermind.errors`."""
        started = time.monotonic()
        async with self._client.call(self._model, tokens=prompt_tokens(messages, tools)) as sdk:
            answer = await sdk.chat.completions.create(**self._complete(messages, tools))
        if not answer.choices:
            raise errors.BadModelAnswer(self._client.provider, "no choices")
        message = answer.choices[0].message
        if getattr(message, "refusal", None):  # messages of LiteLLM have no such field
            raise errors.ModelRefused(self._client.provider, "refusal")
        calls = tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        )
        spent = (answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else (0, 0)
        cost = usage(self._model, spent[0], spent[1], started)
        return ChatReply(content=message.content or "", tool_calls=calls, usage=cost)

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> AsyncIterator[str | ChatReply]:
        """Pieces of text as they come; the whole reply at the end."""
        started = time.monotonic()
        texts: list[str] = []
        calls: dict[int, dict[str, str]] = {}
        spent = (0, 0)
        async with self._client.call(self._model, tokens=prompt_tokens(messages, tools)) as sdk:
            asked = {**self._complete(messages, tools), "stream": True, "stream_options": {"include_usage": True}}
            async for chunk in await sdk.chat.completions.create(**asked):
                if getattr(chunk, "usage", None):  # as above
                    spent = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                for choice in chunk.choices[:1]:
                    _gather(calls, choice.delta.tool_calls or ())
                    if choice.delta.content:
                        texts.append(choice.delta.content)
                        yield choice.delta.content
        found = tuple(ToolCall(**calls[place]) for place in sorted(calls))
        cost = usage(self._model, spent[0], spent[1], started)
        yield ChatReply(content="".join(texts), tool_calls=found, usage=cost)

    def _complete(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": self._model, "messages": list(messages)}
        return asked | ({"tools": list(tools)} if tools else {})


def _gather(calls: dict[int, dict[str, str]], pieces: Sequence[Any]) -> None:  # Any: the SDK's deltas
    """Tool calls come in pieces: id and name first, then the arguments bit by bit."""
    for piece in pieces:
        call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
        call["id"] += piece.id or ""
        if piece.function:
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
