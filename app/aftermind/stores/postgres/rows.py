"""Rows of the store's tables as the types of the library."""

from typing import Any

from sqlalchemy import Row

from aftermind.db.tables import EPISODES
from aftermind.types import Block, Cardinality, Episode, EpisodeId, Fact, FactId, Role, Scope, Summary
from aftermind.types.message import ALL_KINDS

_HIDDEN = (
    *("counted_from", "shift", "terms", "embedding", "embedding_standby", "indexed", "job_id"),
    *("passages", "passage_terms", "passage_embedding", "passage_embedding_standby"),
)
# Condition of every statement that shows episodes. Rows that are counted, or that decide about positions, do without.
UNEXPIRED = "({of}expires_at IS NULL OR {of}expires_at > statement_timestamp())"
EPISODE_COLUMNS = tuple(column for column in EPISODES.c if column.name not in _HIDDEN)  # those of `to_episode`


def to_scope(owner: Scope, row: Row[Any]) -> Scope:  # Any: a row with labels
    """The owner with the labels of a row."""
    return Scope(
        namespace=owner.namespace, user_id=owner.user_id, session_id=row.session_id or None, agent_id=row.agent_id
    )


def to_episode(owner: Scope, row: Row[Any]) -> Episode:  # Any: a row of `episodes`
    """The episode that a row is."""
    return Episode(
        id=EpisodeId(row.id),
        scope=to_scope(owner, row),
        role=Role(row.role),
        content=row.content,
        name=row.name,
        metadata=row.metadata,
        occurred_at=row.occurred_at,
        remembered_at=row.remembered_at,
        position=row.position,
        mark=row.mark,
        keep=ALL_KINDS if row.keep is None else frozenset(row.keep),
        expires_at=row.expires_at,
    )


def to_fact(owner: Scope, row: Row[Any]) -> Fact:  # Any: a row of `facts` with its `sources`
    """The fact that a row is."""
    return Fact(
        id=FactId(row.id),
        scope=to_scope(owner, row),
        subject=row.subject,
        predicate=row.predicate,
        object=row.object,
        confidence=row.confidence,
        cardinality=Cardinality(row.cardinality),
        valid_from=row.valid_from,
        valid_to=row.valid_to,
        recorded_at=row.recorded_at,
        superseded_at=row.superseded_at,
        strength=row.strength,
        sources=tuple(EpisodeId(source) for source in row.sources or ()),
        extractor=row.extractor,
    )


def to_block(owner: Scope, row: Row[Any]) -> Block:  # Any: a row of `blocks`
    """The block that a row is."""
    return Block(
        scope=owner.owner,
        name=row.name,
        content=row.content,
        version=row.version,
        updated_at=row.updated_at,
        description=row.description,
    )


def to_summary(owner: Scope, row: Row[Any]) -> Summary:  # Any: a row of `summaries`
    """The summary that a row is."""
    return Summary(
        scope=Scope(namespace=owner.namespace, user_id=owner.user_id, session_id=row.session_id or None),
        text=row.text,
        covers_to=row.covers_to,
        messages=row.messages,
        updated_at=row.updated_at,
        summariser=row.summariser,
        version=row.version,
        last_message_at=row.last_message_at,
    )
