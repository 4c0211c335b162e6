"""Everything that a block shows, in one statement: episodes by id, facts, blocks, summary and profile."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import numpy as np
import orjson

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.positional_parameters import Positional
from aftermind.db.postgres_transaction import pg
from aftermind.db.row_level_security import ENTERING
from aftermind.stores.postgres.rows import UNEXPIRED
from aftermind.stores.search import NEWEST_FACTS, BlockRequest, Briefing
from aftermind.types import (
    Block,
    Cardinality,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    Profile,
    Role,
    Scope,
    Summary,
    Trait,
)

Json = dict[str, Any]  # Any: one row as Postgres writes it; each field is read by name below

_OWNED = "namespace = :namespace AND user_id = :user"

BELIEVED_SO_FAR = """
    recorded_at <= coalesce(CAST(:at AS timestamptz), 'infinity')
    AND (superseded_at IS NULL OR (CAST(:at AS timestamptz) IS NOT NULL AND superseded_at > :at))
    AND (valid_from IS NULL OR valid_from <= coalesce(:at, now()))
"""
BELIEVED = f"{BELIEVED_SO_FAR} AND (valid_to IS NULL OR valid_to > coalesce(:at, now()))"


def _newest(rule: str) -> str:
    return f"""
        SELECT id FROM aftermind.facts WHERE {_OWNED} AND {rule} AND {BELIEVED}
        ORDER BY recorded_at DESC LIMIT {NEWEST_FACTS}
    """


# Of episodes, in the order that `_episode` takes them. Times as Postgres sends them: of a hundred rows few are shown,
# and reading a time takes as long as reading three texts.
_COLUMNS = {
    "ids": "array_agg(id)",
    "sessions": "array_agg(session_id)",
    "agents": "array_agg(agent_id)",
    "roles": "array_agg(role)",
    "contents": "array_agg(content)",
    "names": "array_agg(name)",
    "metadata": "array_agg(NULLIF(metadata, '{}')::text)",
    "said_at": "string_agg(timestamptz_send(occurred_at), '')",
    "remembered_at": "string_agg(timestamptz_send(remembered_at), '')",
    "positions": "array_agg(position)",
    "marks": "array_agg(mark)",
}
_ROLES = {role.value: role for role in Role}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # Postgres's own; it sends microseconds since then


def in_columns(*, without: Collection[str] = (), only: str = "true") -> str:
    """Episodes column by column, which is quickest to read and to write; no texts unless `only` holds."""
    columns = {name: column for name, column in _COLUMNS.items() if name not in without}
    return ", ".join(f"{column} FILTER (WHERE {only}) AS {name}" for name, column in columns.items())


def parts(facts: str, *, only: str = "true") -> str:
    """The parts of a block other than episodes, as JSON: they are few and need one round trip. `facts` selects facts,
    `only` if set.

    Each by its primary key, `fact_sources_episode` or `facts_believed`.
    """
    return f"""
        CASE WHEN CAST(:facts AS boolean) AND {only} THEN (SELECT json_agg(fact)::text FROM (
            SELECT id, session_id, agent_id, subject, predicate, object, confidence, cardinality, valid_from, valid_to,
                   recorded_at, superseded_at, strength, extractor, valid_to <= coalesce(:at, now()) AS is_former, (
                       SELECT json_agg(episode_id ORDER BY episode_id) FROM aftermind.fact_sources AS s
                       WHERE s.namespace = :namespace AND s.user_id = :user AND s.fact_id = facts.id) AS sources
            FROM aftermind.facts WHERE {_OWNED} AND {BELIEVED_SO_FAR} AND {facts}
            ORDER BY recorded_at DESC, id DESC) AS fact) END AS facts,
        CASE WHEN CAST(:blocks AS boolean) AND {only} THEN (SELECT json_agg(block ORDER BY name)::text FROM (
            SELECT name, content, description, version, updated_at FROM aftermind.blocks
            WHERE {_OWNED} AND updated_at <= coalesce(CAST(:at AS timestamptz), 'infinity')) AS block) END AS blocks,
        CASE WHEN CAST(:summary AS boolean) AND {only} THEN (SELECT row_to_json(summary)::text FROM (
            SELECT session_id, text, covers_to, messages, updated_at, summariser, version, last_message_at
            FROM aftermind.summaries
            WHERE {_OWNED} AND updated_at <= coalesce(CAST(:at AS timestamptz), 'infinity')
            ORDER BY session_id = CAST(:asking AS text) DESC, last_message_at DESC NULLS LAST, updated_at DESC
            LIMIT 1) AS summary) END AS summary,
        CASE WHEN CAST(:profile AS boolean) AND {only} THEN (SELECT json_build_object(
            'version', version, 'updated_at', updated_at, 'traits', (
                SELECT json_object_agg(name, json_build_object(
                    'value', value, 'evidence', evidence, 'updated_at', updated_at, 'last_message_at', last_message_at))
                FROM aftermind.profile_traits WHERE {_OWNED}))::text
            FROM aftermind.profiles
            WHERE {_OWNED} AND updated_at <= coalesce(CAST(:at AS timestamptz), 'infinity')) END AS profile"""


_BRIEF = Positional.of(
    ENTERING.format(
        asked=f"""
    SELECT shown.*, {
            parts(f'''id IN (
            SELECT unnest(CAST(:told AS uuid[]))
            UNION SELECT fact_id FROM aftermind.fact_sources WHERE {_OWNED} AND episode_id = ANY(CAST(:ids AS uuid[]))
            UNION ({_newest("superseded_at IS NULL AND CAST(:at AS timestamptz) IS NULL")})
            UNION ({_newest("CAST(:at AS timestamptz) IS NOT NULL")})
            UNION (SELECT id FROM aftermind.facts
                   WHERE {_OWNED} AND CAST(:then AS timestamptz) IS NOT NULL AND {BELIEVED_SO_FAR}
                     AND (valid_from IS NULL OR valid_from <= :then) AND (valid_to IS NULL OR valid_to > :then)
                   ORDER BY recorded_at DESC LIMIT {NEWEST_FACTS})
            UNION (SELECT id FROM aftermind.facts
                   WHERE {_OWNED} AND CAST(:past AS boolean) AND {BELIEVED_SO_FAR} AND valid_to <= coalesce(:at, now())
                   ORDER BY recorded_at DESC LIMIT {NEWEST_FACTS}))''')
        }
    FROM (SELECT {in_columns()}
          FROM aftermind.episodes WHERE {_OWNED} AND id = ANY(CAST(:ids AS uuid[]))
            AND {UNEXPIRED.format(of="")}) AS shown
    """
    )
)


async def brief(tx: Transaction, owner: Scope, wanted: BlockRequest) -> Briefing:
    """One round trip, on any node; reads only, locks nothing. Raises `StoreUnavailable`."""
    given = {
        "tenant": pg(tx).namespace,
        "namespace": owner.namespace,
        "user": owner.user_column,
        "ids": list(wanted.ids),
        "told": list(wanted.facts),
        **parameters(wanted),
    }
    row = await pg(tx).alone(_BRIEF.sql, *_BRIEF.values(given))
    if row is None:
        raise errors.Bug("the briefing answered nothing at all.")
    return read(owner, row, wanted)


def parameters(wanted: BlockRequest) -> dict[str, Any]:  # Any: as the driver takes them
    """Parameters of `parts` in addition to the owner."""
    return {
        "facts": "facts" in wanted.load,
        "blocks": "blocks" in wanted.load,
        "summary": "summary" in wanted.load,
        "profile": "profile" in wanted.load,
        "asking": wanted.session_id or "",
        "at": wanted.at,
        "then": wanted.then,
        "past": wanted.past,
    }


def read(owner: Scope, row: asyncpg.Record, wanted: BlockRequest) -> Briefing:
    """The briefing in a row of `in_columns` and `parts`, which may hold more episodes than are wanted."""
    scopes, facts = _Scopes(owner), _rows(row["facts"])
    return Briefing(
        episodes=read_episodes(owner, row, wanted.ids),
        facts=[_fact(scopes, each) for each in facts if not each["is_former"]],
        former=[_fact(scopes, each) for each in facts if each["is_former"]],
        blocks=[_block(owner, each) for each in _rows(row["blocks"])],
        summary=None if row["summary"] is None else _summary(scopes, orjson.loads(row["summary"])),
        profile=None if row["profile"] is None else _profile(owner, orjson.loads(row["profile"])),
    )


def read_episodes(owner: Scope, row: asyncpg.Record, ids: Sequence[EpisodeId]) -> list[Episode]:
    """The episodes with these ids in a row of `in_columns`."""
    scopes = _Scopes(owner)
    columns = [row[name] or () for name in _COLUMNS]
    columns = [np.frombuffer(each, dtype=">i8").tolist() if isinstance(each, bytes) else each for each in columns]
    episodes = {episode[0]: episode for episode in zip(*columns, strict=True)}
    return [_episode(scopes, episodes[id_]) for id_ in ids if id_ in episodes]


def _rows(sent: str | None) -> list[Json]:
    return [] if sent is None else orjson.loads(sent)


class _Scopes:
    """The owner with the labels of a row; most rows share a few, and checking one takes 3 us."""

    def __init__(self, owner: Scope) -> None:
        self._owner = owner.owner
        self._made: dict[tuple[str | None, str | None], Scope] = {}

    def of(self, row: Json) -> Scope:
        return self.labelled(row.get("session_id"), row.get("agent_id"))

    def labelled(self, session_id: str | None, agent_id: str | None) -> Scope:
        labels = session_id or None, agent_id or None
        made = self._made.get(labels)
        if made is None:
            made = self._made[labels] = replace(self._owner, session_id=labels[0], agent_id=labels[1])
        return made


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _episode(scopes: _Scopes, row: Sequence[Any]) -> Episode:  # Any: as the driver reads
    id_, session_id, agent_id, role, content, name, metadata, said_at, remembered_at, position, mark = row
    return Episode(
        id=id_,
        scope=scopes.labelled(session_id, agent_id),
        role=_ROLES[role],
        content=content,
        name=name,
        metadata=orjson.loads(metadata) if metadata else {},
        occurred_at=_EPOCH + timedelta(microseconds=said_at),
        remembered_at=_EPOCH + timedelta(microseconds=remembered_at),
        position=position,
        mark=mark,
    )


def _fact(scopes: _Scopes, row: Json) -> Fact:
    return Fact(
        id=FactId(UUID(row["id"])),
        scope=scopes.of(row),
        subject=row["subject"],
        predicate=row["predicate"],
        object=row["object"],
        confidence=float(row["confidence"]),  # JSON of Postgres has 1 for 1.0
        cardinality=Cardinality(row["cardinality"]),
        valid_from=_time(row["valid_from"]),
        valid_to=_time(row["valid_to"]),
        recorded_at=datetime.fromisoformat(row["recorded_at"]),
        superseded_at=_time(row["superseded_at"]),
        strength=row["strength"],
        sources=tuple(EpisodeId(UUID(each)) for each in row["sources"] or ()),
        extractor=row["extractor"],
    )


def _block(owner: Scope, row: Json) -> Block:
    return Block(
        scope=owner.owner,
        name=row["name"],
        content=row["content"],
        version=row["version"],
        updated_at=datetime.fromisoformat(row["updated_at"]),
        description=row["description"],
    )


def _summary(scopes: _Scopes, row: Json) -> Summary:
    return Summary(
        scope=scopes.of(row),
        text=row["text"],
        covers_to=row["covers_to"],
        messages=row["messages"],
        updated_at=datetime.fromisoformat(row["updated_at"]),
        summariser=row["summariser"],
        version=row["version"],
        last_message_at=_time(row["last_message_at"]),
    )


def _profile(owner: Scope, row: Json) -> Profile:
    traits = {
        name: Trait(
            value=trait["value"],
            evidence=tuple(EpisodeId(UUID(each)) for each in trait["evidence"]),
            updated_at=_time(trait["updated_at"]),
            last_message_at=_time(trait["last_message_at"]),
        )
        for name, trait in (row["traits"] or {}).items()
    }
    return Profile(scope=owner.owner, traits=traits, version=row["version"], updated_at=_time(row["updated_at"]))
