"""Statements over episodes: written in batches, read by id, by session and by filter."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Select, select, text, tuple_

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Ring
from aftermind.db.engine import encode_half
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import EPISODES
from aftermind.ranking.passages import split
from aftermind.ranking.tokenizer import LanguageFor
from aftermind.ranking.vectors import part_vectors, whole
from aftermind.stores.postgres.encrypted_columns import EPISODE_TEXT, sealed
from aftermind.stores.postgres.owner_term_keys import passage_keys, term_keys
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, UNEXPIRED, to_episode
from aftermind.stores.protocol import AdmissionState, EpisodeFilter, SessionInfo, Vector
from aftermind.types import Episode, EpisodeId, JobId, Scope
from aftermind.types.message import ALL_KINDS, UNDONE
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import Tombstone

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
    SELECT users.namespace, users.user_id, tombstone_count FROM aftermind.users
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) AS given (namespace, user_id)
      ON users.namespace = given.namespace AND users.user_id = given.user_id
    ORDER BY users.namespace, users.user_id FOR SHARE OF users
    """
)
_TOMBSTONES = text(
    """
    SELECT tombstones.namespace, tombstones.user_id, generation, at, session_id, before, ids, member, by_policy
    FROM aftermind.tombstones
    JOIN unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) AS given (namespace, user_id)
      ON tombstones.namespace = given.namespace AND tombstones.user_id = given.user_id
    """
)

_NEWEST = """
    SELECT session_id, position, counted_from, shift FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND session_id {is_it} ORDER BY position DESC LIMIT 1
"""
_ADMISSION_STATE = text(
    f"""
    SELECT (SELECT json_agg(stone)::text FROM (
                SELECT generation, at, session_id, before, ids, member, by_policy FROM aftermind.tombstones
                WHERE namespace = :namespace AND user_id = :user
                  AND generation > CAST(:generation AS bigint)) AS stone) AS stones,
           (SELECT json_agg(newest)::text FROM unnest(CAST(:sessions AS text[])) AS asked (session) CROSS JOIN LATERAL (
                ({_NEWEST.format(is_it="= asked.session")})
                UNION ALL (SELECT * FROM ({_NEWEST.format(is_it="IS NULL")}) AS nowhere WHERE asked.session IS NULL)
            ) AS newest) AS newest,
           (SELECT json_agg(turn)::text FROM (
                SELECT id, payload ->> 'hash' AS hash FROM aftermind.jobs
                WHERE id = ANY(CAST(:turns AS uuid[])) AND namespace = :namespace AND user_id = :user AND state = 'done'
                  AND EXISTS (SELECT FROM aftermind.tombstones AS stones WHERE stones.namespace = :namespace
                              AND stones.user_id = :user AND stones.at > jobs.updated_at)
            ) AS turn) AS erased_after
    """
)
_NOW = text("SELECT clock_timestamp() AS now")
_HOLD = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))")
FURTHEST_BACK = 10_000  # episodes of a session that are searched for one with the same count base
_SHIFT = text(
    f"""
    SELECT shift FROM (
        SELECT counted_from, shift, position FROM aftermind.episodes
        WHERE namespace = :namespace AND user_id = :user AND session_id IS NOT DISTINCT FROM CAST(:session AS text)
        ORDER BY position DESC LIMIT {FURTHEST_BACK}) AS latest
    WHERE counted_from = :from ORDER BY position DESC LIMIT 1
    """
)

# Episodes as they travel to be inserted, a column each: see `columns`. Terms as text ("{1,2}"), because arrays of
# arrays must be of one length; vectors of passages are in separate arrays, by episode.
NAMES = """user_id, id, session_id, agent_id, role, name, content, metadata, occurred_at, remembered_at, position,
    mark, keep, terms, embedding, counted_from, shift, passages, passage_terms, job_id, expires_at"""
ARRAYS = """CAST(:users AS text[]), CAST(:ids AS uuid[]), CAST(:sessions AS text[]), CAST(:agents AS text[]),
    CAST(:roles AS text[]), CAST(:names AS text[]), CAST(:contents AS text[]), CAST(:metadata AS text[]),
    CAST(:occurred AS timestamptz[]), CAST(:remembered AS timestamptz[]), CAST(:positions AS bigint[]),
    CAST(:marks AS text[]), CAST(:keeps AS text[]), CAST(:terms AS text[]), CAST(:vectors AS public.halfvec[]),
    CAST(:counted_from AS bigint[]), CAST(:shifts AS bigint[]), CAST(:passages AS text[]),
    CAST(:passage_terms AS text[]), CAST(:jobs AS uuid[]), CAST(:expiries AS timestamptz[])"""
GIVEN = """given.user_id, given.id, given.session_id, given.agent_id, given.role, given.name, given.content,
    CAST(given.metadata AS jsonb), given.occurred_at, given.remembered_at, given.position, given.mark,
    CAST(given.keep AS text[]), CAST(given.terms AS bigint[]), given.embedding, given.counted_from, given.shift,
    CAST(given.passages AS integer[]), CAST(given.passage_terms AS bigint[]), given.job_id, given.expires_at"""
PASSAGE_VECTORS = """(
    SELECT array_agg(made.vector ORDER BY made.place)
    FROM unnest(CAST(:passage_of AS uuid[]), CAST(:passage_vectors AS public.halfvec[]))
         WITH ORDINALITY AS made (id, vector, place) WHERE made.id = given.id)"""

_ADD = text(
    f"""
    INSERT INTO aftermind.episodes (namespace, {NAMES}, passage_embedding, indexed)
    SELECT namespace, {GIVEN}, {PASSAGE_VECTORS},
           coalesce((SELECT index_state > 0 FROM aftermind.users
                     WHERE users.namespace = given.namespace AND users.user_id = given.user_id), false)
    FROM unnest(CAST(:namespaces AS text[]), {ARRAYS}) AS given (namespace, {NAMES})
    ON CONFLICT DO NOTHING
    RETURNING id
    """
)

_SESSIONS = text(
    f"""
    SELECT session_id, count(*) AS episodes, min(occurred_at) AS first_at, max(occurred_at) AS last_at
    FROM aftermind.episodes WHERE namespace = :namespace AND user_id = :user AND {UNEXPIRED.format(of="")}
    GROUP BY session_id ORDER BY max(position) DESC LIMIT :limit
    """
)


async def now(tx: Transaction) -> datetime:
    """See `Store.now`."""
    row = await pg(tx).row(_NOW)
    if row is None:
        raise errors.Bug("Postgres did not return its time.")
    time: datetime = row.now
    return time


async def tombstones(tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
    """See `Store.tombstones`. A new owner gets a row to lock."""
    given = sorted({(owner.namespace, owner.user_column) for owner in owners})
    columns = {"namespaces": [namespace for namespace, _ in given], "users": [user for _, user in given]}
    locked = await pg(tx).rows(_LOCK, **columns)
    if len(locked) < len(given):
        await pg(tx).execute(_OWNERS, columns)
        locked = await pg(tx).rows(_LOCK, **columns)
    if not any(row.tombstone_count for row in locked):
        return []
    return [to_tombstone(row) for row in await pg(tx).rows(_TOMBSTONES, **columns)]


def to_tombstone(row: Any) -> Tombstone:  # Any: a row of tombstones
    """The tombstone that a row is."""
    return Tombstone(
        owner=Scope(namespace=row.namespace, user_id=row.user_id or None),
        generation=row.generation,
        at=row.at,
        session_id=row.session_id,
        before=row.before,
        ids=frozenset(EpisodeId(id_) for id_ in row.ids),
        member=row.member,
        by_policy=row.by_policy,
    )


async def admission_state(
    tx: Transaction,
    owner: Scope,
    sessions: Collection[str | None],
    *,
    generation: int | None = None,
    turns: Collection[JobId] = (),
) -> AdmissionState:
    """See `Store.admission_state`. By the keys of `tombstones` and jobs, and the end of `episodes_session` for each
    session.
    """
    given = {"namespace": owner.namespace, "user": owner.user_column, "turns": list(turns)}
    row = await pg(tx).row(_ADMISSION_STATE, **given, generation=generation, sessions=list(sessions))
    if row is None:
        return AdmissionState()
    stones = [
        Tombstone(
            owner=owner.owner,
            generation=each["generation"],
            at=datetime.fromisoformat(each["at"]),
            session_id=each["session_id"],
            before=None if each["before"] is None else datetime.fromisoformat(each["before"]),
            ids=frozenset(EpisodeId(UUID(id_)) for id_ in each["ids"]),
            member=each["member"],
            by_policy=each["by_policy"],
        )
        for each in orjson.loads(row.stones or "[]")
    ]
    counted = {
        each["session_id"]: Counted(
            position=each["position"], counted_from=each["counted_from"], shift=each["shift"] or 0
        )
        for each in orjson.loads(row.newest or "[]")
    }
    erased_after = {JobId(UUID(each["id"])): each["hash"] for each in orjson.loads(row.erased_after or "[]")}
    return AdmissionState(stones=stones, counted=counted, erased_after=erased_after)


async def hold(tx: Transaction, owner: Scope, name: str) -> None:
    """See `Store.hold`. An advisory lock, until the transaction ends."""
    parts = (owner.namespace, owner.user_column, name)
    await pg(tx).execute(_HOLD, {"key": "aftermind.hold " + orjson.dumps(parts).decode()})


async def find_session_shift(tx: Transaction, owner: Scope, session_id: str | None, counted_from: int) -> int | None:
    """See `Store.find_session_shift`. From the end of `episodes_session`; what is further back counts as not there."""
    given = {"namespace": owner.namespace, "user": owner.user_column, "session": session_id, "from": counted_from}
    row = await pg(tx).row(_SHIFT, **given)
    return None if row is None else int(row.shift or 0)


async def add(
    tx: Transaction,
    episodes: Sequence[Episode],
    vectors: Mapping[EpisodeId, Vector],
    rings: Mapping[str, Ring],
    *,
    language_for: LanguageFor,
    counted: Mapping[EpisodeId, Counted],
) -> frozenset[EpisodeId]:
    """See `Store.add_episodes`. `rings` are the keys of each namespace."""
    given = {"namespaces": [episode.scope.namespace for episode in episodes]}
    values = columns(episodes, vectors, rings, language_for=language_for, counted=counted)
    rows = await pg(tx).rows(_ADD, **given, **values)
    return frozenset(EpisodeId(row.id) for row in rows)


def columns(
    episodes: Sequence[Episode],
    vectors: Mapping[EpisodeId, Vector],
    rings: Mapping[str, Ring],
    *,
    language_for: LanguageFor,
    counted: Mapping[EpisodeId, Counted],
) -> dict[str, list[Any]]:  # Any: one column each of another type
    """Episodes as columns, but for their namespaces."""
    places = [counted.get(episode.id) for episode in episodes]
    passages = [_passages(rings[episode.scope.namespace], episode, language_for) for episode in episodes]
    return {
        "counted_from": [None if place is None else place.counted_from for place in places],
        "shifts": [None if place is None or not place.shift else place.shift for place in places],
        "jobs": [None if place is None else place.job_id for place in places],
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
        "keeps": [_save_options(episode) for episode in episodes],
        "terms": [_terms(rings[episode.scope.namespace], episode, language_for) for episode in episodes],
        "vectors": [_packed(vectors.get(episode.id)) for episode in episodes],
        "passages": [borders for borders, _ in passages],
        "passage_terms": [terms for _, terms in passages],
        "expiries": [episode.expires_at for episode in episodes],
        **passage_vectors({episode.id: vectors[episode.id] for episode in episodes if episode.id in vectors}),
    }


def passage_vectors(vectors: Mapping[EpisodeId, Vector]) -> dict[str, list[Any]]:  # Any: as `columns`
    """Parameters of `PASSAGE_VECTORS`: a row for each passage of the long texts, and each sentence of the others."""
    parts = {id_: part_vectors(each) for id_, each in vectors.items()}
    return {
        "passage_of": [id_ for id_, matrix in parts.items() for _ in matrix],
        "passage_vectors": [encode_half(row) for matrix in parts.values() for row in matrix],
    }


def _save_options(episode: Episode) -> str | None:
    return None if episode.keep == ALL_KINDS else f"{{{','.join(sorted(episode.keep))}}}"


async def by_ids(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
    """See `Store.episodes`. By the primary key."""
    rows = (await pg(tx).execute(_select_owner(owner).where(_E.id.in_(list(ids))))).all() if ids else []
    found = {row.id: to_episode(owner, row) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


async def history(tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
    """See `Store.history`. By `episodes_session` or `episodes_position`, from their ends."""
    statement = _filtered(_select_owner(owner), wanted).order_by(_E.position.desc(), _E.id.desc()).limit(limit)
    rows = (await pg(tx).execute(statement)).all()
    return [to_episode(owner, row) for row in reversed(rows)]


async def session_span(
    tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
) -> list[Episode]:
    """See `Store.session_span`. By `episodes_session`."""
    in_session = _E.session_id.is_(None) if session_id is None else _E.session_id == session_id
    statement = (
        _select_owner(owner)
        .where(in_session, _E.position > after_position, _E.expires_at.is_(None))
        .order_by(_E.position, _E.id)
        .limit(limit)
    )
    return [to_episode(owner, row) for row in (await pg(tx).execute(statement)).all()]


async def sessions(tx: Transaction, owner: Scope, *, limit: int = 100) -> list[SessionInfo]:
    """See `Store.sessions`."""
    rows = await pg(tx).rows(_SESSIONS, namespace=owner.namespace, user=owner.user_column, limit=limit)
    return [
        SessionInfo(session_id=row.session_id, episodes=row.episodes, first_at=row.first_at, last_at=row.last_at)
        for row in rows
    ]


def _owned(owner: Scope) -> tuple[Any, Any]:  # Any: column expressions
    return _E.namespace == owner.namespace, _E.user_id == owner.user_column


def _select_owner(owner: Scope) -> Select[Any]:  # Any: the columns of an episode
    return select(*EPISODE_COLUMNS).where(*_owned(owner), text(UNEXPIRED.format(of="episodes.")))


def _filtered(statement: Select[Any], wanted: EpisodeFilter) -> Select[Any]:  # Any: as `_select_owner`
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
    if wanted.before_position is not None and wanted.before_id is not None:
        rules.append(tuple_(_E.position, _E.id) < (wanted.before_position, wanted.before_id))
    elif wanted.before_position is not None:
        rules.append(_E.position < wanted.before_position)
    if not wanted.undone:
        rules.append(_E.mark.is_distinct_from(UNDONE))
    return statement.where(*rules)


def _packed(vector: Vector | None) -> bytes | None:
    return None if vector is None else encode_half(whole(vector))


def _content(ring: Ring, episode: Episode) -> str:
    return sealed(ring, episode.content, EPISODE_TEXT.place(episode.scope, episode.id))


def _passages(ring: Ring, episode: Episode, language_for: LanguageFor) -> tuple[str | None, str | None]:
    passages = split(episode.content)
    language = language_for(episode.scope.namespace)
    terms = passage_keys(episode.scope, episode.content, language, key=ring.terms or b"") if passages else None
    if terms is None:
        return None, None
    return f"{{{','.join(str(border) for border in (0, *(each.end for each in passages)))}}}", terms


def _terms(ring: Ring, episode: Episode, language_for: LanguageFor) -> str:
    language = language_for(episode.scope.namespace)
    return "{" + ",".join(map(str, term_keys(episode.scope, episode.content, language, key=ring.terms or b""))) + "}"
