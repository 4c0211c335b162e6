"""OpenAI Agents SDK: a session whose items are remembered, and two hooks that add what is recalled to a run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack
from uuid import uuid4

from aftermind.api.blocking_portal import to_async
from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.conversations import recalled_text
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.message_records import Records, read_session, text_place
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Episode

with extra("openai-agents"):
    from agents import TResponseInputItem
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
    from agents.run import CallModelData, ModelInputData

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}

CALLS = {"function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "reasoning"}

Items = list[TResponseInputItem]
Callback = Callable[[Items, Items], Awaitable[Items]]
Filter = Callable[[CallModelData[Any]], Awaitable[ModelInputData]]  # Any: the context of the run


class AftermindSession:
    """The items of a session, exactly as they were added: an `agents.memory.Session`.

    They are remembered: stored in the background, recalled, and mined for facts. A read includes every item whose
    `add_items` has returned, from any process and through any replica. `pop_item` and `clear_session` forget items with
    what was derived from them.
    """

    session_id: str
    session_settings: SessionSettings | None  # the types of the SDK's protocol, whose attributes may be set

    def __init__(
        self,
        session_id: str,
        memory: Memory | SyncMemory,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id, self.memory = session_id, to_async(memory)
        self.user_id, self.namespace = user_id, namespace
        self.session_settings = coerce_session_settings(session_settings or {})
        self._failed: tuple[list[dict[str, Any]], str] | None = None  # a batch of which parts may be added, and its key

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first; all where neither it nor the settings have a limit."""
        wanted = resolve_session_limit(limit, self.session_settings)
        if wanted is not None and wanted <= 0:
            return []
        return [_to_item(each) for each in await read_session(self.memory, self.session_id, wanted, **self._owner)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items: as a whole, or above 1 MiB in parts. If it raises, the same call again adds what is missing.

        Raises `InvalidMessage`, and `MessageTooLarge` for one of more than 256 KiB: then none is added.
        """
        if not items:
            return
        settings = self.memory.settings
        turn = [RECORDS.to_message(each, limits(settings), is_cut=False) for each in items]
        key = self._failed[1] if self._failed is not None and self._failed[0] == turn else uuid4().hex
        parts = split_turn(turn, settings, idempotency_key=key)
        self._failed = (turn, key)
        for part, key_of_part in parts:
            chosen = key_of_part if len(parts) > 1 else None  # one part is added or not
            await self.memory.remember(part, session_id=self.session_id, idempotency_key=chosen, **self._owner)
        self._failed = None

    async def pop_item(self) -> TResponseInputItem | None:
        """Forget the newest item, and return it."""
        newest = await read_session(self.memory, self.session_id, 1, **self._owner)
        if not newest:
            return None
        await self.memory.forget(ids=[newest[0].id], **self._owner)
        return _to_item(newest[0])

    async def clear_session(self) -> None:
        """Forget the session."""
        await self.memory.forget(session_id=self.session_id, **self._owner)

    @property
    def _owner(self) -> dict[str, Any]:
        return {"user_id": self.user_id, "namespace": self.namespace}


def recall_callback(
    memory: Memory | SyncMemory,
    *,
    user_id: str | None = None,
    session_id: str | None = None,
    namespace: str | None = None,
    **options: Unpack[RecallOptions],
) -> Callback:
    """A `session_input_callback` that puts what fits the new input before it, as data of the user's role.

    It recalls once a run, which needs a session; what it adds is not saved there. Messages of the history, which the
    model is given anyway, are left out. `options` are those of
    `memory.recall`.
    """
    recall = partial(_recall, memory, user_id=user_id, session_id=session_id, namespace=namespace, **options)

    async def add_recall(history: Items, new: Items) -> Items:
        history += await recall(
            new, history
        )  # in place: the SDK saves what the callback returns besides these two lists
        return history + new

    return add_recall


def recall_filter(
    memory: Memory | SyncMemory,
    *,
    user_id: str | None = None,
    session_id: str | None = None,
    namespace: str | None = None,
    **options: Unpack[RecallOptions],
) -> Filter:
    """A `call_model_input_filter` that puts what fits the user's last message before it, as data of the user's role.

    It recalls before each model call of a run, with or without a session. What it adds is not saved, and has none of
    the earlier messages, which the model is given anyway. `options` are those of `memory.recall`.
    """
    recall = partial(_recall, memory, user_id=user_id, session_id=session_id, namespace=namespace, **options)

    async def add_recall(data: CallModelData[Any]) -> ModelInputData:  # Any: the context of the run
        items = list(data.model_data.input)
        asked = _last_of_user(items) or 0
        return ModelInputData(
            input=[*items[:asked], *await recall(items, items[:asked]), *items[asked:]],
            instructions=data.model_data.instructions,
        )

    return add_recall


async def _recall(memory: Memory | SyncMemory, items: Items, earlier: Items, **options: Any) -> Items:
    """What fits the user's last message, as an item of the user's role; nothing if there is none, or it has no text.

    `earlier` are the items that the model is given before it.
    """
    asked = _last_of_user(items)
    question = "" if asked is None else _text(items[asked])
    in_prompt = {(_role(each), _text(each)) for each in earlier}
    text = await recalled_text(memory, question, in_prompt=in_prompt, **options)
    return [{"role": "user", "content": text}] if text else []


def _last_of_user(items: Items) -> int | None:
    return next((at for at in range(len(items) - 1, -1, -1) if _role(items[at]) == "user"), None)


def _role(item: Mapping[str, Any]) -> str:
    return ROLES.get(item.get("role", ""), "tool")


def _text_at(item: Mapping[str, Any]) -> Sequence[str | int]:
    """Where the text of an item is: its content, a part of its content, or the output of a tool."""
    name = "content" if "content" in item else "output"
    return text_place(item.get(name), name)


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content" if "content" in item else "output")
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part, dict) and part.get("text"))


RECORDS = Records(
    framework="openai-agents", role=_role, text_at=_text_at, is_call=lambda item: item.get("type") in CALLS
)


def _to_item(episode: Episode) -> TResponseInputItem:
    """The item of an episode; a message where another part of the program has remembered it."""
    found = RECORDS.from_episode(episode)
    if found is not None:
        return found
    role = "user" if episode.role.value == "tool" else episode.role.value
    return {"role": role, "content": episode.content}
