"""Drop-in for Definable: `from aftermind.integrations.definable import Agent, CognitiveMemory, SQLiteMemoryStore`.

All names of Definable's agents, memory and run events are here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aftermind import errors
from aftermind.integrations.conversations import remember_run
from aftermind.integrations.definable_store import STORES, AftermindStore
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import Place
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.sync import Memory as SyncMemory

with extra("definable", python=(3, 12)):
    import definable.agents
    import definable.memory
    import definable.run.agent
    import definable.run.base
    from definable.memory.distillation import DistillationResult
    from definable.memory.types import MemoryPayload
    from definable.run.agent import MemoryUpdateCompletedEvent
    from definable.utils.log import log_warning

__all__ = ["AftermindStore", "Agent", "CognitiveMemory"]

ROLES = ("user", "assistant")
OPEN, CLOSE = "<memory_context>", "</memory_context>"
FRAME_TOKENS = 16  # of these two tags


class CognitiveMemory(definable.memory.CognitiveMemory):
    """Definable's `CognitiveMemory` on Aftermind: `CognitiveMemory(store=SQLiteMemoryStore("./memory.db"))`.

    `store` is a store of this module, a `Memory`, or its URL or dict; None: the settings of Aftermind. Embedder, model
    and ranking are settings of Aftermind: `embedder`, `distillation_model` and `config` have no effect. `options` are
    those of `Memory.recall`.
    """

    def __init__(
        self,
        store: AftermindStore | Place | None = None,
        token_budget: int = 500,
        embedder: Any = None,
        distillation_model: Any = None,
        config: Any = None,
        options: RecallOptions | None = None,
    ) -> None:
        if token_budget <= FRAME_TOKENS:
            raise errors.InvalidQuery("token_budget", token_budget, f"it is more than {FRAME_TOKENS}.")
        if not isinstance(store, AftermindStore | Memory | SyncMemory | str | Mapping | None):
            why = "use a store of aftermind.integrations.definable, a Memory, a URL or a dict."
            raise errors.InvalidSettings("store", type(store).__name__, why)
        place = store if isinstance(store, AftermindStore) else AftermindStore(store)
        super().__init__(place, token_budget, embedder, distillation_model, config)
        self.options = options or RecallOptions()

    async def recall(
        self, query: str, *, user_id: str | None = None, session_id: str | None = None
    ) -> MemoryPayload | None:
        """What fits the query, within the token budget; None if there is nothing, or if memory fails (a warning)."""
        try:
            options = self.options | RecallOptions(token_budget=self.token_budget - FRAME_TOKENS)
            block = await self.store.memory.recall(query, session_id=session_id, **self.store.whose(user_id), **options)
        except errors.AftermindError as exc:
            log_warning(f"Memory recall failed (non-fatal): {exc}")
            return None
        if not block.text:
            return None
        return MemoryPayload(
            context=f"{OPEN}\n{block.text}\n{CLOSE}",
            tokens_used=block.tokens_used + FRAME_TOKENS,
            chunks_included=block.chunks_included,
            chunks_available=block.chunks_available,
        )

    async def store_messages(
        self, messages: Sequence[Any], *, user_id: str | None = None, session_id: str | None = None
    ) -> None:
        """Hand the texts of the user and of the assistant over, as one turn. A failure is logged."""
        said = [
            (each.role, each.content)
            for each in messages
            if getattr(each, "role", None) in ROLES and isinstance(each.content, str)
        ]
        await remember_run(self.store.memory, said, session_id=session_id, **self.store.whose(user_id))

    async def run_distillation(self, *, user_id: str | None = None) -> DistillationResult:
        """Nothing to run: Aftermind's workers extract facts of every turn. The counts are 0."""
        return DistillationResult()

    async def forget(self, *, user_id: str | None = None, session_id: str | None = None) -> None:
        """Delete everything of a user; without one, a session of the anonymous user."""
        if user_id:
            await self.store.delete_user_data(user_id)
        elif session_id:
            await self.store.delete_session_data(session_id)

    async def close(self) -> None:
        """Send remaining turns, and close all connections."""
        await self.store.close()


class Agent(definable.agents.Agent):
    """Definable's `Agent`. A run ends after its turn was handed over, also in `run`, whose loop ends with it.

    `MemoryUpdateCompleted` is the last event of a stream.
    """

    def __init__(self, **options: Any) -> None:
        self._updates: dict[str, MemoryUpdateCompletedEvent | None] = {}  # by run, of the streams that are open
        self._writes: dict[str, asyncio.Task[None]] = {}  # by run, until its turn was handed over
        super().__init__(**options)

    async def arun(self, *args: Any, **options: Any) -> Any:
        """A run; see Definable's `Agent.arun`."""
        output = await super().arun(*args, **options)
        await self._wait_for_write(output.run_id)
        return output

    async def arun_stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """The events of a run; see Definable's `Agent.arun_stream`."""
        run_id = None
        try:
            async for event in super().arun_stream(*args, **options):
                if run_id is None:
                    run_id = event.run_id
                    self._updates[run_id] = None
                yield event
            await self._wait_for_write(run_id)
            completed = self._updates.get(run_id) if run_id else None
            if completed is not None:
                yield completed
        finally:
            self._updates.pop(run_id or "", None)

    def _memory_store(self, new_messages: list[Any], context: Any) -> list[Any]:
        events: list[Any] = super()._memory_store(new_messages, context)
        loop, pending = asyncio.get_running_loop(), self._pending_memory_tasks
        # Definable waits for the tasks of all runs, also of loops in other threads, which cannot wake this one.
        task = next((each for each in pending if each.get_loop() is loop), None)
        if task is not None:
            pending.remove(task)
            self._writes[context.run_id] = task
            task.add_done_callback(lambda _: self._writes.pop(context.run_id, None))
        return events

    async def _wait_for_write(self, run_id: str | None) -> None:
        task = self._writes.get(run_id or "")
        if task is not None:
            await asyncio.wait([task])

    async def _ashutdown(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [each for each in list(self._writes.values()) if each.get_loop() is loop]  # of streams that were left
        if tasks:
            await asyncio.wait(tasks)
        await super()._ashutdown()

    def _emit(self, event: Any) -> None:
        if isinstance(event, MemoryUpdateCompletedEvent) and event.run_id in self._updates:
            self._updates[event.run_id] = event
        super()._emit(event)


def __getattr__(name: str) -> Any:
    """A store of Aftermind by Definable's name, or any other name of its agents, memory and run events."""
    if name in STORES:
        return STORES[name]
    for module in (definable.agents, definable.memory, definable.run.base):
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(definable.run.agent, name)
