"""Definable's memory store on the messages and facts of a memory."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from aftermind import errors
from aftermind.api.turn_builder import limits
from aftermind.facts.learned_procedures import PROCEDURE
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import MemoryPlace, StoreParameters, store_classes
from aftermind.integrations.message_records import Records, read_session, replace_episodes
from aftermind.types import Episode as Said
from aftermind.types import Fact

with extra("definable", python=(3, 12)):
    from definable.memory.topics import extract_topics
    from definable.memory.types import Episode, KnowledgeAtom, Procedure

KEPT = ("topics", "sentiment", "token_count", "compression_stage")  # of an episode, besides its text, if they are set
TRIPLE = ("subject", "predicate", "object")
RECORDS = Records(framework="definable", role=lambda record: str(record["role"]), text_at=lambda record: ("content",))
MAX_FACTS = 100_000  # of a user
FIXED = ("id", "user_id", "session_id", "role", "created_at")


class AftermindStore(MemoryPlace):
    """A store of Definable's episodes and atoms on Aftermind: its messages and facts, of one user a call.

    No user is the anonymous user. What Definable's distillation needs, reading all users, does not exist: Aftermind's
    workers extract and revise facts.
    """

    async def initialize(self) -> None:
        """Nothing: connections are opened when they are needed."""

    async def store_episode(self, episode: Episode) -> str:
        """Remember an episode; its id, a new one if it has none. An episode with an existing id is not stored again."""
        id_ = str(episode.id or uuid4())
        kept = {name: value for name in KEPT if (value := getattr(episode, name))}
        record = {"id": id_, "role": episode.role, "content": episode.content, **kept}
        message = RECORDS.to_message(record, limits(self.memory.settings))
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
        """The newest messages of a user, newest first. Their stage is 0 unless an update has changed it."""
        is_any = not min_stage and max_stage is None
        said = await read_session(self.memory, session_id, limit if is_any else None, **self.whose(user_id))
        found = [_to_episode(each, user_id) for each in reversed(said)]
        least, most = min_stage or 0, 3 if max_stage is None else max_stage
        return [each for each in found if least <= each.compression_stage <= most][:limit]

    async def update_episode(self, episode_id: str, *, user_id: str | None = None, **fields: Any) -> None:
        """Change the content, topics, sentiment, token count or stage of a message of the user.

        The changed message is a new one at the end of its session, with the time of the old one, which is forgotten
        with what was derived from it. Other fields have no effect: Aftermind ranks by its own counts. Raises
        `NotThere`, and `InvalidQuery` for a field that an episode has not, or that cannot change.
        """
        _check_names(Episode, fields, "an episode")
        changed = {name: value for name, value in fields.items() if name in ("content", *KEPT)}
        if not changed:
            return
        whose = self.whose(user_id)
        said = await read_session(self.memory, None, None, **whose)
        found = [each for each in said if _id_of(each) == episode_id]
        if not found:
            raise errors.NotThere("the user's episode", episode_id)
        old = found[-1]  # an update that was killed before its end leaves two
        record = {"role": old.role.value, "content": old.content, **(RECORDS.from_episode(old) or {}), "id": episode_id}
        if all(record.get(name) == value for name, value in changed.items()):
            return
        given = RECORDS.to_message(record | changed, limits(self.memory.settings))
        await replace_episodes(
            self.memory, found, given["content"], given["metadata"], occurred_at=old.occurred_at, **whose
        )

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
        found = await self.memory.facts.query(limit=MAX_FACTS, **self.whose(user_id))
        return [_to_atom(each) for each in found if each.confidence >= min_confidence][:limit]

    async def find_similar_atom(self, subject: str, predicate: str, user_id: str | None = None) -> KnowledgeAtom | None:
        """The first fact of this subject and predicate."""
        found = await self.memory.facts.query(subject=subject, predicate=predicate, **self.whose(user_id))
        return _to_atom(found[0]) if found else None

    async def update_atom(self, atom_id: str, *, user_id: str | None = None, **fields: Any) -> None:
        """Change subject, predicate or object of a fact of the user, or raise its confidence.

        The changed fact is a new one; the old one is retracted. Other fields have no effect. Raises `NotThere`, and
        `InvalidFact` for a lower confidence, `InvalidQuery` for a field that an atom has not, or that cannot change.
        """
        _check_names(KnowledgeAtom, fields, "an atom")
        whose = self.whose(user_id)
        known = await self.memory.facts.query(limit=MAX_FACTS, **whose)
        old = next((each for each in known if str(each.id) == atom_id), None)
        if old is None:
            raise errors.NotThere("the user's atom", atom_id)
        triple = {name: fields.get(name, getattr(old, name)) for name in TRIPLE}
        is_same = all(value == getattr(old, name) for name, value in triple.items())
        confidence = fields.get("confidence", old.confidence)
        if is_same and confidence < old.confidence:
            raise errors.InvalidFact("confidence", confidence, "it only rises. Retract the fact: memory.facts.retract.")
        if is_same and confidence == old.confidence:
            return
        added = await self.memory.facts.add(**triple, confidence=confidence, sources=old.sources, **whose)
        if added.id != old.id:
            await self.memory.facts.retract(old.id, **whose)

    async def get_procedures(self, *, user_id: str | None = None, min_confidence: float = 0.3) -> list[Procedure]:
        """Procedures that were learned (`learn_procedures`) or added as facts; feedback is in their confidence."""
        found = await self.memory.facts.query(predicate=PROCEDURE, limit=MAX_FACTS, **self.whose(user_id))
        return [_to_procedure(each) for each in found if each.confidence >= min_confidence]

    async def delete_user_data(self, user_id: str) -> None:
        """Forget everything of a user."""
        await self.memory.forget(**self.whose(user_id))

    async def delete_session_data(self, session_id: str, *, user_id: str | None = None) -> None:
        """Forget a session of a user, with everything derived from it."""
        await self.memory.forget(session_id=session_id, **self.whose(user_id))


PARAMETERS = {
    "InMemoryStore": StoreParameters(addresses=("inmemory",)),
    "SQLiteMemoryStore": StoreParameters(addresses=("sqlite:{db_path}",), defaults={"db_path": "./memory.db"}),
    "PostgresMemoryStore": StoreParameters(
        addresses=("{db_url}", "{MEMORY_POSTGRES_URL}", ""),
        defaults={"db_url": "", "pool_size": 5, "table_prefix": "memory_"},
        namespace="table_prefix",
    ),
    "RedisMemoryStore": StoreParameters(
        addresses=("{redis_url}",),
        defaults={"redis_url": "redis://localhost:6379", "prefix": "memory", "db": 0},
        path="db",
        key_prefix="prefix",
    ),
    "MongoMemoryStore": StoreParameters(
        addresses=("{connection_string}",),
        defaults={
            "connection_string": "mongodb://localhost:27017",
            "database": "memory",
            "collection_prefix": "",
        },
        path="database",
        namespace="collection_prefix",
    ),
    "ChromaMemoryStore": StoreParameters(
        addresses=("chroma:{persist_directory}", "inmemory"),
        defaults={"persist_directory": None, "collection_prefix": "memory_"},
        namespace="collection_prefix",
    ),
    "QdrantMemoryStore": StoreParameters(
        addresses=(
            "qdrant+{url.scheme}://[{api_key}@]{url.netloc}/{prefix}",
            "qdrant://[{api_key}@]{url}:{port}/{prefix}",
        ),
        defaults={"url": "localhost", "port": 6333, "api_key": None, "prefix": "memory", "vector_size": 1536},
    ),
    "PineconeMemoryStore": StoreParameters(
        addresses=("pinecone:[{api_key}@]{index_name}",),
        defaults={"api_key": "", "index_name": "memory", "environment": None, "vector_size": 1536},
    ),
    "Mem0MemoryStore": StoreParameters(
        addresses=("mem0+https://{api_key}@api.mem0.ai", "mem0:"),
        defaults={"api_key": "", "org_id": None, "project_id": None},
    ),
}
STORES = store_classes(AftermindStore, PARAMETERS)


def _check_names(kind: type[Episode | KnowledgeAtom], given: Mapping[str, Any], noun: str) -> None:
    known = {each.name for each in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise errors.InvalidQuery(name, value, f"{noun} of Definable has no such field.")
        if name in FIXED:
            raise errors.InvalidQuery(name, value, f"this field of {noun} cannot be changed.")


def _id_of(said: Said) -> str:
    return str((RECORDS.from_episode(said) or {}).get("id", said.id))


def _to_episode(said: Said, user_id: str | None) -> Episode:
    record = RECORDS.from_episode(said) or {}
    return Episode(
        id=_id_of(said),
        user_id=user_id,
        session_id=said.scope.session_id or "",
        role=said.role.value,
        content=str(record.get("content", said.content)),
        **{"topics": extract_topics(said.content)} | {name: record[name] for name in KEPT if name in record},
        created_at=said.occurred_at.timestamp(),
        last_accessed_at=said.occurred_at.timestamp(),
    )


def _to_procedure(fact: Fact) -> Procedure:
    said = {"trigger": fact.subject, "action": fact.object, "observation_count": fact.strength}
    return Procedure(**said, **_of_fact(fact))


def _to_atom(fact: Fact) -> KnowledgeAtom:
    triple = {name: getattr(fact, name) for name in TRIPLE}
    sources = [str(each) for each in fact.sources]
    return KnowledgeAtom(**triple, content=fact.text, source_episode_ids=sources, **_of_fact(fact))


def _of_fact(fact: Fact) -> dict[str, Any]:
    """The fields that atoms and procedures share."""
    return {
        "id": str(fact.id),
        "user_id": fact.scope.user_id,
        "confidence": fact.confidence,
        "created_at": fact.recorded_at.timestamp(),
    }
