"""Pydantic AI: a capability that recalls before the first request of a run, and remembers the run when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aftermind.integrations.conversations import choose, recalled_text, remember_run
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.sync import Memory as SyncMemory

with extra("pydantic-ai"):
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_core import to_json

Id = str | Callable[[RunContext[Any]], str | None] | None  # Any: the dependencies of the agent


@dataclass
class AftermindMemory(AbstractCapability[Any]):
    """Memory of an agent: what fits the user's prompt is put before it, and both sides of the run are remembered.

    `user_id` and `session_id` are ids, or functions of the run context: `lambda ctx: ctx.deps.user_id` lets one agent
    serve many users. Without `session_id` it is the conversation's id. `options` are those of `memory.recall`. What is
    recalled is data of the user's role, part of the request only, not of the message history.
    """

    memory: Memory | SyncMemory
    user_id: Id = None
    session_id: Id = None
    namespace: str | None = None
    options: RecallOptions = field(default_factory=RecallOptions)
    _recalled: str | None = field(default=None, init=False, repr=False)
    _seen: list[ModelMessage] = field(default_factory=list, init=False, repr=False)  # up to the last request

    async def for_run(self, ctx: RunContext[Any]) -> "AftermindMemory":
        """A copy for each run: a run recalls once, however many requests it makes."""
        return replace(self)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add what is recalled to the user's last prompt."""
        messages, self._seen = list(request_context.messages), ctx.messages
        place = next((at for at in range(len(messages) - 1, -1, -1) if _prompt(messages[at])), None)
        if place is None:
            return request_context
        if self._recalled is None:
            in_prompt = {pair for message in messages for pair in _texts(message)}
            self._recalled = await recalled_text(
                self.memory, _prompt(messages[place]), in_prompt=in_prompt, **self._whose(ctx), **self.options
            )
        if not self._recalled:
            return request_context
        asked = messages[place]
        messages[place] = replace(asked, parts=[UserPromptPart(self._recalled), *asked.parts])
        return replace(request_context, messages=messages)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        """Remember the messages, also of a run that fails or is cancelled."""
        messages: list[ModelMessage] = []
        try:
            result: AgentRunResult[Any] = await handler()
            messages = result.new_messages()
            return result
        finally:
            new = messages or [each for each in self._seen if each.run_id == ctx.run_id]
            said = [pair for message in new for pair in _texts(message)]
            if messages and isinstance(messages[-1], ModelRequest):  # a tool has given the output, without text
                said.append(("assistant", _as_text(result.output)))
            await remember_run(self.memory, said, **self._whose(ctx))

    def _whose(self, ctx: RunContext[Any]) -> dict[str, Any]:
        session_id = ctx.conversation_id if self.session_id is None else choose(self.session_id, ctx)
        return {"user_id": choose(self.user_id, ctx), "session_id": session_id, "namespace": self.namespace}


def _prompt(message: ModelMessage) -> str:
    """The text of the user in a request."""
    if not isinstance(message, ModelRequest):
        return ""
    return "\n".join(_text(part.content) for part in message.parts if isinstance(part, UserPromptPart))


def _texts(message: ModelMessage) -> list[tuple[str, str]]:
    if isinstance(message, ModelResponse):
        return [("assistant", part.content) for part in message.parts if isinstance(part, TextPart)]
    return [("user", _prompt(message))]


def _as_text(output: Any) -> str:
    return output if isinstance(output, str) else to_json(output, fallback=str).decode()


def _text(content: str | Sequence[Any]) -> str:  # Any: parts of any media
    if isinstance(content, str):
        return content
    return "\n".join(
        part if isinstance(part, str) else getattr(part, "content", "") or ""
        for part in content
        if isinstance(part, str) or type(part).__name__ == "TextContent"
    )
