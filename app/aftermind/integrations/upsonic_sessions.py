"""A user's sessions as a storage of Upsonic, and its messages as messages of Aftermind."""

from collections.abc import Mapping, Sequence
from typing import Any

from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.message_records import Records, read_session, text_place
from aftermind.integrations.upsonic_storages import AftermindStorage, blocking
from aftermind.types import Episode
from aftermind.types.validation import Limits, without_inline_data

with extra("upsonic"):
    from upsonic.messages.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart
    from upsonic.session.agent import AgentSession

TEXTS = ("user-prompt", "text", "tool-return")  # kinds of parts whose text is remembered, the first that there is


def _kinds(record: Mapping[str, Any]) -> list[str]:
    return [each["part_kind"] for each in record["parts"]]


def _role(record: Mapping[str, Any]) -> str:
    return "assistant" if record["kind"] == "response" else "tool" if "tool-return" in _kinds(record) else "user"


def _text_at(record: Mapping[str, Any]) -> Sequence[str | int]:
    kinds = _kinds(record)
    part = next((kinds.index(kind) for kind in TEXTS if kind in kinds), 0)
    return text_place(record["parts"][part].get("content") if kinds else None, "parts", part, "content")


def _without_files(value: Any) -> Any:  # Any: JSON of any shape
    """With the kind, length and digest of each image and file as text: models refuse a file that is no file."""
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if not isinstance(value, dict):
        return without_inline_data(value)
    if value.get("kind") == "binary":
        return f"{value['media_type']} {without_inline_data(value['data'])}"
    return {name: _without_files(each) for name, each in value.items()}


RECORDS = Records(
    framework="upsonic",
    role=_role,
    text_at=_text_at,
    shorten=_without_files,
    is_call=lambda record: set(_kinds(record)) <= {"tool-call"},
)


class SessionStorage(AftermindStorage):
    """The storage of an Upsonic memory, with the sessions of the memory's user alone: what Upsonic's `Chat` reads."""

    def __init__(self, place: AftermindStorage, user_memory: Any) -> None:  # Any: the drop-in's `Memory`
        super().__init__(place.memory, namespace=place.namespace)
        self.message_lifetime = place.message_lifetime
        self._user_memory = user_memory

    async def aget_session(
        self,
        session_id: str | None = None,
        session_type: Any = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        deserialize: bool = True,
    ) -> Any:
        """A session of the user, the memory's own by default; None if there is nothing of it."""
        if user_id not in (None, self._user_memory.user_id):
            return None
        found = await self._user_memory.find_session_async(session_id)
        return found if found is None or deserialize else found.to_dict()

    async def aupsert_session(self, session: AgentSession, deserialize: bool = True) -> Any:
        """Let the stored messages be those of the session.

        Messages that are the same stay. New and changed ones are remembered, then the others are forgotten with what
        was derived from them. Summary and metadata stay.
        """
        whose = self.whose(self._user_memory.user_id)
        stored = await read_session(self.memory, session.session_id, None, **whose)
        bounds = limits(self.memory.settings)
        found = (to_chat_message(each, bounds) for each in session.messages or ())
        wanted = [message for message in found if message is not None]
        dropped, added = _difference(stored, wanted, bounds)
        if added:
            saved = self._user_memory.saved_kinds
            for part, _ in split_turn(self.with_expiry(added), self.memory.settings):
                await self.memory.remember(part, save=saved, session_id=session.session_id, **whose)
        if dropped:
            await self.memory.forget(ids=[each.id for each in dropped], **whose)
        return session if deserialize else session.to_dict()

    async def adelete_session(self, session_id: str) -> bool:
        """Forget a session of the user, with everything derived from it; whether there was one."""
        existed: bool = await self._user_memory.delete_session_async(session_id)
        return existed

    get_session = blocking(aget_session)
    upsert_session = blocking(aupsert_session)
    delete_session = blocking(adelete_session)


def to_chat_message(message: ModelMessage, bounds: Limits) -> dict[str, Any] | None:
    """A chat message, without system prompts: they are of the agent, and built for each run."""
    if isinstance(message, ModelRequest):
        message = ModelRequest(parts=[each for each in message.parts if not isinstance(each, SystemPromptPart)])
    if not message.parts:
        return None
    (record,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    return RECORDS.to_message(record, bounds)


def to_model_message(episode: Episode) -> ModelMessage | None:
    """The message of an episode; None if it is not of Upsonic."""
    record = RECORDS.from_episode(episode)
    return None if record is None or "parts" not in record else ModelMessagesTypeAdapter.validate_python([record])[0]


def _difference(
    stored: Sequence[Episode], wanted: list[dict[str, Any]], bounds: Limits
) -> tuple[list[Episode], list[dict[str, Any]]]:
    """Upsonic's episodes without the longest beginning of the wanted messages, in order; and the rest of those."""
    dropped, kept = [], 0
    for episode in stored:
        message = to_model_message(episode)
        if message is None:
            continue
        if kept < len(wanted) and to_chat_message(message, bounds) == wanted[kept]:
            kept += 1
        else:
            dropped.append(episode)
    return dropped, wanted[kept:]
