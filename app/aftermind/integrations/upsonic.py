"""Drop-in for Upsonic's memory: `from aftermind.integrations.upsonic import Memory, SqliteStorage`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from aftermind import errors
from aftermind.integrations.extras import extra
from aftermind.integrations.message_records import from_episode, read_session, to_message
from aftermind.memory import Memory as Aftermind
from aftermind.types import Episode

with extra("upsonic"):
    import upsonic.storage.memory.memory
    from upsonic.messages.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart
    from upsonic.run.base import RunStatus
    from upsonic.session.agent import AgentSession, RunData
    from upsonic.session.base import SessionType

log = logging.getLogger(__name__)

Place = Aftermind | str | Mapping[str, Any]  # Any: the values of a dict that describes a store
TEXTS = ("user-prompt", "text", "tool-return")  # kinds of parts whose text is remembered, the first that there is
RESUMABLE = (RunStatus.paused, RunStatus.error, RunStatus.cancelled)


class AftermindStorage:
    """Where Upsonic's memory is kept: an Aftermind `Memory`, or its URL or dict; None: the settings of Aftermind."""

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None) -> None:
        self.memory = memory if isinstance(memory, Aftermind) else Aftermind(memory)
        self.namespace = namespace

    async def close(self) -> None:
        """Send remaining turns, and close all connections."""
        await self.memory.close()


class InMemoryStorage(AftermindStorage):
    """A storage of this process."""

    def __init__(self) -> None:
        super().__init__("inmemory")


class SqliteStorage(AftermindStorage):
    """A storage in a file."""

    def __init__(self, db_file: str = "./upsonic.db") -> None:
        super().__init__(f"sqlite:{db_file}")


class JSONStorage(AftermindStorage):
    """A storage in a folder."""

    def __init__(self, db_path: str = "./upsonic") -> None:
        super().__init__(f"json:{db_path}")


class PostgresStorage(AftermindStorage):
    """A storage in Postgres; the settings of Aftermind name the Redis of its workers."""

    def __init__(self, db_url: str) -> None:
        super().__init__(db_url)


class RedisStorage(AftermindStorage):
    """A storage in Redis."""

    def __init__(self, db_url: str = "redis://localhost:6379/0", db_prefix: str = "upsonic") -> None:
        super().__init__({"url": db_url, "key_prefix": db_prefix})


class Memory(upsonic.storage.memory.memory.Memory):
    """Upsonic's `Memory` on Aftermind: `Agent(memory=Memory(SqliteStorage("./bot.db"), session_id=…, user_id=…))`.

    `storage` is one of the storages above, or a place as `AftermindStorage` takes it. All flags keep their meaning.
    Workers write summary and profile, so no call of a model delays an answer: `model`, `user_profile_schema`,
    `dynamic_user_profile` and `user_memory_mode` have no effect; settings of Aftermind name them.
    """

    def __init__(self, storage: AftermindStorage | Place | None = None, **options: Any) -> None:
        place = storage if isinstance(storage, AftermindStorage) else AftermindStorage(storage)
        super().__init__(place, **options)
        self.aftermind = place.memory
        self.saved_kinds = {
            kind
            for kind, is_saved in (
                ("history", self.full_session_memory_enabled),
                ("summary", self.summary_memory_enabled),
                ("profile", self.user_analysis_memory_enabled),
            )
            if is_saved
        }

    async def prepare_inputs_for_task(
        self, session_type: Any = None, agent_metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The parts of the prompt of a run, by the load flags. Without memory if it fails: that is logged."""
        prepared = {
            "message_history": [],
            "context_injection": "",
            "system_prompt_injection": "",
            "metadata_injection": _tagged("AgentMetadata", agent_metadata or {}, "  "),
        }
        try:
            prepared |= await self._load(str(prepared["metadata_injection"]))
        except errors.AftermindError:
            log.exception("memory was not loaded for a run")
        return prepared

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
                await self.aftermind.remember(
                    turn,
                    save=self.saved_kinds,
                    agent_id=agent_id or output.agent_id,
                    idempotency_key=f"upsonic:{output.run_id}",
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
        return [
            AgentSession(session_id=each.session_id, user_id=self.user_id)
            for each in found
            if each.session_id is not None
        ]

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

    def load_run(self, run_id: str, session_type: Any = None, agent_id: str | None = None) -> RunData | None:
        """`load_run_async` for blocking code."""
        return upsonic.storage.memory.memory.run_awaitable_sync(self.load_run_async(run_id))

    def load_resumable_run(self, run_id: str, session_type: Any = None, agent_id: str | None = None) -> RunData | None:
        """`load_resumable_run_async` for blocking code."""
        return upsonic.storage.memory.memory.run_awaitable_sync(self.load_resumable_run_async(run_id))

    def get_metadata(self) -> dict[str, Any] | None:
        """`get_metadata_async` for blocking code."""
        return upsonic.storage.memory.memory.run_awaitable_sync(self.get_metadata_async())

    def _create_user_memory(self) -> None:
        return None  # of Upsonic's storages: a profile is Aftermind's

    async def _load(self, agent_metadata: str) -> dict[str, Any]:
        loaded: dict[str, Any] = {}
        if self.load_full_session_memory_enabled:
            session_memory = self.get_session_memory(SessionType.AGENT)
            messages = session_memory._limit_message_history(await self._messages())
            loaded["message_history"] = (
                messages if self.feed_tool_call_results else session_memory._filter_tool_messages(messages)
            )
        if self.load_summary_memory_enabled:
            summary = await self.aftermind.summary(**self._session())
            if summary is not None:
                loaded["context_injection"] = f"<SessionSummary>\n{escape(summary.text)}\n</SessionSummary>"
        if self.load_user_analysis_memory_enabled:
            profile = await self.aftermind.profile(**self._whose())
            if profile is not None:
                loaded["system_prompt_injection"] = _tagged(
                    "UserProfile", {name: each.value for name, each in profile.traits.items()}, "- "
                )
        metadata = _tagged("SessionMetadata", await self.aftermind.session_metadata(**self._session()), "  ")
        loaded["metadata_injection"] = "\n\n".join(each for each in (agent_metadata, metadata) if each)
        return loaded

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
        return {"user_id": self.user_id, "namespace": self.storage.namespace}

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


def _tagged(tag: str, values: Mapping[str, Any], indent: str) -> str:
    """Names and values as lines in an element; empty if there are none. They are data: escaped, each on one line."""
    lines: Sequence[str] = [
        f"{indent}{escape(' '.join(f'{name}: {_shown(value)}'.split()))}"
        for name, value in values.items()
        if value not in (None, "", [], {})
    ]
    return "\n".join([f"<{tag}>", *lines, f"</{tag}>"]) if lines else ""


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
