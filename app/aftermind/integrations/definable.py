"""Drop-in for Definable: `from aftermind.integrations.definable import Agent, CognitiveMemory, SQLiteMemoryStore`.

All names of Definable's agents, memory and run events are here.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from aftermind import errors
from aftermind.integrations.conversations import remember_run
from aftermind.integrations.extras import extra
from aftermind.integrations.message_records import from_episode, read_session, to_message
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.types import Episode as Said
from aftermind.types import Fact

with extra("definable"):
    import definable.agents
    import definable.memory
    import definable.run.agent
    import definable.run.base
    from definable.memory.distillation import DistillationResult
    from definable.memory.topics import extract_topics
    from definable.memory.types import Episode, KnowledgeAtom, MemoryPayload, Procedure
    from definable.run.agent import MemoryUpdateCompletedEvent
    from definable.utils.log import log_warning

Place = Memory | str | Mapping[str, Any]  # Any: the values of a dict that describes a store
ROLES = ("user", "assistant")
OPEN, CLOSE = "<memory_context>", "</memory_context>"
FRAME_TOKENS = 16  # of these two tags


class AftermindStore:
    """A store of Definable's episodes and atoms on Aftermind: its messages and facts, of one user a call.

    No user is the anonymous user. What Definable's distillation needs, changes by id alone and reading all users, does
    not exist: Aftermind's workers extract and revise facts.
    """

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None) -> None:
        self.memory = memory if isinstance(memory, Memory) else Memory(memory)
        self.namespace = namespace

    async def initialize(self) -> None:
        """Nothing: connections are opened when they are needed."""

    async def close(self) -> None:
        """Send remaining turns, and close all connections."""
        await self.memory.close()

    async def store_episode(self, episode: Episode) -> str:
        """Remember an episode; its id, a new one if it has none. An episode with an existing id is not stored again."""
        id_ = str(episode.id or uuid4())
        record = {"id": id_, "content": episode.content}
        message = to_message(episode.role, record, ("content",))
        if episode.created_at:
            message["occurred_at"] = datetime.fromtimestamp(episode.created_at, UTC)
        await self.memory.remember(
            message,
            session_id=episode.session_id,
            idempotency_key=f"definable:{id_}",
            **self.whose(episode.user_id),
        )
        return id_

    async def get_episodes(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        min_stage: int | None = None,
        max_stage: int | None = None,
    ) -> list[Episode]:
        """The newest messages of a user, newest first. All are of stage 0: none is shortened."""
        if (min_stage or 0) > 0:
            return []
        said = await read_session(self.memory, session_id, limit, **self.whose(user_id))
        return [_to_episode(each, user_id) for each in reversed(said)]

    async def store_atom(self, atom: KnowledgeAtom) -> str:
        """Add a fact; the id of the resulting one. A single-valued predicate ends what it contradicts."""
        whose = self.whose(atom.user_id)
        added = await self.memory.facts.add(
            atom.subject, atom.predicate, atom.object, confidence=atom.confidence, **whose
        )
        return str(added.id)

    async def get_atoms(
        self, *, user_id: str | None = None, min_confidence: float = 0.1, limit: int = 50
    ) -> list[KnowledgeAtom]:
        """The facts that are true now."""
        found = await self.memory.facts.query(**self.whose(user_id))
        return [_to_atom(each) for each in found if each.confidence >= min_confidence][:limit]

    async def find_similar_atom(self, subject: str, predicate: str, user_id: str | None = None) -> KnowledgeAtom | None:
        """The first fact of this subject and predicate."""
        found = await self.memory.facts.query(subject=subject, predicate=predicate, **self.whose(user_id))
        return _to_atom(found[0]) if found else None

    async def get_procedures(self, *, user_id: str | None = None, min_confidence: float = 0.3) -> list[Procedure]:
        """None: neither Definable nor Aftermind learns procedures."""
        return []

    async def delete_user_data(self, user_id: str) -> None:
        """Forget everything of a user."""
        await self.memory.forget(**self.whose(user_id))

    async def delete_session_data(self, session_id: str, *, user_id: str | None = None) -> None:
        """Forget a session of a user, with everything derived from it."""
        await self.memory.forget(session_id=session_id, **self.whose(user_id))

    def whose(self, user_id: str | None) -> dict[str, Any]:
        """The owner, for calls of the memory."""
        return {"user_id": user_id, "namespace": self.namespace}


class InMemoryStore(AftermindStore):
    """A store of this process."""

    def __init__(self) -> None:
        super().__init__("inmemory")


class SQLiteMemoryStore(AftermindStore):
    """A store in a file."""

    def __init__(self, db_path: str = "./memory.db") -> None:
        super().__init__(f"sqlite:{db_path}")


class PostgresMemoryStore(AftermindStore):
    """A store in Postgres; the settings of Aftermind name the Redis of its workers."""

    def __init__(self, db_url: str = "", pool_size: int | None = None, table_prefix: str | None = None) -> None:
        super().__init__(db_url or os.environ.get("MEMORY_POSTGRES_URL") or None)


class RedisMemoryStore(AftermindStore):
    """A store in Redis."""

    def __init__(self, redis_url: str = "redis://localhost:6379", prefix: str = "memory", db: int = 0) -> None:
        url = redis_url if redis_url.rpartition("/")[2].isdigit() else f"{redis_url.rstrip('/')}/{db}"
        super().__init__({"url": url, "key_prefix": prefix})


class CognitiveMemory:
    """Definable's `CognitiveMemory` on Aftermind: `CognitiveMemory(store=SQLiteMemoryStore("./memory.db"))`.

    `store` is one of the stores above, a `Memory`, or its URL or dict; None: the settings of Aftermind. Embedder, model
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
        if not isinstance(store, AftermindStore | Memory | str | Mapping | None):
            why = "use a store of aftermind.integrations.definable, a Memory, a URL or a dict."
            raise errors.InvalidSettings("store", type(store).__name__, why)
        self.store = store if isinstance(store, AftermindStore) else AftermindStore(store)
        self.token_budget, self.options = token_budget, options or RecallOptions()

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
        if not block:
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Agent(definable.agents.Agent):
    """Definable's `Agent`. A run ends after its turn was handed over, also in `run`, whose loop ends with it.

    `MemoryUpdateCompleted` is the last event of a stream.
    """

    def __init__(self, **options: Any) -> None:
        self._updates: dict[str, MemoryUpdateCompletedEvent | None] = {}  # by run, of the streams that are open
        super().__init__(**options)

    async def arun(self, *args: Any, **options: Any) -> Any:
        """A run; see Definable's `Agent.arun`."""
        output = await super().arun(*args, **options)
        await self._drain_memory_tasks()
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
            await self._drain_memory_tasks()
            completed = self._updates.get(run_id) if run_id else None
            if completed is not None:
                yield completed
        finally:
            self._updates.pop(run_id or "", None)

    def _emit(self, event: Any) -> None:
        if isinstance(event, MemoryUpdateCompletedEvent) and event.run_id in self._updates:
            self._updates[event.run_id] = event
        super()._emit(event)


def __getattr__(name: str) -> Any:
    """Every other name of Definable's agents, memory and run events."""
    for module in (definable.agents, definable.memory, definable.run.base):
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(definable.run.agent, name)


def _to_episode(said: Said, user_id: str | None) -> Episode:
    record = from_episode(said) or {}
    return Episode(
        id=str(record.get("id", said.id)),
        user_id=user_id,
        session_id=said.scope.session_id or "",
        role=said.role.value,
        content=str(record.get("content", said.content)),
        topics=extract_topics(said.content),
        created_at=said.occurred_at.timestamp(),
        last_accessed_at=said.occurred_at.timestamp(),
    )


def _to_atom(fact: Fact) -> KnowledgeAtom:
    return KnowledgeAtom(
        id=str(fact.id),
        user_id=fact.scope.user_id,
        subject=fact.subject,
        predicate=fact.predicate,
        object=fact.object,
        content=fact.text,
        confidence=fact.confidence,
        source_episode_ids=[str(each) for each in fact.sources],
        created_at=fact.recorded_at.timestamp(),
    )
