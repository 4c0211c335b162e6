"""What of an episode is scored, whichever search reads it: as columns of a statement, and as a frame."""

import re
from collections.abc import Sequence

import asyncpg
import numpy as np
from numpy.typing import NDArray

from aftermind.db.positional_parameters import Positional
from aftermind.ranking import Frame, numbered
from aftermind.stores.search import CONTEXT, SENTENCES_OF
from aftermind.types.message import UNDONE

# What an episode must be to answer, where something filters.
FITS = """
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
OWNED = "e.namespace = :namespace AND e.user_id = :user"
# Turns that the ledger has accepted and no store job has committed, newest first; index `jobs_unstored`. They use the
# statement's snapshot, so that a turn that is stored concurrently is found exactly once.
UNSTORED = """
    FROM aftermind.jobs AS waiting
    WHERE waiting.namespace = :namespace AND waiting.user_id = :user AND waiting.raw IS NOT NULL
      AND waiting.kind = 'store' AND waiting.state IN ('queued', 'running', 'retrying')
    ORDER BY waiting.created_at DESC LIMIT CAST(:unstored AS bigint)
"""
# The question's vector if its embedder is the one of the stored vectors, else NULL: compared in the statement's own
# snapshot, so neither a cutover nor a replica that has not replayed it can mix vectors. A caller that names no embedder
# vouches for its vector.
VECTOR = """(SELECT CAST(:vector AS halfvec) FROM aftermind.meta
        WHERE key = 'active_embedder' AND value = coalesce(CAST(:embedder AS text), value))"""
EMBEDDERS = """
    (SELECT value FROM aftermind.meta WHERE key = 'active_embedder') AS active_embedder,
    (SELECT value FROM aftermind.meta WHERE key = 'standby_embedder') AS standby_embedder,
    (SELECT models FROM aftermind.ranking_models WHERE namespace = :namespace
     AND embedder = coalesce(CAST(:embedder AS text), '')) AS models"""

_EPOCH_SECONDS = 946_684_800.0  # of the first of January 2000, since when Postgres sends times
SHARED = ("ids", "sessions", "positions", "names", "said_at")  # of COLUMNS, with what is shown of an episode
# What either search answers of its rows, column by column, in the order of `nth`.
COLUMNS = """
    array_agg(id ORDER BY nth) AS ids, array_agg(session_id ORDER BY nth) AS sessions,
    array_agg(position ORDER BY nth) AS positions, array_agg(name ORDER BY nth) AS names,
    string_agg(timestamptz_send(occurred_at), '' ORDER BY nth) AS said_at,
    array_agg(cardinality(terms) ORDER BY nth) AS lengths, array_agg(similarity ORDER BY nth) AS similarities,
    array_agg(asking ORDER BY nth) AS asking, array_agg(fits ORDER BY nth) AS fits,
    array_agg(nth) FILTER (WHERE is_long AND fits) AS long_rows,
    (SELECT array_agg(place) FROM words) AS word_places, (SELECT array_agg(nth) FROM words) AS word_rows,
    (SELECT array_agg(nth) FROM sentences) AS sentence_rows,
    (SELECT array_agg(similarity) FROM sentences) AS sentence_similarities
"""


def scored(fits: str) -> str:
    """What an episode `e` is scored by, and whether it may answer."""
    return f"""e.id, e.session_id, e.position, e.name, e.occurred_at, e.terms,
        1 - (e.embedding <=> {VECTOR}) AS similarity,
        {fits} AND e.mark IS DISTINCT FROM '{UNDONE}' AS fits,
        right(rtrim(e.content), 1) IN ('?', '\uff1f', '\u061f') AS asking,
        e.passages IS NOT NULL AS is_long,
        CASE WHEN e.passages IS NULL THEN e.passage_embedding END AS sentence_vectors"""


def over_standby_vectors(statement: Positional) -> Positional:
    """The search over the vectors of the standby embedder."""
    sql = re.sub(r"\be\.((?:passage_)?embedding)\b", r"e.\1_standby", statement.sql)
    sql = sql.replace("key = 'active_embedder' AND", "key = 'standby_embedder' AND")
    return Positional(sql=sql, names=statement.names)


def words(rows: str) -> str:
    """The step `words`: which of the rows, by number, has which term of the question, by place."""
    return f"""words AS MATERIALIZED (
            SELECT place, nth FROM unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term(key, place)
            JOIN {rows} ON key = ANY(terms)
        )"""


def sentences(rows: str, *, where: str = "true") -> str:
    """The step `sentences`: the similarity of the best sentence of those rows that are nearest to the question."""
    return f"""sentences AS MATERIALIZED (
            SELECT nth, (SELECT max(NULLIF(1 - (sentence <=> {VECTOR}), 'NaN'))
                         FROM unnest(sentence_vectors) AS sentence) AS similarity
            FROM (SELECT nth, sentence_vectors FROM {rows} WHERE {where} AND CAST(:sentences AS boolean)
                  AND similarity < 'NaN'
                  ORDER BY similarity DESC LIMIT {SENTENCES_OF}) AS nearest
            WHERE sentence_vectors IS NOT NULL
        )"""


def to_frame(row: asyncpg.Record, keys: Sequence[int], ways: int, *, sentences: bool = False) -> Frame:
    """Convert the rows of either search. `keys` are the query's terms, each in `ways` forms in a row.

    If a row marks its hits, its other turns are neighbours; otherwise all may be matches.
    """
    similarity = np.array(row["similarities"] or (), dtype=np.float64)
    sentence_similarity = similarity.copy() if sentences else None
    if sentence_similarity is not None and row["sentence_rows"] is not None:
        sentence_similarity[np.array(row["sentence_rows"]) - 1] = row["sentence_similarities"]
    sessions: Sequence[str | None] = row["sessions"] or ()
    positions = np.array(row["positions"] or (), dtype=np.int64)
    fits = np.array(row["fits"] or (), dtype=np.bool_)
    if row["hit"] is not None:
        fits &= _within_reach(sessions, positions, np.array(row["hit"], dtype=np.bool_))
    hits = np.zeros((len(positions), len(keys)), dtype=np.bool_)
    if row["word_rows"] is not None:
        hits[np.array(row["word_rows"]) - 1, np.array(row["word_places"]) - 1] = True
    return Frame(
        session=sessions,
        position=positions,
        hits=any_form(hits, ways),
        length=np.array(row["lengths"] or (), dtype=np.int64),
        similarity=similarity,
        sentence_similarity=sentence_similarity,
        name=row["names"] or (),
        asking=np.array(row["asking"] or (), dtype=np.bool_),
        candidate=fits,
        said_at=np.frombuffer(row["said_at"] or b"", dtype=">i8") / 1e6 + _EPOCH_SECONDS,
    )


def any_form(hits: NDArray[np.bool_], ways: int) -> NDArray[np.bool_]:
    """Which terms were found, in whichever of their forms."""
    size = hits.shape[1] // ways
    found = hits[:, :size]
    for way in range(1, ways):
        found = found | hits[:, way * size : (way + 1) * size]
    return found


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
