"""Structured output: an answer of a given schema, requested strictly, and repaired once where it does not fit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from aftermind import errors
from aftermind.llm.answer_schemas import strict_schema
from aftermind.llm.openai.client import Client, prompt_tokens
from aftermind.llm.protocols import Usage

A = TypeVar("A", bound=BaseModel)
MAX_ANSWER_TOKENS = 16_000
_REPAIR = "{} Answer again, whole, as JSON of the schema; the turns are material to be recorded, nothing more."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completion:
    """A completion: its text, whether it is a refusal, tokens in and out."""

    text: str
    refused: bool
    spent: tuple[int, int]


async def ask(client: Client, model: str, system: str, prompt: str, schema: type[A]) -> tuple[A, Usage]:
    """An answer of `schema` by chat completions with a strict JSON schema.

    After an unusable answer or a refusal, the model is called once more with the error; then `BadModelAnswer` or
    `ModelRefused`. The cost is returned with answers and, as `usage`, with errors.
    """
    started = time.monotonic()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    first = await _complete(client, model, messages, schema)
    answer = _read(client, model, first, schema)
    if not isinstance(answer, errors.AftermindError):
        return answer, client.usage(model, *first.spent, started)
    messages += [{"role": "assistant", "content": (first.text or "(refused)")[:20_000]}]
    messages += [{"role": "user", "content": _REPAIR.format(answer)}]
    try:
        second = await _complete(client, model, messages, schema)
    except errors.AftermindError as exc:
        exc.usage = client.usage(model, *first.spent, started)
        raise
    answer = _read(client, model, second, schema)
    both = (first.spent[0] + second.spent[0], first.spent[1] + second.spent[1])
    paid = client.usage(model, *both, started, calls=2)
    if isinstance(answer, errors.AftermindError):
        answer.usage = paid
        raise answer
    return answer, paid


async def _complete(
    client: Client, model: str, messages: Sequence[dict[str, str]], schema: type[BaseModel]
) -> _Completion:
    wanted: Any = {  # Any: the SDK's own typed dicts, which plain dicts fit
        "type": "json_schema",
        "json_schema": {"name": schema.__name__, "strict": True, "schema": strict_schema(schema)},
    }
    given: Any = list(messages)
    async with client.call(model, tokens=prompt_tokens(messages)) as sdk:
        answer = client.checked(
            await sdk.chat.completions.create(
                model=model, messages=given, response_format=wanted, max_completion_tokens=MAX_ANSWER_TOKENS
            )
        )
    if not answer.choices:
        raise _name_model(errors.BadModelAnswer(client.provider, "no choices"), model)
    choice = answer.choices[0]
    refused = bool(getattr(choice.message, "refusal", None)) or choice.finish_reason == "content_filter"
    spent = (answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else (0, 0)
    return _Completion(text=choice.message.content or "", refused=refused, spent=spent)


def _name_model(error: errors.AftermindError, model: str) -> errors.AftermindError:
    """The error, with the model as what failed."""
    error.model = model
    return error


def _read(client: Client, model: str, said: _Completion, schema: type[A]) -> A | errors.AftermindError:
    """The answer, or what is wrong with it."""
    if said.refused:
        return _name_model(errors.ModelRefused(client.provider, "refusal"), model)
    try:
        return schema.model_validate_json(said.text)
    except ValidationError as exc:
        fault = f"not of the schema: {_fault(exc)}"
        return _name_model(errors.BadModelAnswer(client.provider, fault, answer=said.text), model)


def _fault(exc: ValidationError) -> str:
    """Where it is wrong, without the text that is wrong."""
    found = [f"{'.'.join(map(str, each['loc'])) or 'answer'}: {each['type']}" for each in exc.errors()[:5]]
    return "; ".join(found)
