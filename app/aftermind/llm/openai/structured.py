"""Answers of a given schema: asked for strictly, and repaired once where they are not."""

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from aftermind import errors
from aftermind.llm.base import Usage
from aftermind.llm.openai.client import Client, usage

A = TypeVar("A", bound=BaseModel)
MAX_ANSWER_TOKENS = 16_000


async def ask(client: Client, model: str, system: str, prompt: str, schema: type[A]) -> tuple[A, Usage]:
    """An answer of `schema` by chat completions with a strict JSON schema.

    One that cannot be used is shown its fault and asked for once more; then `BadModelAnswer`.
    """
    started = time.monotonic()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    text, spent = await _complete(client, model, messages, schema)
    try:
        return schema.model_validate_json(text), usage(model, *spent, started)
    except ValidationError as exc:
        fault = _fault(exc)
    repair = f"That answer cannot be used: {fault}. Answer again, whole, as JSON of the schema."
    messages += [{"role": "assistant", "content": text[:20_000]}, {"role": "user", "content": repair}]
    again, more = await _complete(client, model, messages, schema)
    try:
        answer = schema.model_validate_json(again)
    except ValidationError as exc:
        raise errors.BadModelAnswer(client.provider, f"twice not of the schema: {_fault(exc)}") from exc
    return answer, usage(model, spent[0] + more[0], spent[1] + more[1], started)


async def _complete(
    client: Client, model: str, messages: Sequence[dict[str, str]], schema: type[BaseModel]
) -> tuple[str, tuple[int, int]]:
    wanted: Any = {  # Any: the SDK's own typed dicts, which plain dicts fit
        "type": "json_schema",
        "json_schema": {"name": schema.__name__, "strict": True, "schema": schema.model_json_schema()},
    }
    given: Any = list(messages)
    async with client.call() as sdk:
        answer = await sdk.chat.completions.create(
            model=model, messages=given, response_format=wanted, max_completion_tokens=MAX_ANSWER_TOKENS
        )
    if not answer.choices:
        raise errors.BadModelAnswer(client.provider, "no choices")
    choice = answer.choices[0]
    if choice.message.refusal or choice.finish_reason == "content_filter":
        raise errors.ModelRefused(client.provider, "refusal")
    spent = (answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else (0, 0)
    return choice.message.content or "", spent


def _fault(exc: ValidationError) -> str:
    """Where it is wrong, without the text that is wrong."""
    found = [f"{'.'.join(map(str, each['loc'])) or 'answer'}: {each['type']}" for each in exc.errors()[:5]]
    return "; ".join(found)
