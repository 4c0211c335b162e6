"""Statements over episodes: written in batches, read by id, by session and by filter."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Select, select, text

from aftermind.db.base import Transaction
from aftermind.db.postgres import encode_half
from aftermind.db.tables import EPISODES
from aftermind.db.transaction import pg
from aftermind.db.vault import Ring
from aftermind.stores.base import EpisodeFilter, SessionInfo, Tombstone, Vector
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, episode_of
from aftermind.stores.postgres.sealed import place_of_episode, sealed
from aftermind.stores.postgres.terms import term_keys
from aftermind.types import Episode, EpisodeId, Scope
from aftermind.types.message import ALL_KINDS, UNDONE

_E = EPISODES.c

# Owners sorted, so that two transactions never wait crosswise. The rows are locked against a forget, which takes them
# FOR UPDATE; stores of one owner do not wait for each other.
_OWNERS = text(
    """
    INSERT INTO aftermind.users (namespace, user_id)
    SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) ON CONFLICT DO NOTHING
    """
)
_LOCK = text(
    """
    SELECT users.namespace, users.user_id, forgets FROM aftermind.users
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) AS given (namespace, user_id)
      ON users.namespace = given.namespace AND users.user_id = given.user_id
    ORDER BY users.namespace, users.user_id FOR SHARE OF users
    """
)
_TOMBSTONES = text(
    """
    SELECT tombstones.namespace, tombstones.user_id, at, session_id, before, ids FROM aftermind.tombstones
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) AS given (namespace, user_id)
      ON tombstones.namespace = given.namespace AND tombstones.user_id = given.user_id
    """
)

# Episodes as they travel to be inserted, a column each: see `columns`. Terms as text ("{1,2}"), because arrays of
# arrays must be of one length.
NAMES = """user_id, id, session_id, agent_id, role, name, content, metadata, occurred_at, remembered_at, position,
    mark, keep, terms, embedding"""
ARRAYS = """CAST(:users AS text[]), CAST(:ids AS uuid[]), CAST(:sessions AS text[]), CAST(:agents AS text[]),
    CAST(:roles AS text[]), CAST(:names AS text[]), CAST(:contents AS text[]), CAST(:metadata AS text[]),
    CAST(:occurred AS timestamptz[]), CAST(:remembered AS timestamptz[]), CAST(:positions AS bigint[]),
    CAST(:marks AS text[]), CAST(:keeps AS text[]), CAST(:terms AS text[]), CAST(:vectors AS public.halfvec[])"""
GIVEN = """given.user_id, given.id, given.session_id, given.agent_id, given.role, given.name, given.content,
    CAST(given.metadata AS jsonb), given.occurred_at, given.remembered_at, given.position, given.mark,
    CAST(given.keep AS text[]), CAST(given.terms AS bigint[]), given.embedding"""

_ADD = text(
    f"""
    INSERT INTO aftermind.episodes (namespace, {NAMES}, indexed)
    SELECT namespace, {GIVEN},
           coalesce((SELECT indexing > 0 FROM aftermind.users
                     WHERE users.namespace = given.namespace AND users.user_id = given.user_id), false)
    FROM unnest(CAST(:namespaces AS text[]), {ARRAYS}) AS given (namespace, {NAMES})
    ON CONFLICT DO NOTHING
    RETURNING id
    """
)

_SESSIONS = text(
    """
    SELECT session_id, count(*) AS episodes, min(occurred_at) AS first_at, max(occurred_at) AS last_at
    FROM aftermind.episodes WHERE namespace = :namespace AND user_id = :user
    GROUP BY session_id ORDER BY max(position) DESC LIMIT :limit
    """
)


async def tombstones(tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
    """See `Store.tombstones`. An owner who is new gets a row to lock."""
    given = sorted({(owner.namespace, owner.user_column) for owner in owners})
    columns = {"namespaces": [namespace for namespace, _ in given], "users": [user for _, user in given]}
    locked = await pg(tx).rows(_LOCK, **columns)
    if len(locked) < len(given):
        await pg(tx).execute(_OWNERS, columns)
        locked = await pg(tx).rows(_LOCK, **columns)
    if not any(row.forgets for row in locked):
        return []
    return [
        Tombstone(
            owner=Scope(namespace=row.namespace, user_id=row.user_id or None),
            at=row.at,
            session_id=row.session_id,
            before=row.before,
            ids=frozenset(EpisodeId(id_) for id_ in row.ids),
        )
        for row in await pg(tx).rows(_TOMBSTONES, **columns)
    ]


async def add(
    tx: Transaction,
    episodes: Sequence[Episode],
    vectors: Mapping[EpisodeId, Vector],
    rings: Mapping[str, Ring],
    *,
    language: str,
) -> frozenset[EpisodeId]:
    """See `Store.add_episodes`. `rings` are the keys of each namespace."""
    given = {"namespaces": [episode.scope.namespace for episode in episodes]}
    rows = await pg(tx).rows(_ADD, **given, **columns(episodes, vectors, rings, language=language))
    return frozenset(EpisodeId(row.id) for row in rows)


def columns(
    episodes: Sequence[Episode], vectors: Mapping[EpisodeId, Vector], rings: Mapping[str, Ring], *, language: str
) -> dict[str, list[Any]]:  # Any: one column each of another type
    """Episodes as columns, but for their namespaces."""
    return {
        "users": [episode.scope.user_column for episode in episodes],
        "ids": [episode.id for episode in episodes],
        "sessions": [episode.scope.session_id for episode in episodes],
        "agents": [episode.scope.agent_id for episode in episodes],
        "roles": [episode.role.value for episode in episodes],
        "names": [episode.name for episode in episodes],
        "contents": [_content(rings[episode.scope.namespace], episode) for episode in episodes],
        "metadata": [orjson.dumps(episode.metadata).decode() if episode.metadata else "{}" for episode in episodes],
        "occurred": [episode.occurred_at for episode in episodes],
        "remembered": [episode.remembered_at for episode in episodes],
        "positions": [episode.position for episode in episodes],
        "marks": [episode.mark for episode in episodes],
        "keeps": [_keep(episode) for episode in episodes],
        "terms": [_terms(rings[episode.scope.namespace], episode, language) for episode in episodes],
        "vectors": [_packed(vectors.get(episode.id)) for episode in episodes],
    }


def _keep(episode: Episode) -> str | None:
    return None if episode.keep == ALL_KINDS else f"{{{','.join(sorted(episode.keep))}}}"


async def by_ids(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
    """See `Store.episodes`. By the primary key."""
    rows = (await pg(tx).execute(_of(owner).where(_E.id.in_(list(ids))))).all() if ids else []
    found = {row.id: episode_of(owner, row) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


async def history(tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
    """See `Store.history`. By `episodes_session` or `episodes_position`, from their ends."""
    statement = _filtered(_of(owner), wanted).order_by(_E.position.desc(), _E.id.desc()).limit(limit)
    rows = (await pg(tx).execute(statement)).all()
    return [episode_of(owner, row) for row in reversed(rows)]


async def session_span(
    tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
) -> list[Episode]:
    """See `Store.session_span`. By `episodes_session`."""
    in_session = _E.session_id.is_(None) if session_id is None else _E.session_id == session_id
    statement = _of(owner).where(in_session, _E.position > after_position).order_by(_E.position, _E.id).limit(limit)
    return [episode_of(owner, row) for row in (await pg(tx).execute(statement)).all()]


async def sessions(tx: Transaction, owner: Scope, *, limit: int) -> list[SessionInfo]:
    """See `Store.sessions`."""
    rows = await pg(tx).rows(_SESSIONS, namespace=owner.namespace, user=owner.user_column, limit=limit)
    return [
        SessionInfo(session_id=row.session_id, episodes=row.episodes, first_at=row.first_at, last_at=row.last_at)
        for row in rows
    ]


def _owned(owner: Scope) -> tuple[Any, Any]:  # Any: column expressions
    return _E.namespace == owner.namespace, _E.user_id == owner.user_column


def _of(owner: Scope) -> Select[Any]:  # Any: the columns of an episode
    return select(*EPISODE_COLUMNS).where(*_owned(owner))


def _filtered(statement: Select[Any], wanted: EpisodeFilter) -> Select[Any]:  # Any: as `_of`
    rules: list[Any] = []  # Any: column expressions
    if wanted.session_id is not None:
        rules.append(_E.session_id == wanted.session_id)
    if wanted.agent_id is not None:
        rules.append(_E.agent_id == wanted.agent_id)
    if wanted.roles is not None:
        rules.append(_E.role.in_([role.value for role in wanted.roles]))
    if wanted.metadata:
        rules.append(_E.metadata.contains(dict(wanted.metadata)))
    if wanted.since is not None:
        rules.append(_E.occurred_at >= wanted.since)
    if wanted.until is not None:
        rules.append(_E.occurred_at < wanted.until)
    if wanted.before_position is not None:
        rules.append(_E.position < wanted.before_position)
    if not wanted.undone:
        rules.append(_E.mark.is_distinct_from(UNDONE))
    return statement.where(*rules)


def _packed(vector: Vector | None) -> bytes | None:
    return None if vector is None else encode_half(vector)


def _content(ring: Ring, episode: Episode) -> str:
    return sealed(ring, episode.content, place_of_episode(episode.scope, episode.id))


def _terms(ring: Ring, episode: Episode, language: str) -> str:
    return "{" + ",".join(map(str, term_keys(episode.scope, episode.content, language, key=ring.terms or b""))) + "}"
