"""Plain functions as tools of a model: their schema from type hints, their arguments checked before the call."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import PydanticUserError, TypeAdapter, ValidationError, validate_call
from pydantic_core import to_jsonable_python

from aftermind import errors

Function = Callable[..., Any]  # Any: whatever a user's tool takes and returns


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call.

    With `trusted=True` its results may become facts about the user; otherwise only the user's messages may.
    """

    name: str
    description: str
    schema: Mapping[str, Any]  # Any: JSON schema
    call: Function
    trusted: bool = False

    @classmethod
    def of(cls, function: Function, *, name: str | None = None, trusted: bool = False) -> Self:
        """A tool from a function, plain or async: its name, its docstring, its type hints.

        Raises `InvalidSettings` where a parameter's type has no JSON schema.
        """
        named = name or str(getattr(function, "__name__", type(function).__name__))
        adapter: Callable[[Any], TypeAdapter[Any]] = TypeAdapter  # Any: it accepts functions too, contrary to its types
        try:
            schema = adapter(function).json_schema()
            checked = validate_call(function)
        except (PydanticUserError, TypeError) as exc:
            why = f"a tool's parameters need types that JSON can carry: {exc}"
            raise errors.InvalidSettings("tools", named, why) from exc
        return cls(name=named, description=inspect.getdoc(function) or "", schema=schema, call=checked, trusted=trusted)

    def spec(self) -> dict[str, Any]:  # Any: as OpenAI's chat completions want it
        """The tool's description for the model."""
        told = {"name": self.name, "description": self.description, "parameters": dict(self.schema)}
        return {"type": "function", "function": told}

    async def run(self, arguments: str) -> tuple[str, bool]:
        """Call it with JSON arguments; returns the text for the model, and whether it failed.

        A plain function runs in a thread, with the run's context. The model gets the text of exceptions, and may
        correct its call.
        """
        try:
            given = json.loads(arguments or "{}")
            if not isinstance(given, dict):
                return "error: the arguments are not a JSON object", True
            if inspect.iscoroutinefunction(self.call):
                answer = await self.call(**given)
            else:
                answer = await asyncio.to_thread(self.call, **given)
                answer = await answer if inspect.isawaitable(answer) else answer
        except ValidationError as exc:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in exc.errors())
            return f"error: {wrong}", True
        except Exception as exc:  # the edge of a user's code: the model gets the error, the run continues
            return f"error: {type(exc).__name__}: {exc}", True
        return _text(answer), False


def collect(tools: Sequence[Function | Tool]) -> dict[str, Tool]:
    """The tools by name. Raises `InvalidSettings` for two of one name, and for what is neither function nor tool."""
    found: dict[str, Tool] = {}
    for given in tools:
        if not isinstance(given, Tool) and not callable(given):
            raise errors.InvalidSettings("tools", given, "a tool is a function, or a `Tool` made by Tool.of(function).")
        tool = given if isinstance(given, Tool) else Tool.of(given)
        if tool.name in found:
            raise errors.InvalidSettings("tools", tool.name, "two tools have this name; give one by Tool.of(…, name=).")
        found[tool.name] = tool
    return found


def _text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(to_jsonable_python(answer, fallback=str))
