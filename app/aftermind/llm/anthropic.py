"""Claude by Anthropic's SDK, taking and giving what OpenAI's chat completions do: messages, tools, JSON schemas."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import orjson

from aftermind import errors
from aftermind.llm.openai.client import Client

MAX_TOKENS = 8_192  # of an answer; Anthropic wants a bound
REFUSAL = "refusal"


@dataclass(slots=True, kw_only=True)
class AnthropicClient(Client):
    """A client of Anthropic's Messages API."""

    kind: ClassVar[str] = "anthropic"
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"

    def make(self) -> Any:
        """The SDK's client in the form of OpenAI's."""
        import anthropic

        made = anthropic.AsyncAnthropic(
            api_key=self.api_key, base_url=self.base_url, timeout=self.timeout, max_retries=0
        )
        completions = _Completions(made.messages, self.provider)
        return SimpleNamespace(chat=SimpleNamespace(completions=completions), close=made.close)

    def error_of(self, exc: Exception) -> errors.AftermindError | None:
        """Anthropic's exceptions have the names of OpenAI's."""
        import anthropic

        return self.classify(exc, anthropic)


class _Completions:
    """`chat.completions` of OpenAI on the Messages API."""

    def __init__(self, messages: Any, provider: str) -> None:
        self._messages, self._provider = messages, provider

    async def create(self, *, model: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """A completion, or an iterator of its chunks with `stream`."""
        asked = _request(model, messages, options)
        if options.get("stream"):
            return self._stream(asked)
        return _completion(await self._messages.create(**asked))

    async def _stream(self, asked: dict[str, Any]) -> AsyncIterator[Any]:
        calls = -1
        async with self._messages.stream(**asked) as events:
            async for event in events:
                if event.type == "content_block_start" and event.content_block.type == "tool_use":
                    calls += 1
                    yield _chunk(tool_calls=[_call(event.content_block.id, event.content_block.name, "", calls)])
                elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                    yield _chunk(content=event.delta.text)
                elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    yield _chunk(tool_calls=[_call("", "", event.delta.partial_json, calls)])
            try:
                whole = await events.get_final_message()
            except AssertionError as exc:  # the SDK's, for a body without events
                raise errors.BadModelAnswer(self._provider, "a stream was asked for, and none came") from exc
        end = SimpleNamespace(delta=SimpleNamespace(content=None, tool_calls=()), finish_reason=_finish_reason(whole))
        yield SimpleNamespace(choices=[end], usage=_usage(whole))


def _request(model: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    first = [part for each in messages if each["role"] in ("system", "developer") for part in _content(each["content"])]
    system = "\n\n".join(part["text"] for part in first if part.get("type") == "text")
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": options.get("max_completion_tokens") or MAX_TOKENS,
        "messages": list(_merged(each for each in messages if each["role"] not in ("system", "developer"))),
    }
    if system:
        asked["system"] = system
    if options.get("tools"):
        asked["tools"] = [_tool(each["function"]) for each in options["tools"]]
    wanted = options.get("response_format")
    if wanted:
        asked["output_config"] = {"format": {"type": "json_schema", "schema": wanted["json_schema"]["schema"]}}
    return asked


def _merged(messages: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages in Anthropic's form; neighbours of one role are one, as results of tools have to be."""
    last: dict[str, Any] | None = None
    for each in messages:
        role = "assistant" if each["role"] == "assistant" else "user"
        parts = list(_parts(each))
        if last is not None and last["role"] == role:
            last["content"] += parts
            continue
        if last is not None:
            yield last
        last = {"role": role, "content": parts}
    if last is not None:
        yield last


def _parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    parts = _content(message.get("content"))
    if message["role"] == "tool" and "tool_call_id" in message:
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": parts}
        return
    if parts and message.get("name") and message["role"] == "user":  # Anthropic's messages have no names
        yield {"type": "text", "text": f"{message['name']}:"}
    yield from parts
    for call in message.get("tool_calls") or ():
        said = call["function"]
        given = orjson.loads(said["arguments"] or "{}")
        yield {"type": "tool_use", "id": call["id"], "name": said["name"], "input": given}


def _content(content: Any) -> list[dict[str, Any]]:
    """Texts and images of OpenAI's content as Anthropic has them; any other part as it is."""
    if isinstance(content, str) or content is None:
        return [{"type": "text", "text": content}] if content else []
    found = []
    for part in content:
        if part.get("type") in ("image_url", "input_image") and part.get("image_url"):
            linked = part["image_url"]
            found.append(_image(linked if isinstance(linked, str) else linked["url"]))
        else:
            found.append({"type": "text", "text": part["refusal"]} if part.get("type") == "refusal" else part)
    return found


def _image(url: str) -> dict[str, Any]:
    """An image of OpenAI's chat completions: a URL, or its bytes as a `data:` URL."""
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": kind, "data": data} if data else {"type": "url", "url": url}
    return {"type": "image", "source": source}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "input_schema": schema}


def _completion(answer: Any) -> Any:
    text = "".join(each.text for each in answer.content if each.type == "text")
    used = [each for each in answer.content if each.type == "tool_use"]
    calls = [_call(each.id, each.name, orjson.dumps(each.input).decode(), at) for at, each in enumerate(used)]
    refused = "refused" if answer.stop_reason == REFUSAL else None
    message = SimpleNamespace(content=text, tool_calls=calls, refusal=refused)
    choice = SimpleNamespace(message=message, finish_reason=_finish_reason(answer))
    return SimpleNamespace(choices=[choice], usage=_usage(answer))


def _finish_reason(answer: Any) -> str | None:
    """Why an answer ended, as OpenAI names it."""
    names = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", REFUSAL: "content_filter"}
    names |= dict.fromkeys(("max_tokens", "model_context_window_exceeded"), "length")
    reason: str | None = answer.stop_reason
    return names.get(reason or "", reason)


def _call(id_: str, name: str, arguments: str, index: int) -> Any:
    return SimpleNamespace(id=id_, index=index, function=SimpleNamespace(name=name, arguments=arguments))


def _chunk(content: str | None = None, tool_calls: Sequence[Any] = ()) -> Any:
    delta = SimpleNamespace(content=content, tool_calls=tool_calls)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)], usage=None)


def _usage(answer: Any) -> Any:
    return SimpleNamespace(prompt_tokens=answer.usage.input_tokens, completion_tokens=answer.usage.output_tokens)
