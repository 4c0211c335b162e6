"""What of an episode is scored, whichever search reads it: as columns of a statement, and as a frame."""

from collections.abc import Sequence

import asyncpg
import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import Frame, numbered
from aftermind.stores.searching import CONTEXT
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
VECTOR = "CAST(:vector AS halfvec)"

SHARED = ("ids", "sessions", "positions", "names")  # of COLUMNS, with what is shown of an episode
# What either search answers of its rows, column by column.
COLUMNS = """
    array_agg(id) AS ids, array_agg(session_id) AS sessions, array_agg(position) AS positions, array_agg(name) AS names,
    array_agg(cardinality(terms)) AS lengths, string_agg(array_send(terms), '') AS terms,
    array_agg(similarity) AS similarities, array_agg(asking) AS asking, array_agg(fits) AS fits
"""


def scored(fits: str) -> str:
    """What an episode `e` is scored by, and whether it may answer."""
    return f"""e.id, e.session_id, e.position, e.name, e.terms, 1 - (e.embedding <=> {VECTOR}) AS similarity,
        {fits} AND e.mark IS DISTINCT FROM '{UNDONE}' AS fits,
        right(rtrim(e.content), 1) IN ('?', '\uff1f', '\u061f') AS asking"""


def frame_of(row: asyncpg.Record, keys: Sequence[int], ways: int) -> Frame:
    """The rows of either search. `keys` are the question's terms, each in so many `ways` one after the other.

    Where a row tells which of its turns were hits, the others are there for their neighbours; else all may answer.
    """
    lengths = np.array(row["lengths"] or (), dtype=np.int64)
    similarity = np.array(row["similarities"] or (), dtype=np.float64)
    sessions: Sequence[str | None] = row["sessions"] or ()
    positions = np.array(row["positions"] or (), dtype=np.int64)
    fits = np.array(row["fits"] or (), dtype=np.bool_)
    if row["hit"] is not None:
        fits &= _within_reach(sessions, positions, np.array(row["hit"], dtype=np.bool_))
    return Frame(
        session=sessions,
        position=positions,
        hits=_any_way(_hits(bytes(row["terms"] or b""), lengths, keys), ways),
        length=lengths,
        similarity=similarity,
        name=row["names"] or (),
        asking=np.array(row["asking"] or (), dtype=np.bool_),
        candidate=fits,
    )


def _any_way(hits: NDArray[np.bool_], ways: int) -> NDArray[np.bool_]:
    size = hits.shape[1] // ways
    found = hits[:, :size]
    for way in range(1, ways):
        found = found | hits[:, way * size : (way + 1) * size]
    return found


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
