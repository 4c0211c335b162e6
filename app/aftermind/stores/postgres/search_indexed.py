"""Indexed search for large users: the best matches by words and by vector, with their neighbours."""

from aftermind.db.positional_parameters import Positional
from aftermind.db.row_level_security import ENTERING
from aftermind.stores.postgres.fact_search import FOUND, fact_hits_cte
from aftermind.stores.postgres.rows import UNEXPIRED
from aftermind.stores.postgres.scoring_columns import (
    COLUMNS,
    EMBEDDERS,
    FITS,
    OWNED,
    UNSTORED,
    VECTOR,
    scored,
    sentences,
    words,
)
from aftermind.stores.search import CONTEXT

# How wide an index is walked (hnsw.ef_search): a hundredth of the owner's episodes, within these. Of 10,000 vectors
# 200 find 0.993 of the true ten, in 0.4 of the time that comparing each takes; of 100,000 0.962, and 500 find 0.987.
NARROWEST, WIDEST = 200, 500
MOST_COUNTED = 500  # rows of one term that are counted: beyond it the word has little weight, and counting takes long
MOST_LONG = 500  # messages, the newest, whose passages are compared: a long one has no place in the vector index
MOST_READ = 1_000  # rows that the rarest terms of a question lead to, together; the others only add to their score

# Owners with up to this many episodes get twice the hits of each kind. With 550 episodes blocks of 1,000 tokens hold
# 0.004 more of the evidence; with 10,000 a recall would take a fifth longer.
TWICE_UNTIL = 2_000
_HITS = f"(SELECT CAST(:hits AS bigint) * CASE WHEN episodes <= {TWICE_UNTIL} THEN 2 ELSE 1 END FROM sized)"

# The same conditions for an index walk over vectors: as functions they are evaluated during the walk; otherwise the
# planner, which assumes an average owner, would read and sort all rows of a large owner.
_OWNED_UNINDEXED = "texteq(e.namespace, :namespace) AND texteq(e.user_id, :user)"
# OFFSET 0: by the terms first, for the same reason; the owner is checked all the same, for keys that collide.
_HAVING = "SELECT * FROM aftermind.searchable_episodes WHERE terms @> ARRAY[{key}] OFFSET 0"
_ALONE = "CAST(:outside AS uuid[]) IS NULL"  # no external index has named candidates
# `=` finds nothing for the episodes without a session, and IS NOT DISTINCT FROM cannot use an index.
_SAME_SESSION = (("e.session_id = {of}", "{of} IS NOT NULL"), ("e.session_id IS NULL", "{of} IS NULL"))


def _neighbour(of: str, *, before: bool) -> str:
    """The farthest of the next few places on one side; index `episodes_session`, index-only."""
    compare, order, pick = ("<", "DESC", "min") if before else (">", "ASC", "max")
    sides = " UNION ALL ".join(
        f"""(SELECT e.position FROM aftermind.episodes e
             WHERE {OWNED} AND {same.format(of=of + ".session_id")} AND {guard.format(of=of + ".session_id")}
               AND e.position {compare} {of}.position
             ORDER BY e.position {order} LIMIT {CONTEXT})"""
        for same, guard in _SAME_SESSION
    )
    return f"coalesce((SELECT {pick}(position) FROM ({sides}) AS beside), {of}.position)"


def _span_rows(fits: str) -> str:
    """Everything inside the spans; OFFSET 0 keeps the planner from turning many small range scans into one big one."""
    sides = " UNION ALL ".join(
        f"""(SELECT {scored(fits)} FROM aftermind.episodes e
             WHERE {OWNED} AND {same.format(of="span.session_id")} AND {guard.format(of="span.session_id")}
               AND e.position >= lower(span.places) AND e.position < upper(span.places)
               AND {UNEXPIRED.format(of="e.")} OFFSET 0)"""
        for same, guard in _SAME_SESSION
    )
    return f"SELECT found.* FROM spans AS span CROSS JOIN LATERAL ({sides}) AS found"


# ceiling   where scanning changes to an index walk
# sized     number of the owner's episodes, as far as it matters: a vector index never pays off below `exact_rows`;
# beyond it, n rows compared (0.4 us each) and a walk that meets a row of the owner every total/n steps (8 us a
# step, 50 wanted) are equal at n*n = 1,000 * total. Both are read before a walk, which uses their settings
# asked     each term with the owner's episodes that have it (index episodes_terms), and their number
# `telling` the rarest terms, as many as lead to MOST_READ rows
# `said`    the best by words;  near  the best by vector: scanned, or by episodes_embedding; long ones by a passage
#           (episodes_passages), or by ids that an external index has named (the primary key)
# spans     the positions around the hits, overlapping ones joined
# `sharing`, `told`   facts by words, see `fact_hits_cte`
def _find(*, filtered: bool) -> Positional:
    """The search; where nothing filters, the filters are left out of it, for they cost time in being compared with."""
    fits = FITS if filtered else "true"
    seen = "false" if filtered else f"df < {MOST_COUNTED}"  # all rows of the term, when they were counted
    return Positional.of(
        ENTERING.format(
            asked=f"""
        WITH ceiling AS MATERIALIZED (
            SELECT CASE WHEN coalesce((SELECT index_state FROM aftermind.users AS e WHERE {OWNED}), 0) < 2
                   THEN 1000000000
                   ELSE greatest(CAST(:exact AS bigint), sqrt(1000 * greatest(reltuples, 0)))::bigint
                        * {10 if filtered else 1} END AS most,
                   set_config('hnsw.iterative_scan', 'strict_order', true) AS further
            FROM pg_class WHERE oid = 'aftermind.episodes'::regclass
        ), sized AS MATERIALIZED (
            SELECT episodes, set_config('hnsw.ef_search',
                   least(greatest(episodes / 100, {NARROWEST}), {WIDEST})::text, true) AS walk
            FROM coalesce(CAST(:episodes AS bigint), (SELECT count(*) FROM (
                SELECT FROM aftermind.episodes e WHERE {OWNED}
                LIMIT (SELECT greatest(most + 1, {100 * WIDEST}) FROM ceiling)) AS counted)) AS episodes
        ), asked AS MATERIALIZED (
            SELECT key, place, ids, positions, coalesce(cardinality(ids), 0)::bigint AS df
            FROM unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term(key, place) CROSS JOIN LATERAL (
                SELECT array_agg(e.id) AS ids, array_agg(e.position) AS positions FROM (
                    SELECT e.id, e.position FROM ({_HAVING.format(key="key")}) AS e
                    WHERE {OWNED} LIMIT {MOST_COUNTED}) AS e) AS those
        ), telling AS MATERIALIZED (
            SELECT key, ids, positions, df, (ln(1 + greatest(episodes - df, 0) / (df + 0.5)))::float8 AS idf
            FROM (SELECT *, sum(df) OVER (ORDER BY df, place) AS upto FROM asked WHERE df > 0) AS rarest, sized
            WHERE upto <= {MOST_READ} OR upto = df
        ), said AS MATERIALIZED (
            SELECT e.id, e.session_id, e.position FROM (
                SELECT id, position, sum(idf) AS total FROM (
                    SELECT unnest(ids) AS id, unnest(positions) AS position, idf FROM telling WHERE {seen}
                    UNION ALL SELECT e.id, e.position, idf FROM telling CROSS JOIN LATERAL (
                        SELECT e.id, e.position FROM ({_HAVING.format(key="telling.key")}) AS e
                        WHERE {OWNED} AND {fits} LIMIT {MOST_READ}) AS e WHERE NOT ({seen})) AS those
                GROUP BY id, position ORDER BY total DESC, position DESC LIMIT {_HITS}) AS best
            JOIN aftermind.episodes AS e ON {OWNED} AND e.id = best.id
        ), near AS MATERIALIZED (
            SELECT id, session_id, position, distance FROM ((
                SELECT id, session_id, position, distance FROM (
                    SELECT e.id, e.session_id, e.position, e.embedding <=> {VECTOR} AS distance
                    FROM aftermind.episodes e
                    WHERE {OWNED} AND {fits} AND e.embedding IS NOT NULL OFFSET 0) AS compared
                WHERE {VECTOR} IS NOT NULL AND (SELECT episodes FROM sized) <= (SELECT most FROM ceiling) AND {_ALONE}
                ORDER BY distance LIMIT {_HITS}
            ) UNION ALL (
                SELECT e.id, e.session_id, e.position, e.embedding <=> {VECTOR} AS distance
                FROM aftermind.episodes e
                WHERE {OWNED} AND e.id = ANY(CAST(:outside AS uuid[])) AND {fits} AND e.embedding IS NOT NULL
            ) UNION ALL (
                SELECT e.id, e.session_id, e.position, e.embedding <=> {VECTOR} AS distance
                FROM aftermind.searchable_episodes e
                WHERE {_OWNED_UNINDEXED} AND e.indexed AND {fits}
                  AND {VECTOR} IS NOT NULL AND (SELECT episodes FROM sized) > (SELECT most FROM ceiling) AND {_ALONE}
                ORDER BY e.embedding <=> {VECTOR} LIMIT {_HITS}
            ) UNION ALL (
                SELECT id, session_id, position, distance FROM (
                    SELECT e.id, e.session_id, e.position, (
                        SELECT min(passage <=> {VECTOR}) FROM unnest(e.passage_embedding) AS passage) AS distance
                    FROM (SELECT e.id, e.session_id, e.position, e.passage_embedding FROM aftermind.episodes e
                          WHERE {OWNED} AND {fits} AND e.passages IS NOT NULL
                          ORDER BY e.position DESC LIMIT {MOST_LONG}) AS e WHERE {VECTOR} IS NOT NULL) AS compared
                WHERE distance < 'NaN' ORDER BY distance LIMIT {_HITS}
            )) AS nearest
        ), hits AS MATERIALIZED (
            SELECT id, session_id, position FROM said UNION SELECT id, session_id, position FROM near
        ), spots AS (
            SELECT session_id, position FROM hits
            UNION SELECT tail, (SELECT max(e.position) FROM aftermind.episodes e
                                WHERE {OWNED} AND e.session_id IS NOT DISTINCT FROM tail)
            FROM (SELECT unnest(CAST(:tails AS text[])) AS tail
                  UNION SELECT session_id FROM (SELECT waiting.session_id {UNSTORED}) AS of_waiting) AS tails
        ), spans AS MATERIALIZED (
            SELECT session_id, unnest(range_agg(int8range(
                {_neighbour("spot", before=True)}, {_neighbour("spot", before=False)}, '[]'))) AS places
            FROM spots AS spot WHERE position IS NOT NULL GROUP BY session_id
        ), around AS MATERIALIZED (
            SELECT *, row_number() OVER () AS nth FROM ({_span_rows(fits)}) AS rows
        ), {words("around")}, {sentences("around")}, {fact_hits_cte(filtered=filtered)}
        SELECT {COLUMNS}, array_agg(id IN (SELECT id FROM hits)) AS hit,
               (SELECT episodes FROM sized) AS episodes,
               (SELECT array_agg(df ORDER BY place) FROM asked) AS frequencies, {FOUND} AS told,
               ARRAY(SELECT waiting.raw {UNSTORED}) AS unstored,
               {EMBEDDERS}
        FROM around
        """
        )
    )


FIND = {filtered: _find(filtered=filtered) for filtered in (False, True)}
