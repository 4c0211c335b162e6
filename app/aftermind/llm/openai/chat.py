"""A model to talk to, with tools, whole or in pieces."""

import inspect
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aftermind import errors
from aftermind.llm.openai.client import Client, prompt_tokens
from aftermind.llm.protocols import ChatReply, ToolCall


class OpenAIChat:
    """Chat completions."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self.name = f"{client.kind}:{model}"

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> AsyncIterator[str | ChatReply]:
        """Pieces of text as they come; the whole reply at the end. Raises the model errors of `aftermind.errors`."""
        started = time.monotonic()
        texts: list[str] = []
        calls: dict[int, dict[str, str]] = {}
        spent, is_answered, finish_reason = (0, 0), False, ""
        async with self._client.call(self._model, tokens=prompt_tokens(messages, tools)) as sdk:
            asked: dict[str, Any] = {"model": self._model, "messages": list(messages)}
            asked |= {"tools": list(tools)} if tools else {}
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
            chunks = await sdk.chat.completions.create(**asked)
            try:
                async for chunk in chunks:
                    if getattr(chunk, "usage", None):  # chunks of LiteLLM lack fields
                        spent = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                    for choice in chunk.choices[:1]:
                        is_answered, finish_reason = True, getattr(choice, "finish_reason", None) or finish_reason
                        if getattr(choice.delta, "refusal", None):
                            raise errors.ModelRefused(self._client.provider, "refusal")
                        _gather(calls, choice.delta.tool_calls or ())
                        if choice.delta.content:
                            texts.append(choice.delta.content)
                            yield choice.delta.content
            finally:
                await _close(chunks)
            if not is_answered:  # a body that is no stream has no events
                raise errors.BadModelAnswer(self._client.provider, "no choices")
            if finish_reason == "content_filter":
                raise errors.ModelRefused(self._client.provider, finish_reason)
        if not finish_reason:  # the answer would be remembered as whole; the provider itself serves other calls
            raise errors.ModelUnavailable(self._client.provider, "its stream ended early, without a finish_reason")
        found = tuple(ToolCall(**calls[place]) for place in sorted(calls))
        cost = self._client.usage(self._model, spent[0], spent[1], started)
        yield ChatReply(content="".join(texts), tool_calls=found, usage=cost, finish_reason=finish_reason)


async def _close(chunks: Any) -> None:  # Any: a stream of one of the SDKs
    """End the request of a stream that was not read to its end."""
    close = getattr(chunks, "close", None) or getattr(chunks, "aclose", None)
    if close is not None and inspect.isawaitable(done := close()):
        await done


def _gather(calls: dict[int, dict[str, str]], pieces: Sequence[Any]) -> None:  # Any: the SDK's deltas
    """Tool calls come in pieces: id and name first, then the arguments bit by bit."""
    for piece in pieces:
        call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
        call["id"] += piece.id or ""
        if piece.function:
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
