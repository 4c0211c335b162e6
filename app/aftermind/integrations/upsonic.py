"""Drop-in for Upsonic's memory: `from aftermind.integrations.upsonic import Memory, SqliteStorage`."""

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from aftermind import errors
from aftermind.api.turn_builder import split_turn
from aftermind.integrations.conversations import data_element
from aftermind.integrations.extras import extra
from aftermind.integrations.message_records import from_episode, read_session, to_message
from aftermind.integrations.places import Place
from aftermind.integrations.upsonic_storages import STORAGES, AftermindStorage
from aftermind.types import Episode

with extra("upsonic"):
    import upsonic.storage.memory.memory
    from upsonic.messages.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart
    from upsonic.run.base import RunStatus
    from upsonic.session.agent import AgentSession, RunData
    from upsonic.session.base import SessionType
    from upsonic.storage.memory.storage_dispatch import run_awaitable_sync

__all__ = ["AftermindStorage", "Memory"]

log = logging.getLogger(__name__)

TEXTS = ("user-prompt", "text", "tool-return")  # kinds of parts whose text is remembered, the first that there is
RESUMABLE = (RunStatus.paused, RunStatus.error, RunStatus.cancelled)


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """An async method for blocking code, with the same parameters."""

    @wraps(method)
    def call(self: "Memory", *args: Any, **options: Any) -> Any:
        return run_awaitable_sync(method(self, *args, **options))

    return call


class Memory(upsonic.storage.memory.memory.Memory):
    """Upsonic's `Memory` on Aftermind: `Agent(memory=Memory(SqliteStorage("./bot.db"), session_id=…, user_id=…))`.

    `storage` is a storage of this module, or what `AftermindStorage` takes. All flags keep their meaning.
    Workers write summary and profile, so no call of a model delays an answer: `model`, `user_profile_schema`,
    `dynamic_user_profile` and `user_memory_mode` have no effect; settings of Aftermind name them.
    """

    def __init__(self, storage: AftermindStorage | Place | None = None, **options: Any) -> None:
        place = storage if isinstance(storage, AftermindStorage) else AftermindStorage(storage)
        super().__init__(place, **options)
        self.aftermind = place.memory
        saved = {
            "history": self.full_session_memory_enabled,
            "summary": self.summary_memory_enabled,
            "profile": self.user_analysis_memory_enabled,
        }
        self.saved_kinds = {kind for kind, is_saved in saved.items() if is_saved}

    async def prepare_inputs_for_task(
        self, session_type: Any = None, agent_metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The parts of the prompt of a run, by the load flags. Without memory if it fails: that is logged.

        Summary and profile are data of the user's prompt, never of the system prompt.
        """
        loaded: dict[str, Any] = {"message_history": [], "context": [], "metadata": []}
        try:
            loaded = await self._load()
        except errors.AftermindError:
            log.exception("memory was not loaded for a run")
        metadata = [data_element("AgentMetadata", _lines(agent_metadata or {}, "  ")), *loaded["metadata"]]
        return {
            "message_history": loaded["message_history"],
            "context_injection": "\n\n".join(filter(None, loaded["context"])),
            "system_prompt_injection": "",
            "metadata_injection": "\n\n".join(filter(None, metadata)),
        }

    async def run_memory_agents_async(self, output: Any, session_type: Any = None, agent_id: str | None = None) -> None:
        """Nothing: workers write summary and profile."""

    async def persist_session_async(self, output: Any, session_type: Any = None, agent_id: str | None = None) -> None:
        """Hand the messages of a completed run over; keep the state of one that can be resumed."""
        if output is None:
            return
        try:
            if output.status is not RunStatus.completed:
                await self._keep_run(output)
                return
            if await self._checkpoint(output.run_id) is not None:
                await self._keep_run(output)
            turn = [message for each in output.messages or () if (message := _to_message(each)) is not None]
            if turn and self.saved_kinds:
                run_key = f"upsonic:{output.run_id}"
                for part, key in split_turn(turn, self.aftermind.settings, idempotency_key=run_key):
                    await self.aftermind.remember(
                        part,
                        save=self.saved_kinds,
                        agent_id=agent_id or output.agent_id,
                        idempotency_key=key,
                        **self._session(),
                    )
        except errors.AftermindError:
            log.exception("a run was not remembered", extra={"run_id": output.run_id})

    async def get_session_async(self) -> AgentSession | None:
        """The session with its messages, summary and metadata; None if there is nothing of it."""
        return await self.find_session_async()

    async def find_session_async(self, session_id: str | None = None) -> AgentSession | None:
        """A session of the user by its id, the own one by default; None if there is nothing of it."""
        named = self._session(session_id)
        messages = await self._messages(session_id)
        metadata = await self.aftermind.session_metadata(**named)
        if not messages and not metadata:
            return None
        summary = await self.aftermind.summary(**named)
        return AgentSession(
            session_id=named["session_id"],
            user_id=self.user_id,
            messages=messages,
            summary=None if summary is None else summary.text,
            metadata=metadata,
        )

    async def set_metadata_async(self, metadata: dict[str, Any]) -> None:
        """Set fields of the session's metadata."""
        await self.aftermind.update_session_metadata(metadata, **self._session())

    async def get_metadata_async(self) -> dict[str, Any] | None:
        """The session's metadata."""
        return await self.aftermind.session_metadata(**self._session())

    async def list_sessions_async(self, user_id: str | None = None) -> list[AgentSession]:
        """The sessions of the user, the latest first, without their messages. Those of another user are not listed."""
        if user_id not in (None, self.user_id):
            return []
        found = await self.aftermind.sessions(**self._whose())
        ids = [each.session_id for each in found if each.session_id is not None]
        return [AgentSession(session_id=each, user_id=self.user_id) for each in ids]

    async def delete_session_async(self, session_id: str | None = None) -> bool:
        """Forget a session of the user, with everything derived from it; whether there was one."""
        existed = await self.find_session_async(session_id) is not None
        await self.aftermind.forget(**self._session(session_id))
        return existed

    async def load_resumable_run_async(
        self, run_id: str, session_type: Any = None, agent_id: str | None = None
    ) -> RunData | None:
        """The state of a run of the user that was paused, cancelled or failed; None if it cannot be resumed."""
        run = await self.load_run_async(run_id)
        return run if run is not None and run.output.status in RESUMABLE else None

    async def load_run_async(
        self, run_id: str, session_type: Any = None, agent_id: str | None = None
    ) -> RunData | None:
        """The state of a run of the user that could not complete at first; None if there is none."""
        found = await self._checkpoint(run_id)
        return None if found is None else RunData.from_dict(dict(found.state), deserialize_flag=True)

    load_run = _blocking(load_run_async)
    load_resumable_run = _blocking(load_resumable_run_async)
    get_metadata = _blocking(get_metadata_async)

    def _create_user_memory(self) -> None:
        return None  # of Upsonic's storages: a profile is Aftermind's

    async def _load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = {"message_history": [], "context": []}
        if self.load_full_session_memory_enabled:
            session_memory = self.get_session_memory(SessionType.AGENT)
            messages = session_memory._limit_message_history(await self._messages())
            loaded["message_history"] = (
                messages if self.feed_tool_call_results else session_memory._filter_tool_messages(messages)
            )
        if self.load_summary_memory_enabled:
            summary = await self.aftermind.summary(**self._session())
            loaded["context"].append(data_element("SessionSummary", summary.text if summary else ""))
        if self.load_user_analysis_memory_enabled:
            profile = await self.aftermind.profile(**self._whose())
            traits = {name: each.value for name, each in profile.traits.items()} if profile else {}
            loaded["context"].append(data_element("UserProfile", _lines(traits, "- ")))
        metadata = await self.aftermind.session_metadata(**self._session())
        return {**loaded, "metadata": [data_element("SessionMetadata", _lines(metadata, "  "))]}

    async def _messages(self, session_id: str | None = None) -> list[ModelMessage]:
        said = await read_session(self.aftermind, session_id or self.session_id, None, **self._whose())
        return [message for each in said if (message := _from_episode(each)) is not None]

    async def _keep_run(self, output: Any) -> None:
        state = RunData(output=output).to_dict(serialize_flag=True)
        await self.aftermind.checkpoints.save(output.run_id, state, **self._session())

    async def _checkpoint(self, run_id: str) -> Any:
        found = await self.aftermind.checkpoints.get(run_id, **self._session())
        if found is not None:
            return found
        waiting = await self.aftermind.checkpoints.list(limit=1_000, **self._whose())
        return next((each for each in waiting if each.run_id == run_id), None)

    def _whose(self) -> dict[str, Any]:
        return self.storage.whose(self.user_id)

    def _session(self, session_id: str | None = None) -> dict[str, Any]:
        return {"session_id": session_id or self.session_id, **self._whose()}


def _to_message(message: ModelMessage) -> dict[str, Any] | None:
    """A chat message, without system prompts: they are of the agent, and built for each run."""
    if isinstance(message, ModelRequest):
        message = ModelRequest(parts=[each for each in message.parts if not isinstance(each, SystemPromptPart)])
    if not message.parts:
        return None
    (record,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    kinds = [each["part_kind"] for each in record["parts"]]
    at = next((kinds.index(kind) for kind in TEXTS if kind in kinds), 0)
    role = "assistant" if record["kind"] == "response" else "tool" if "tool-return" in kinds else "user"
    return to_message(role, record, ("parts", at, "content"))


def _from_episode(episode: Episode) -> ModelMessage | None:
    record = from_episode(episode)
    return None if record is None or "parts" not in record else ModelMessagesTypeAdapter.validate_python([record])[0]


def _lines(values: Mapping[str, Any], indent: str) -> str:
    """Each name with its value on one line, without empty values."""
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in values.items()
        if value not in (None, "", [], {})
    }
    return "\n".join(indent + " ".join(f"{name}: {text}".split()) for name, text in shown.items())


def __getattr__(name: str) -> Any:
    """A storage of Aftermind by Upsonic's name."""
    if name in STORAGES:
        return STORAGES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
