"""Lexical and vector search in one statement: full-scan search for small users, indexed search for large ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import asyncpg
import numpy as np
import orjson

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.db.positional_parameters import Positional
from aftermind.db.postgres_node_probe import LAG_SECONDS
from aftermind.db.postgres_transaction import pg
from aftermind.ranking import Frame, Frequencies, idf, parse_models
from aftermind.stores.postgres import encrypted_columns, passage_rescoring
from aftermind.stores.postgres.block_query import brief, parameters
from aftermind.stores.postgres.fact_search import parse_hits
from aftermind.stores.postgres.owner_term_keys import hash_terms
from aftermind.stores.postgres.scoring_columns import to_frame
from aftermind.stores.postgres.search_exhaustive import EVERY_EPISODE, MOST_WHOLE, STANDBY_STATEMENTS, STATEMENTS, Held
from aftermind.stores.postgres.search_indexed import FIND
from aftermind.stores.search import BlockRequest, Briefing, NodeState, Search, SearchResult, with_passages
from aftermind.types import EpisodeId, Passage, Scope, StoredEmbedders, Watermark

# For connections that serve recall only. Generic plans: planning for each owner costs 0.5 ms without benefit.
READ_SETTINGS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_read_only": "on",
}
STATE_SECONDS = 1.0  # for so long an answer of `node_state` may serve again: a promotion is seen, and a lag, no later
BIG_OWNER, SIZE_SECONDS, MUCH_SECONDS, SIZES_KEPT = 5_000, 60.0, 3_600.0, 10_000
_NEVER = 0, float("-inf")
MOST_LONG = 100  # messages of a result whose passages are compared: of 50 KB each that takes as long as the search

# One round trip before the search: is this node far enough?
# A replica's timeline is the highest that it has seen: its control file alone is as old as its last restart point.
_STATE = Positional.of(
    f"""
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
               {LAG_SECONDS} AS late
    ) AS node
    """
)


class _Sizes:
    """Which owners have too much to be read whole, and how many episodes the big ones have.

    It decides how to search and weighs words, never what is found; counting 20,000 index entries takes as long as a
    fifth of the search. A count serves for a minute, that an owner has much for an hour: few grow less.
    """

    def __init__(self, much: int) -> None:
        self._much = much
        self._known: dict[Scope, tuple[int, float]] = {}  # counted, when

    def has_much(self, owner: Scope) -> bool:
        count, at = self._known.get(owner, _NEVER)
        return count > self._much and monotonic() - at < MUCH_SECONDS

    def count(self, owner: Scope) -> int | None:
        count, at = self._known.get(owner, _NEVER)
        return count if count >= BIG_OWNER and monotonic() - at < SIZE_SECONDS else None

    def put(self, owner: Scope, count: int) -> None:
        if len(self._known) >= SIZES_KEPT:
            self._known.clear()
        self._known[owner] = count, monotonic()


class PostgresSearch:
    """`EpisodeSearch` on any node, primary or replica. Owners of up to `whole` episodes are read whole.

    `standby` searches the vectors of the standby embedder instead of the active one's, for the comparison before a
    cutover: it reads owners whole, whatever their size.
    """

    def __init__(self, vault: Vault | None = None, *, whole: int = MOST_WHOLE, standby: bool = False) -> None:
        self._whole, self._statements = (EVERY_EPISODE, STANDBY_STATEMENTS) if standby else (whole, STATEMENTS)
        self._sizes, self._vault, self._is_standby = _Sizes(self._whole), vault or Vault(), standby

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
            raise errors.Bug("Postgres did not return its state.")
        if not row["recovering"]:
            return NodeState(replica=False)
        place = (
            Watermark(system=row["system"], timeline=row["timeline"], lsn=row["lsn"])
            if row["lsn"] is not None
            else None
        )
        late = float("inf") if row["late"] is None else max(float(row["late"]), 0.0)
        return NodeState(replica=True, replayed=place, lag_seconds=late)

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> SearchResult:
        """The owner's turns around the best hits, in one statement; reads only, locks nothing."""
        # During the encryption of a namespace a term may be stored with either hash; afterwards only with the keyed
        # one.
        term_keys = (await self._vault.ring(tx, owner.namespace)).term_keys
        keys = [each for key in term_keys for each in hash_terms(owner, search.question.terms, key=key)]
        given = parameters(search.along or BlockRequest()) | _parameters(owner, search, keys)
        row = await self._row(tx, owner.owner, given)
        ways, having = len(term_keys), row["frequencies"] or [0] * len(keys)
        frequencies = Frequencies(episodes=row["episodes"], having=[sum(each) for each in _by_term(having, ways)])
        frame, ids = to_frame(row, keys, ways, sentences=search.sentences), row["ids"] or ()
        passages: Mapping[EpisodeId, Passage] = {}
        if row["long_rows"] is not None:
            long = _long_hits(ids, frame, row["long_rows"], frequencies)
            compared = await passage_rescoring.compare(tx, long, given, ways=ways, standby=self._is_standby)
            frame, passages = with_passages(ids, frame, compared, frequencies)
        return SearchResult(
            ids=ids,
            frame=frame,
            frequencies=frequencies,
            passages=passages,
            facts=parse_hits(row["told"], terms=len(keys) // ways),
            unstored=row["unstored"] or (),
            embedders=StoredEmbedders.from_keys(row["standby_embedder"], None)
            if self._is_standby
            else StoredEmbedders.from_keys(row["active_embedder"], row["standby_embedder"]),
            models=None if row["models"] is None else parse_models(row["models"]),
            held=Held(row, search.along) if search.along is not None and row.get("held") else None,
        )

    async def _row(self, tx: Transaction, owner: Scope, given: dict[str, Any]) -> asyncpg.Record:
        """The result of either search: one round trip, except for an owner that the query finds to be large."""
        filtered = "known_at" in given
        given |= {"tenant": pg(tx).namespace, "whole": self._whole}
        if not self._sizes.has_much(owner):
            row = await self._answer(tx, self._statements[filtered], given)
            if row["episodes"] <= self._whole:
                return row
            self._sizes.put(owner, row["episodes"])
        given["episodes"] = known = None if filtered else self._sizes.count(owner)
        row = await self._answer(tx, FIND[filtered], given)
        if known is None and not filtered:
            self._sizes.put(owner, row["episodes"])
        return row

    async def _answer(self, tx: Transaction, statement: Positional, given: Mapping[str, Any]) -> asyncpg.Record:
        row = await pg(tx).alone(statement.sql, *statement.values(given))
        if row is None:
            raise errors.Bug("the search answered nothing at all.")
        return row

    async def brief(
        self, tx: Transaction, owner: Scope, wanted: BlockRequest, *, found: SearchResult | None = None
    ) -> Briefing:
        """What is shown, in one statement where the search did not hold it; reads only, locks nothing."""
        held = found.held if found is not None else None
        shown = held.briefing(owner, wanted) if isinstance(held, Held) else None
        if shown is None:
            shown = await brief(tx, owner, wanted)
        return replace(
            shown,
            episodes=await encrypted_columns.open_episodes(self._vault, tx, owner, shown.episodes),
            facts=await encrypted_columns.open_facts(self._vault, tx, owner, shown.facts),
            former=await encrypted_columns.open_facts(self._vault, tx, owner, shown.former) if shown.former else (),
            blocks=await encrypted_columns.open_blocks(self._vault, tx, owner, shown.blocks),
            summary=None
            if shown.summary is None
            else (await encrypted_columns.open_summaries(self._vault, tx, owner, [shown.summary]))[0],
            profile=await encrypted_columns.open_profile(self._vault, tx, owner, shown.profile),
        )


def _long_hits(
    ids: Sequence[EpisodeId], frame: Frame, rows: Sequence[int], frequencies: Frequencies
) -> list[EpisodeId]:
    """The ids of long messages in rows of the result, numbered from 1; of many those most like the question."""
    places = np.array(rows) - 1
    if len(places) > MOST_LONG:
        worths = idf(frequencies.episodes, frequencies.having)
        value = frame.hits[places] @ worths / max(float(worths.sum()), 1.0) + np.nan_to_num(frame.similarity[places])
        places = places[np.argsort(-value, kind="stable")[:MOST_LONG]]
    return [ids[place] for place in places.tolist()]


def _parameters(owner: Scope, search: Search, keys: Sequence[int]) -> dict[str, Any]:  # Any: as the driver takes them
    given = {
        "namespace": owner.namespace,
        "user": owner.user_column,
        "vector": search.vector,
        "sentences": search.sentences and search.vector is not None,
        "embedder": None if search.embedder is None else search.embedder.key,
        "keys": list(keys),
        "hits": search.hits,
        "exact": search.exact_rows,
        "tails": list(search.tails),
        "fact_hits": search.facts,
        "past_facts": search.past,
        "outside": None if search.near is None else list(search.near),
        "along": search.along is not None,
        "unstored": search.unstored,
    }
    wanted = search.wanted
    if wanted.is_open and search.known_at is None:
        return given
    return given | {
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
    """Group by term, each with the given number of forms."""
    size = len(values) // ways
    return [values[place::size] for place in range(size)]
