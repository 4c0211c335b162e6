"""Lexical and vector search in one statement: the best hits of either kind, with what stands around them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import asyncpg
import numpy as np
import orjson
from numpy.typing import NDArray

from aftermind import errors
from aftermind.db.base import Transaction
from aftermind.db.tenancy import entering
from aftermind.db.transaction import pg
from aftermind.db.vault import Vault, no_masters
from aftermind.ranking import Frame, Frequencies, numbered
from aftermind.stores.postgres import sealed
from aftermind.stores.postgres.briefing import brief
from aftermind.stores.postgres.positional import Positional
from aftermind.stores.postgres.terms import keys_of
from aftermind.stores.postgres.told import FOUND, hits_of, told
from aftermind.stores.searching import CONTEXT, Briefing, Found, NodeState, Search, Wanted
from aftermind.types import Scope, Watermark
from aftermind.types.message import UNDONE

EF_SEARCH = 500  # of 100,000 hash vectors 0.987 of the true ten in 9 ms; 200 found 0.962 in 4 ms
# Of connections that serve recall alone. Generic plans: planning anew for each owner costs 0.5 ms, and has nothing to
# go by.
READ_SETTINGS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_read_only": "on",
}
STATE_SECONDS = 1.0  # for so long an answer of `node_state` may serve again: a promotion is seen, and a lag, no later
MOST_COUNTED = 500  # rows of one term that are counted: beyond it the word tells little, and counting takes long
BIG_OWNER, SIZE_SECONDS, SIZES_KEPT = 5_000, 60.0, 10_000
MOST_READ = 1_000  # rows that the rarest terms of a question lead to, together; the others only add to their score

# One round trip before the search: is this node far enough?
# A replica's timeline is the highest that it has seen: its control file alone is as old as its last restart point.
# A replica that streams and has replayed all it received is not late, however long ago the last commit was.
_STATE = Positional.of(
    """
    SELECT recovering, system, lsn, late,
           CASE WHEN recovering THEN (
               SELECT greatest(c.timeline_id, r.min_recovery_end_timeline,
                               (SELECT max(received_tli) FROM pg_stat_wal_receiver))
               FROM pg_control_checkpoint() c, pg_control_recovery() r
           ) END AS timeline
    FROM (
        SELECT pg_is_in_recovery() AS recovering,
               (SELECT system_identifier FROM pg_control_system()) AS system,
               (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint AS lsn,
               CASE WHEN EXISTS (SELECT FROM pg_stat_wal_receiver WHERE pid IS NOT NULL)
                     AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
                    ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END AS late
    ) AS node
    """
)

_FITS = """
    (
        (CAST(:session AS text) IS NULL OR e.session_id = :session)
        AND (CAST(:agent AS text) IS NULL OR e.agent_id = :agent)
        AND (CAST(:roles AS text[]) IS NULL OR e.role = ANY(CAST(:roles AS text[])))
        AND (CAST(:metadata AS jsonb) IS NULL OR e.metadata @> CAST(:metadata AS jsonb))
        AND (CAST(:since AS timestamptz) IS NULL OR e.occurred_at >= :since)
        AND (CAST(:until AS timestamptz) IS NULL OR e.occurred_at < :until)
        AND (CAST(:before AS bigint) IS NULL OR e.position < :before)
        AND (CAST(:known_at AS timestamptz) IS NULL OR e.remembered_at <= :known_at)
    )"""
_OWNED = "e.namespace = :namespace AND e.user_id = :user"
_VECTOR = "CAST(:vector AS halfvec)"
# The same for a walk along the vectors: as functions they are checked on the way, and cannot lure the planner, which
# takes every owner for an average one, into reading all of a big owner's rows and sorting them.
_OWNED_UNINDEXED = "texteq(e.namespace, :namespace) AND texteq(e.user_id, :user)"
# OFFSET 0: by the terms first, for the same reason; the owner is checked all the same, for keys that collide.
_HAVING = "SELECT * FROM aftermind.searched WHERE terms @> ARRAY[{key}] OFFSET 0"
# `=` finds nothing for the episodes without a session, and IS NOT DISTINCT FROM cannot use an index.
_SAME_SESSION = (("e.session_id = {of}", "{of} IS NOT NULL"), ("e.session_id IS NULL", "{of} IS NULL"))


def _neighbour(of: str, *, before: bool) -> str:
    """The farthest of the next few places on one side; index `episodes_session`, index-only."""
    compare, order, pick = ("<", "DESC", "min") if before else (">", "ASC", "max")
    sides = " UNION ALL ".join(
        f"""(SELECT e.position FROM aftermind.episodes e
             WHERE {_OWNED} AND {same.format(of=of + ".session_id")} AND {guard.format(of=of + ".session_id")}
               AND e.position {compare} {of}.position
             ORDER BY e.position {order} LIMIT {CONTEXT})"""
        for same, guard in _SAME_SESSION
    )
    return f"coalesce((SELECT {pick}(position) FROM ({sides}) AS beside), {of}.position)"


def _rows_of_spans(fits: str) -> str:
    """Everything inside the spans; OFFSET 0 keeps the planner from turning many small range scans into one big one."""
    columns = f"""e.id, e.session_id, e.position, e.name, cardinality(e.terms) AS length, array_send(e.terms) AS terms,
        1 - (e.embedding <=> {_VECTOR}) AS similarity, {fits} AND e.mark IS DISTINCT FROM '{UNDONE}' AS fits,
        right(rtrim(e.content), 1) IN ('?', '\uff1f', '\u061f') AS asking"""
    sides = " UNION ALL ".join(
        f"""(SELECT {columns} FROM aftermind.episodes e
             WHERE {_OWNED} AND {same.format(of="span.session_id")} AND {guard.format(of="span.session_id")}
               AND e.position >= lower(span.places) AND e.position < upper(span.places) OFFSET 0)"""
        for same, guard in _SAME_SESSION
    )
    return f"SELECT found.* FROM spans AS span CROSS JOIN LATERAL ({sides}) AS found"


# ceiling   where comparing gives way to walking; it is read before a walk begins, so its settings hold for the walk
# sized     how many episodes the owner has, counted up to where an index of neighbours pays: below `exact_rows` never;
#           beyond it, n rows compared (0.4 us each) against a walk that meets one of ours every total/n steps (8 us a
#           step, 50 wanted) break even at n*n = 1,000 * total
# asked     each term with the number of the owner's episodes that have it (index episodes_terms)
# telling   the rarest terms, as many as lead to MOST_READ rows
# said      the best by words;  near  the best by vector: compared one by one, or by episodes_embedding
# spans     the places around the hits, overlapping ones joined
# sharing, told   facts by words, see `told`
def _find(*, filtered: bool) -> Positional:
    """The search; where nothing filters, the filters are left out of it, for they cost time in being compared with."""
    fits = _FITS if filtered else "true"
    return Positional.of(
        entering(f"""
        WITH ceiling AS MATERIALIZED (
            SELECT CASE WHEN coalesce((SELECT indexing FROM aftermind.users AS e WHERE {_OWNED}), 0) < 2
                   THEN 1000000000
                   ELSE greatest(CAST(:exact AS bigint), sqrt(1000 * greatest(reltuples, 0)))::bigint
                        * {10 if filtered else 1} END AS most,
                   set_config('hnsw.ef_search', '{EF_SEARCH}', true) AS walk,
                   set_config('hnsw.iterative_scan', 'strict_order', true) AS further
            FROM pg_class WHERE oid = 'aftermind.episodes'::regclass
        ), sized AS MATERIALIZED (
            SELECT coalesce(CAST(:episodes AS bigint), (SELECT count(*) FROM (
                SELECT FROM aftermind.episodes e WHERE {_OWNED}
                LIMIT (SELECT most + 1 FROM ceiling)) AS counted)) AS episodes
        ), asked AS MATERIALIZED (
            SELECT key, place, (SELECT count(*) FROM (
                SELECT FROM ({_HAVING.format(key="key")}) AS e WHERE {_OWNED} LIMIT {MOST_COUNTED}) AS counted
            ) AS df FROM unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term(key, place)
        ), telling AS MATERIALIZED (
            SELECT key, ln(1 + greatest(episodes - df, 0) / (df + 0.5)) AS idf, df
            FROM (SELECT *, sum(df) OVER (ORDER BY df, place) AS upto FROM asked WHERE df > 0) AS rarest, sized
            WHERE upto <= {MOST_READ} OR upto = df
        ), said AS MATERIALIZED (
            SELECT id, session_id, position FROM (
                SELECT e.id, e.session_id, e.position, sum(telling.idf) AS total
                FROM telling CROSS JOIN LATERAL (
                    SELECT e.id, e.session_id, e.position FROM ({_HAVING.format(key="telling.key")}) AS e
                    WHERE {_OWNED} AND {fits} LIMIT {MOST_READ}) AS e
                GROUP BY 1, 2, 3) AS scored
            ORDER BY total DESC, position DESC LIMIT CAST(:hits AS bigint)
        ), near AS MATERIALIZED (
            SELECT id, session_id, position, distance FROM ((
                SELECT id, session_id, position, distance FROM (
                    SELECT e.id, e.session_id, e.position, e.embedding <=> {_VECTOR} AS distance
                    FROM aftermind.episodes e
                    WHERE {_OWNED} AND {fits} AND e.embedding IS NOT NULL OFFSET 0) AS compared
                WHERE {_VECTOR} IS NOT NULL AND (SELECT episodes FROM sized) <= (SELECT most FROM ceiling)
                ORDER BY distance LIMIT CAST(:hits AS bigint)
            ) UNION ALL (
                SELECT e.id, e.session_id, e.position, e.embedding <=> {_VECTOR} AS distance
                FROM aftermind.searched e
                WHERE {_OWNED_UNINDEXED} AND e.indexed AND {fits}
                  AND {_VECTOR} IS NOT NULL AND (SELECT episodes FROM sized) > (SELECT most FROM ceiling)
                ORDER BY e.embedding <=> {_VECTOR} LIMIT CAST(:hits AS bigint)
            )) AS nearest
        ), hits AS MATERIALIZED (
            SELECT id, session_id, position FROM said UNION SELECT id, session_id, position FROM near
        ), spots AS (
            SELECT session_id, position FROM hits
            UNION SELECT tail, (SELECT max(e.position) FROM aftermind.episodes e
                                WHERE {_OWNED} AND e.session_id IS NOT DISTINCT FROM tail)
            FROM unnest(CAST(:tails AS text[])) AS tail
        ), spans AS MATERIALIZED (
            SELECT session_id, unnest(range_agg(int8range(
                {_neighbour("spot", before=True)}, {_neighbour("spot", before=False)}, '[]'))) AS places
            FROM spots AS spot WHERE position IS NOT NULL GROUP BY session_id
        ), around AS MATERIALIZED (
            {_rows_of_spans(fits)}
        ), {told(filtered=filtered)}
        SELECT array_agg(id) AS ids, array_agg(session_id) AS sessions, array_agg(position) AS positions,
               array_agg(name) AS names, array_agg(length) AS lengths, string_agg(terms, '') AS terms,
               array_agg(similarity) AS similarities, array_agg(asking) AS asking, array_agg(fits) AS fits,
               array_agg(id IN (SELECT id FROM hits)) AS hit,
               (SELECT episodes FROM sized) AS episodes,
               (SELECT array_agg(df ORDER BY place) FROM asked) AS frequencies,
               (SELECT array_agg(id ORDER BY distance) FROM near) AS nearest, {FOUND} AS facts
        FROM around
        """)
    )


_FIND = {filtered: _find(filtered=filtered) for filtered in (False, True)}


class _Sizes:
    """How many episodes the big owners have, for a minute: it decides how to search and weighs words, never what is
    found, and counting 20,000 index entries takes as long as a fifth of the search."""

    def __init__(self) -> None:
        self._known: dict[Scope, tuple[int, float]] = {}

    def get(self, owner: Scope) -> int | None:
        count, until = self._known.get(owner, (0, 0.0))
        return count if monotonic() < until else None

    def put(self, owner: Scope, count: int) -> None:
        if count >= BIG_OWNER:
            if len(self._known) >= SIZES_KEPT:
                self._known.clear()
            self._known[owner] = (count, monotonic() + SIZE_SECONDS)


class PostgresSearch:
    """`EpisodeSearch` on any node, primary or replica."""

    def __init__(self, vault: Vault | None = None) -> None:
        self._sizes, self._vault = _Sizes(), vault or Vault(no_masters)

    async def node_state(self, tx: Transaction, *, passed: Sequence[Watermark] | None = None) -> NodeState:
        """How far this node is; run it before the search and on the same connection. Locks nothing."""
        noted = pg(tx).noted
        known: NodeState | None
        known, until = noted.get(NodeState, (None, 0.0))
        if passed is not None and known is not None and monotonic() < until and known.has_passed(passed):
            return known
        state = await self._state(tx)
        noted[NodeState] = state, monotonic() + STATE_SECONDS
        return state

    async def _state(self, tx: Transaction) -> NodeState:
        row = await pg(tx).alone(_STATE.sql)
        if row is None:
            raise errors.Bug("Postgres did not tell its state.")
        if not row["recovering"]:
            return NodeState(replica=False)
        place = (
            Watermark(system=row["system"], timeline=row["timeline"], lsn=row["lsn"])
            if row["lsn"] is not None
            else None
        )
        late = float("inf") if row["late"] is None else max(float(row["late"]), 0.0)
        return NodeState(replica=True, replayed=place, lag_seconds=late)

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> Found:
        """The owner's turns around the best hits, in one statement; reads only, locks nothing."""
        # While a namespace is being encrypted a term may lie there by either hash; afterwards by the keyed one alone.
        term_keys = (await self._vault.ring(tx, owner.namespace)).term_keys
        keys = [each for key in term_keys for each in keys_of(owner, search.question.terms, key=key)]
        filtered = not search.wanted.is_open or search.known_at is not None
        known = None if filtered else self._sizes.get(owner.owner)
        statement, given = _FIND[filtered], _parameters(owner, search, keys, known)
        given["tenant"] = pg(tx).namespace
        row = await pg(tx).alone(statement.sql, *statement.values(given))
        if row is None:
            raise errors.Bug("the search answered nothing at all.")
        if known is None and not filtered:
            self._sizes.put(owner.owner, row["episodes"])
        ways, having = len(term_keys), row["frequencies"] or [0] * len(keys)
        frequencies = Frequencies(episodes=row["episodes"], having=[sum(each) for each in _by_term(having, ways)])
        return Found(
            ids=row["ids"] or (),
            frame=_frame(row, keys, ways),
            frequencies=frequencies,
            similar=row["nearest"] or (),
            facts=hits_of(row["facts"], terms=len(keys) // ways),
        )

    async def brief(self, tx: Transaction, owner: Scope, wanted: Wanted) -> Briefing:
        """What is shown, in one statement; reads only, locks nothing."""
        found = await brief(tx, owner, wanted)
        return replace(
            found,
            episodes=await sealed.open_episodes(self._vault, tx, owner, found.episodes),
            facts=await sealed.open_facts(self._vault, tx, owner, found.facts),
            blocks=await sealed.open_blocks(self._vault, tx, owner, found.blocks),
            summary=None
            if found.summary is None
            else (await sealed.open_summaries(self._vault, tx, owner, [found.summary]))[0],
            profile=await sealed.open_profile(self._vault, tx, owner, found.profile),
        )


def _parameters(
    owner: Scope, search: Search, keys: Sequence[int], episodes: int | None
) -> dict[str, Any]:  # Any: as the driver takes them
    parameters = {
        "namespace": owner.namespace,
        "user": owner.user_column,
        "vector": search.vector,
        "keys": list(keys),
        "hits": search.hits,
        "exact": search.exact_rows,
        "tails": list(search.tails),
        "facts": search.facts,
        "episodes": episodes,
    }
    wanted = search.wanted
    if wanted.is_open and search.known_at is None:
        return parameters
    return parameters | {
        "session": wanted.session_id,
        "agent": wanted.agent_id,
        "roles": None if wanted.roles is None else [role.value for role in wanted.roles],
        "metadata": orjson.dumps(wanted.metadata).decode() if wanted.metadata else None,
        "since": wanted.since,
        "until": wanted.until,
        "before": wanted.before_position,
        "known_at": search.known_at,
    }


def _by_term(values: Sequence[int], ways: int) -> list[Sequence[int]]:
    """What belongs to each term, where each was asked for in so many ways."""
    size = len(values) // ways
    return [values[place::size] for place in range(size)]


def _any_way(hits: NDArray[np.bool_], ways: int) -> NDArray[np.bool_]:
    size = hits.shape[1] // ways
    found = hits[:, :size]
    for way in range(1, ways):
        found = found | hits[:, way * size : (way + 1) * size]
    return found


def _frame(row: asyncpg.Record, keys: Sequence[int], ways: int) -> Frame:
    lengths = np.array(row["lengths"] or (), dtype=np.int64)
    similarity = np.array(row["similarities"] or (), dtype=np.float64)
    sessions: Sequence[str | None] = row["sessions"] or ()
    positions = np.array(row["positions"] or (), dtype=np.int64)
    near = _within_reach(sessions, positions, np.array(row["hit"] or (), dtype=np.bool_))
    return Frame(
        session=sessions,
        position=positions,
        hits=_any_way(_hits(bytes(row["terms"] or b""), lengths, keys), ways),
        length=lengths,
        similarity=similarity,
        name=row["names"] or (),
        asking=np.array(row["asking"] or (), dtype=np.bool_),
        candidate=near & np.array(row["fits"] or (), dtype=np.bool_),
    )


def _hits(sent: bytes, lengths: NDArray[np.int64], keys: Sequence[int]) -> NDArray[np.bool_]:
    """Which keys each row has, out of Postgres's wire format of bigint arrays: five words, then three a value."""
    words = np.frombuffer(sent, dtype=">u4")
    sizes = np.where(lengths > 0, 5 + 3 * lengths, 3)
    starts = np.cumsum(sizes) - sizes
    rows = np.repeat(np.arange(len(lengths)), lengths)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = starts[rows] + 5 + 3 * nth + 1
    values = (words[places].astype(np.uint64) << np.uint64(32)) | words[places + 1].astype(np.uint64)
    hits = np.zeros((len(lengths), len(keys)), dtype=np.bool_)
    for column, key in enumerate(keys):
        hits[rows[values == np.uint64(key & 0xFFFF_FFFF_FFFF_FFFF)], column] = True
    return hits


def _within_reach(
    sessions: Sequence[str | None], positions: NDArray[np.int64], hit: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Hits and the two turns on either side: those whose own windows came along whole."""
    session = numbered(sessions)
    order = np.lexsort((positions, session))
    reached = hit[order]
    found = reached.copy()
    session = session[order]
    for step in range(1, CONTEXT // 2 + 1):
        same = session[step:] == session[:-step]
        found[step:] |= reached[:-step] & same
        found[:-step] |= reached[step:] & same
    result = np.empty_like(found)
    result[order] = found
    return result
