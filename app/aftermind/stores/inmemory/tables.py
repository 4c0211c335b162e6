"""The tables of the in-memory store, with the types of their keys and rows."""

import base64
from datetime import datetime, timedelta
from uuid import UUID

import numpy as np

from aftermind.db.record_store_journals.row_codec import Table
from aftermind.stores.inmemory.vector_tables_by_embedder import VECTOR_TABLES
from aftermind.stores.protocol import ExtractionBatch, MiningOutcome, StoredItem, Vector
from aftermind.types import (
    Block,
    Cardinality,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    JobId,
    Profile,
    Summary,
)
from aftermind.types.assertion import RecordedAssertion
from aftermind.types.retention import RetentionPolicy
from aftermind.types.tombstone import Tombstone

HALF, SINGLE = "<f2", "<f4"  # half precision for episodes, single for items, as in Postgres


def _dump_vector(vector: Vector, precision: str = HALF) -> str:
    return base64.b64encode(vector.astype(precision).tobytes()).decode()


def _load_vector(text: str, precision: str = HALF) -> Vector:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=precision).astype(np.float32)


def _dump_vectors(vectors: Vector) -> str | list[str]:
    return _dump_vector(vectors) if vectors.ndim == 1 else [_dump_vector(each) for each in vectors]


def _load_vectors(row: str | list[str]) -> Vector:
    return _load_vector(row) if isinstance(row, str) else np.stack([_load_vector(each) for each in row])


# The fields of `StoredItem` in their order; its vectors, one a row, are an array, which pydantic does not read.
_ItemRow = tuple[str, str, datetime, datetime, list[str] | None, timedelta | None, datetime | None]


def _dump_item(item: StoredItem) -> _ItemRow:
    vectors = None if item.vectors is None else [_dump_vector(vector, SINGLE) for vector in item.vectors]
    return item.name, item.content, item.created_at, item.updated_at, vectors, item.ttl, item.expires_at


def _load_item(row: _ItemRow) -> StoredItem:
    name, content, created_at, updated_at, vectors, ttl, expires_at = row
    return StoredItem(
        name=name,
        content=content,
        created_at=created_at,
        updated_at=updated_at,
        vectors=None if vectors is None else np.stack([_load_vector(vector, SINGLE) for vector in vectors]),
        ttl=ttl,
        expires_at=expires_at,
    )


_VECTORS = Table(
    EpisodeId, str | list[str], to_json=_dump_vectors, from_json=_load_vectors
)  # with those of parts: a list

TABLES = {
    "assertions": Table(UUID, RecordedAssertion),
    "blocks": Table(str, Block),
    "counted": Table(EpisodeId, tuple[int | None, int]),
    "embedders": Table(str, EmbedderIdentity),
    "episodes": Table(EpisodeId, Episode),
    "expiring": Table(EpisodeId, datetime),
    "extractions": Table(EpisodeId, MiningOutcome),
    "facts": Table(FactId, Fact),
    "items": Table(str, _ItemRow, to_json=_dump_item, from_json=_load_item),
    "generation": Table(str, int),
    "model_batches": Table(JobId, ExtractionBatch),
    "predicates": Table(tuple[str, str], Cardinality),
    "retention_policies": Table(str, RetentionPolicy),
    "ranking_models": Table(tuple[str, str], str),
    "profile_backlog": Table(EpisodeId, bool),
    "profiles": Table(str, Profile),
    "summaries": Table(str | None, Summary),
    "tombstones": Table(int, Tombstone),
    "turns": Table(EpisodeId, JobId),
    **dict.fromkeys(VECTOR_TABLES, _VECTORS),
}
