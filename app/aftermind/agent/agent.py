"""`Agent`: recall, ask the model, run its tools, answer, and remember after the answer."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

from aftermind import errors
from aftermind.agent.function_tools import Function, Tool, collect
from aftermind.agent.memory_hooks import Remembering
from aftermind.agent.run_context import RunContext, running
from aftermind.agent.run_results import AgentEvent, AgentResult, TextDelta, ToolCalled, ToolReturned
from aftermind.api import blocking_portal, turn_builder
from aftermind.events.types import MemoryEvent
from aftermind.llm.protocols import ChatModel, ChatReply, Usage
from aftermind.memory import Memory
from aftermind.receipt import Receipt
from aftermind.settings import Settings
from aftermind.types import Episode, Json, Message, RecallBlock, Role, Scope
from aftermind.types.scope import DEFAULT_NAMESPACE
from aftermind.types.validation import Given, message_metadata, normalise

CONVERSATION_BYTES = 8_388_608  # of `messages` given to a run, of which only the newest become a turn
DEFAULT_INSTRUCTIONS = "You are a helpful assistant."
NO_TOOLS_LEFT = "You have used all your tool calls. Answer with the information that you have."


@dataclass(slots=True)
class _Run:
    """One run: the messages for the model, and the turn to be remembered.

    `conversation` are the caller's messages, if it gave them: they take the place of the remembered history. The model
    gets them as `given`, with their images.
    """

    id: str
    scope: Scope
    metadata: Mapping[str, Json]
    query: str
    conversation: tuple[Message, ...] | None = None
    given: Sequence[Given] = ()
    block: RecallBlock | None = None
    told: list[dict[str, Any]] = field(default_factory=list)  # Any: messages as OpenAI's chat completions have them
    turn: list[Message] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)  # pieces of the answer that the caller was given
    finish_reason: str = "stop"  # of the last answer
    is_kept: bool = False
    idempotency_key: str | None = None

    @property
    def context(self) -> RunContext:
        return RunContext(scope=self.scope, run_id=self.id, memory_context=self.block, metadata=self.metadata)

    def key(self, idempotency_key: str | None) -> None:
        """The key belongs to the prompt, which are the turn's messages so far."""
        self.idempotency_key = idempotency_key
        if isinstance(idempotency_key, str):  # anything else is refused later
            self.idempotency_key = turn_builder.PromptKey(idempotency_key, len(self.turn))

    @property
    def key_of_part(self) -> str | None:
        """The key for the part of an answer: the whole one of a retry is stored too."""
        key = self.idempotency_key
        return turn_builder.PromptKey(key, key.prompts, "part") if isinstance(key, turn_builder.PromptKey) else key


class Agent:
    """A model with instructions, tools and a memory.

    `model` is a name (`settings.chat_model` if None, called through OpenAI or a compatible server) or a `ChatModel`.
    `tools` are functions with type hints; inside them `get_run_context()` returns the user of the run. With
    `block_tools(memory)` among them the agent edits the blocks of its user. `save` and `load` select history, facts,
    summary and profile for storing and for the next run; `load` follows `save` if it is not given. `memory` is a
    `Memory`, or its store as a URL or a dict: close it with `await agent.memory.close()`. A memory that fails never
    fails the answer, unless `strict`. With `feed_tool_call_results` the history for the next run has tool calls and
    their results too, in pairs; otherwise it has the messages of the user and the answers. After `max_steps` rounds of
    tool calls in one run the model is asked once more, to answer without tools (`AgentResult.finish_reason`). Images
    and files are not kept: the model gets those of `messages=` alone.

    `history_messages` is the number of the session's latest messages that the model gets. A run without a `session_id`
    is a conversation by itself: it has no history, and only recall connects it with former runs.
    """

    def __init__(
        self,
        instructions: str = DEFAULT_INSTRUCTIONS,
        *,
        model: str | ChatModel | None = None,
        memory: Memory | str | Mapping[str, Any] | None = None,  # Any: as `Memory`
        tools: Sequence[Function | Tool] = (),
        agent_id: str | None = None,
        token_budget: int | None = None,
        history_messages: int = 20,
        max_steps: int = 8,
        strict: bool | None = None,
        save: frozenset[str] | set[str] | None = None,
        load: frozenset[str] | set[str] | None = None,
        feed_tool_call_results: bool = False,
        settings: Settings | None = None,
    ) -> None:
        if not (model is None or isinstance(model, str) or (hasattr(model, "stream") and hasattr(model, "name"))):
            why = "it is a name, or an object with `name` and `stream`: see aftermind.llm.protocols.ChatModel."
            raise errors.InvalidSettings("model", model, why)
        if isinstance(memory, str | Mapping):
            memory = Memory(memory, settings=settings)
        elif memory is not None and not isinstance(memory, Memory):
            why = (
                "it is an `aftermind.Memory`, a URL or a dict; `aftermind.sync.Agent` takes an `aftermind.sync.Memory`."
            )
            raise errors.InvalidSettings("memory", type(memory).__qualname__, why)
        self._settings = settings or (Settings() if memory is None else memory.settings)
        self.instructions, self.agent_id, self.max_steps = instructions, agent_id, max_steps
        self._model, self._tools = model, collect(tools)
        self.memory, self._feeds_tool_results = memory, feed_tool_call_results
        self._remembering: Remembering | None = None
        if memory is not None:
            kept = None if save is None else turn_builder.kinds("save", save, turn_builder.KINDS)
            loaded = turn_builder.loaded(load, save)
            self._remembering = Remembering(
                memory=memory,
                strict=self._settings.strict if strict is None else strict,
                save=kept,
                load=loaded,
                token_budget=token_budget,
                history_messages=history_messages,
                tool_results=feed_tool_call_results,
            )

    async def arun(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Given] | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> AgentResult:
        """Answer a prompt, or the last of `messages`: a conversation that the caller keeps, in place of the history.

        Remembered are the prompt, or the messages after the last answer, and the new answer, with the run's `metadata`.
        Raises the model's errors, `InvalidScope`, `InvalidInput`; errors of memory only with `strict`.

        The user's message is remembered even if the model raises. Give each prompt an `idempotency_key`, and a client's
        retry the key of its first run: the retry asks the model again, and the prompt is remembered once, with the
        first whole answer.
        """
        run = self._begin(prompt, messages, user_id, session_id, namespace, metadata)
        run.key(idempotency_key)
        async with aclosing(self._events(run)) as events:
            async for event in events:
                if isinstance(event, AgentResult):
                    return event
        raise errors.Bug("a run ended without a result.")

    async def arun_stream(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Given] | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[AgentEvent, None]:
        """Answer piece by piece, with the events of memory and tools; the last item is the result.

        If the caller stops or the model raises in the middle, the turn is remembered with the part sent so far, marked
        `interrupted`. A repeated run adds its whole answer. With an `idempotency_key` there are two
        `MemoryUpdateQueued`: of the prompt and of the answer.
        """
        run = self._begin(prompt, messages, user_id, session_id, namespace, metadata)
        run.key(idempotency_key)
        try:
            async with aclosing(self._events(run)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        run.heard.append(event.text)
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            await self._remember_partial_answer(run)
            raise

    def run(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Given] | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> AgentResult:
        """`arun` for callers without an event loop."""
        return blocking_portal.call(
            lambda: self.arun(
                prompt,
                messages=messages,
                user_id=user_id,
                session_id=session_id,
                namespace=namespace,
                metadata=metadata,
                idempotency_key=idempotency_key,
            )
        )

    def run_stream(
        self,
        prompt: str | None = None,
        *,
        messages: Iterable[Given] | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        namespace: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> Generator[AgentEvent, None, None]:
        """`arun_stream` for callers without an event loop."""
        return blocking_portal.iterate(
            lambda: self.arun_stream(
                prompt,
                messages=messages,
                user_id=user_id,
                session_id=session_id,
                namespace=namespace,
                metadata=metadata,
                idempotency_key=idempotency_key,
            )
        )

    async def _events(self, run: _Run) -> AsyncGenerator[AgentEvent, None]:
        model = self._chat_model()
        told: list[MemoryEvent] = []
        history: Sequence[Episode] = ()
        if self._remembering is not None:
            run.block, history = await self._remembering.recall(
                run.query, run.scope, told.append, given=run.conversation
            )
            for event in _taken(told):
                yield event
        run.told = self._prompt_messages(run.block, history, run)
        answer = ""
        try:
            async with aclosing(self._converse(model, run)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        answer = piece
                    else:
                        yield piece
        except Exception:  # the model failed: the user's message is remembered anyway
            await self._remember_unanswered(run)
            raise
        receipt = None
        if self._remembering is not None:
            receipt = await self._remember(run, answer, told)
            for event in _taken(told):
                yield event
        yield AgentResult(
            text=answer,
            run_id=run.id,
            messages=tuple(run.turn),
            memory=run.block,
            receipt=receipt,
            usage=tuple(run.usage),
            finish_reason=run.finish_reason,
        )

    async def _remember(self, run: _Run, answer: str, told: list[MemoryEvent]) -> Receipt | None:
        assert self._remembering is not None
        run.is_kept = True
        if answer.strip():
            run.turn.append(self._answer(answer, run.metadata))
        return await self._remembering.remember(
            run.turn, run.scope, told.append, idempotency_key=run.idempotency_key, recalled=run.block
        )

    async def _remember_unanswered(self, run: _Run) -> None:
        """Remember a turn whose model failed, with the part of the answer that was sent; a retry adds its answer."""
        if "".join(run.heard).strip():
            await self._remember_partial_answer(run)
        elif self._remembering is not None:
            run.is_kept = True
            await self._remembering.remember(
                run.turn, run.scope, lambda event: None, idempotency_key=run.idempotency_key, recalled=run.block
            )

    async def _remember_partial_answer(self, run: _Run) -> None:
        text = "".join(run.heard)
        if self._remembering is None or run.is_kept or not text.strip():
            return
        run.is_kept = True
        answer = self._answer(text, {**run.metadata, "interrupted": True})
        await asyncio.shield(
            self._remembering.remember(
                [*run.turn, answer],
                run.scope,
                lambda event: None,
                idempotency_key=run.key_of_part,
                recalled=run.block,
            )
        )

    def _answer(self, text: str, metadata: Mapping[str, Json]) -> Message:
        return Message(role=Role.ASSISTANT, content=text, name=self.agent_id, metadata=metadata)

    def _begin(
        self,
        prompt: str | None,
        messages: Iterable[Given] | None,
        user_id: str | None,
        session_id: str | None,
        namespace: str | None,
        metadata: Mapping[str, Json] | None,
    ) -> _Run:
        bounds = turn_builder.limits(self._settings)
        metadata = metadata or {}
        if self.memory is not None:
            metadata = message_metadata(metadata, bounds)
        conversation: tuple[Message, ...] | None = None
        given: list[Given] = []
        if messages is not None:
            if prompt is not None:
                raise errors.InvalidMessage("prompt", prompt, "give a prompt or messages, not both.")
            whole = replace(bounds, turn_bytes=max(bounds.turn_bytes, CONVERSATION_BYTES))
            several = isinstance(messages, Iterable) and not isinstance(messages, str | bytes | Message | Mapping)
            given = list(messages) if several else [cast(Given, messages)]
            conversation = normalise(given, whole, now=datetime.now(UTC))
            if conversation[-1].role is not Role.USER:
                raise errors.InvalidMessage("messages", conversation[-1].role, "the last message must be the user's.")
            query, new = conversation[-1].content, _unanswered(conversation)
        elif isinstance(prompt, str) and prompt.strip():
            query, new = prompt, [Message.user(prompt)]
        else:
            raise errors.InvalidMessage(
                "prompt", prompt, "give a prompt, a text that is not empty, or a conversation as messages=[…]."
            )
        default = self.memory.namespace if self.memory else DEFAULT_NAMESPACE
        scope = Scope(
            namespace=default if namespace is None else namespace,
            user_id=user_id,
            session_id=session_id,
            agent_id=self.agent_id,
        )
        run = _Run(id=uuid4().hex, scope=scope, metadata=metadata, query=query, conversation=conversation, given=given)
        run.turn += [replace(message, metadata={**metadata, **message.metadata}) for message in new]
        return run

    def _prompt_messages(
        self, block: RecallBlock | None, history: Sequence[Episode], run: _Run
    ) -> list[dict[str, Any]]:
        # Any: messages as OpenAI's chat completions have them
        system = self.instructions if block is None or not block.text else f"{self.instructions}\n\n{block.text}"
        first = {"role": "system", "content": system}
        if run.conversation is not None:
            return [first, *map(_to_chat, run.given, run.conversation)]
        roles = {Role.USER, Role.ASSISTANT} | ({Role.TOOL} if self._feeds_tool_results else set())
        earlier = [each.to_chat() for each in history if each.role in roles]
        return [first, *earlier, {"role": "user", "content": run.query}]

    async def _converse(self, model: ChatModel, run: _Run) -> AsyncGenerator[AgentEvent | str, None]:
        """Ask until the model wants no more tools; yields events, and the whole answer, as str, at the end."""
        specs = [tool.spec() for tool in self._tools.values()]
        for step in range(self.max_steps + 1):
            is_last = step == self.max_steps
            if is_last:
                run.told.append({"role": "system", "content": NO_TOOLS_LEFT})
            reply: ChatReply | None = None
            pieces = model.stream(run.told, () if is_last else specs)
            try:
                async for piece in pieces:
                    if isinstance(piece, str):
                        yield TextDelta(text=piece)
                    else:
                        reply = piece
            finally:
                if isinstance(pieces, AsyncGenerator):  # a caller that stops in the middle ends the model's request
                    await pieces.aclose()
            if reply is None:
                raise errors.BadModelAnswer(model.name, "its stream ended without a `ChatReply`")
            run.usage.append(replace(reply.usage, model=reply.usage.model or model.name))
            was_stopped = 0 < step == self.max_steps and reply.finish_reason != "length"
            run.finish_reason = "max_steps" if was_stopped else reply.finish_reason
            if not reply.tool_calls or is_last:
                yield reply.content
                return
            async with aclosing(self._use_tools(reply, run)) as events:
                async for event in events:
                    yield event

    async def _use_tools(self, reply: ChatReply, run: _Run) -> AsyncGenerator[AgentEvent, None]:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        run.told.append({"role": "assistant", "content": reply.content or None, "tool_calls": calls})
        if self._feeds_tool_results:
            run.turn.append(self._answer(reply.content or "", {**run.metadata, "tool_calls": calls}))
        for call in reply.tool_calls:
            yield ToolCalled(id=call.id, name=call.name, arguments=call.arguments)
            tool = self._tools.get(call.name)
            if tool is None:
                content, failed = f"error: there is no tool {call.name!r}", True
            else:
                with running(
                    run.context
                ):  # around the call alone: a generator's context is its caller's between yields
                    content, failed = await tool.run(call.arguments)
            run.told.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if self._feeds_tool_results:  # each call has its result, as chat models require
                trusted, named = tool is not None and not failed and tool.trusted, {"tool_call_id": call.id}
                run.turn.append(Message.tool(content or "-", name=call.name, trusted=trusted, metadata=named))
            elif tool is not None and not failed and content.strip():
                run.turn.append(Message.tool(content, name=call.name, trusted=tool.trusted))
            yield ToolReturned(id=call.id, name=call.name, content=content, failed=failed)

    def _chat_model(self) -> ChatModel:
        if self._model is None or isinstance(self._model, str):
            from aftermind.llm.factory import chat_model  # loads the provider's library: at first use only

            self._model = chat_model(self._settings, self._model)
        return self._model


def _to_chat(given: Given, message: Message) -> dict[str, Any]:  # Any: a message as OpenAI's chat completions have it
    """The message for the model, with the images and files of its content."""
    chat: dict[str, Any] = message.to_chat()
    if message.name and message.role in (Role.ASSISTANT, Role.SYSTEM):
        chat["name"] = message.name
    parts = given.get("content") if isinstance(given, Mapping) else None
    if isinstance(parts, list | tuple) and message.metadata.get("attachments"):
        chat["content"] = [_text_part(each) for each in parts]
    return chat


def _text_part(part: Any) -> Any:
    """A text as chat completions have it, also that of the Responses API; other parts as they are."""
    text = part if isinstance(part, str) else part.get("text")
    return {"type": "text", "text": text} if isinstance(text, str) else part


def _unanswered(conversation: Sequence[Message]) -> list[Message]:
    """The messages after the last answer; instructions of the caller are not part of a turn."""
    answers = [place for place, message in enumerate(conversation) if message.role is Role.ASSISTANT]
    rest = conversation[answers[-1] + 1 :] if answers else conversation
    return [message for message in rest if message.role is not Role.SYSTEM]


def _taken(heard: list[MemoryEvent]) -> list[MemoryEvent]:
    taken, heard[:] = list(heard), []
    return taken
