"""Upsonic's `Memory` on the messages, summaries and profiles of a memory."""

import logging
from collections.abc import Mapping
from typing import Any

from aftermind import errors
from aftermind.api.turn_builder import limits, split_turn
from aftermind.integrations.conversations import data_element
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import Place
from aftermind.integrations.message_records import read_session
from aftermind.integrations.upsonic_sessions import SessionStorage, to_chat_message, to_model_message
from aftermind.integrations.upsonic_storages import AftermindStorage, blocking

with extra("upsonic"):
    import upsonic.storage.memory.memory
    from upsonic.messages.messages import ModelMessage
    from upsonic.run.base import RunStatus
    from upsonic.session.agent import AgentSession, RunData
    from upsonic.session.base import SessionType

log = logging.getLogger(__name__)

RESUMABLE = (RunStatus.paused, RunStatus.error, RunStatus.cancelled)


class Memory(upsonic.storage.memory.memory.Memory):
    """Upsonic's `Memory` on Aftermind: `Agent(memory=Memory(SqliteStorage("./bot.db"), session_id=…, user_id=…))`.

    `storage` is a storage of this module, or what `AftermindStorage` takes. All flags keep their meaning.
    Workers write summary and profile, so no call of a model delays an answer: `model`, `user_profile_schema`,
    `dynamic_user_profile` and `user_memory_mode` have no effect; settings of Aftermind name them.
    """

    def __init__(self, storage: AftermindStorage | Place | None = None, **options: Any) -> None:
        place = storage if isinstance(storage, AftermindStorage) else AftermindStorage(storage)
        super().__init__(SessionStorage(place, self), **options)
        self.aftermind = place.memory
        saved = {
            "history": self.full_session_memory_enabled,
            "summary": self.summary_memory_enabled,
            "profile": self.user_analysis_memory_enabled,
        }
        self._kept_runs: set[str] = set()  # whose state is stored: a completed run takes its place
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
        except errors.AftermindError as exc:
            log.error("memory was not loaded for a run: %s", exc)
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
        """Hand the messages of a completed run over; keep the state of one that can be resumed. A failure is logged."""
        if output is None:
            return
        if output.status is RunStatus.completed:
            try:
                await self._remember_run(output, agent_id)
            except errors.AftermindError as exc:
                log.error("a run was not remembered (run_id %s): %s", output.run_id, exc)
        try:
            if output.status is not RunStatus.completed:
                self._kept_runs.add(output.run_id)
                await self._keep_run(output, self._session())
            elif output.run_id in self._kept_runs or _is_resumed(output):
                found = await self._checkpoint(output.run_id)
                if found is not None:
                    await self._keep_run(output, self._session(found.scope.session_id))
                self._kept_runs.discard(output.run_id)
        except errors.AftermindError as exc:
            log.error("the state of a run was not kept (run_id %s): %s", output.run_id, exc)

    async def find_session_async(self, session_id: str | None = None) -> AgentSession | None:
        """A session of the user by its id, the own one by default, with its messages, summary and metadata; None if
        there is nothing of it."""
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

    get_session_async = find_session_async

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
        found = await self.aftermind.sessions(**self.storage.whose(self.user_id))
        ids = [each.session_id for each in found if each.session_id is not None]
        return [AgentSession(session_id=each, user_id=self.user_id) for each in ids]

    async def delete_session_async(self, session_id: str | None = None) -> bool:
        """Forget a session of the user, with everything derived from it; whether there was one."""
        named = self._session(session_id)
        existed = await self.find_session_async(session_id) is not None
        existed = existed or bool(await self.aftermind.checkpoints.list(limit=1, **named))
        await self.aftermind.forget(**named)
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
        if found is None:
            return None
        self._kept_runs.add(run_id)
        return RunData.from_dict(dict(found.state), deserialize_flag=True)

    load_run = blocking(load_run_async)
    load_resumable_run = blocking(load_resumable_run_async)
    get_metadata = blocking(get_metadata_async)

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
            profile = await self.aftermind.profile(**self.storage.whose(self.user_id))
            traits = {name: each.value for name, each in profile.traits.items()} if profile else {}
            loaded["context"].append(data_element("UserProfile", _lines(traits, "- ")))
        metadata = await self.aftermind.session_metadata(**self._session())
        return {**loaded, "metadata": [data_element("SessionMetadata", _lines(metadata, "  "))]}

    async def _messages(self, session_id: str | None = None) -> list[ModelMessage]:
        said = await read_session(
            self.aftermind, session_id or self.session_id, None, **self.storage.whose(self.user_id)
        )
        return [message for each in said if (message := to_model_message(each)) is not None]

    async def _remember_run(self, output: Any, agent_id: str | None) -> None:
        bounds = limits(self.aftermind.settings)
        found = (to_chat_message(each, bounds) for each in output.messages or ())
        turn = [message for message in found if message is not None]
        if not turn or not self.saved_kinds:
            return
        run_key, said = f"upsonic:{output.run_id}", self.storage.with_expiry(turn)
        for part, key in split_turn(said, self.aftermind.settings, idempotency_key=run_key):
            await self.aftermind.remember(
                part,
                save=self.saved_kinds,
                agent_id=agent_id or output.agent_id,
                idempotency_key=key,
                **self._session(),
            )

    async def _keep_run(self, output: Any, session: dict[str, Any]) -> None:
        state = RunData(output=output).to_dict(serialize_flag=True)
        await self.aftermind.checkpoints.save(output.run_id, state, **session)

    async def _checkpoint(self, run_id: str) -> Any:
        found = await self.aftermind.checkpoints.get(run_id, **self._session())
        if found is not None:
            return found
        waiting = await self.aftermind.checkpoints.list(limit=1_000, **self.storage.whose(self.user_id))
        return next((each for each in waiting if each.run_id == run_id), None)

    def _session(self, session_id: str | None = None) -> dict[str, Any]:
        return {"session_id": session_id or self.session_id, **self.storage.whose(self.user_id)}


def _is_resumed(output: Any) -> bool:
    """Whether Upsonic has resumed the run, in this process or another one."""
    return output.execution_stats is not None and output.execution_stats.resumed_from is not None


def _lines(values: Mapping[str, Any], indent: str) -> str:
    """Each name with its value on one line, without empty values."""
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in values.items()
        if value not in (None, "", [], {})
    }
    return "\n".join(indent + " ".join(f"{name}: {text}".split()) for name, text in shown.items())
