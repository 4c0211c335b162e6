"""Passages of the long messages among what a search found, compared with its question.

A separate statement after the search: users without long messages never need it.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import orjson
from numpy.typing import NDArray

from aftermind.db.database_protocol import Transaction
from aftermind.db.positional_parameters import Positional
from aftermind.db.postgres_transaction import pg
from aftermind.db.row_level_security import ENTERING
from aftermind.ranking import ComparedPassages
from aftermind.ranking.passages import between
from aftermind.stores.postgres.scoring_columns import OWNED, VECTOR, any_form, over_standby_vectors
from aftermind.types import EpisodeId

# By the primary key. `words`: pairs of a term's place in the question and its positions in `passage_terms`.
_STATEMENT = Positional.of(
    ENTERING.format(
        asked=f"""
    SELECT json_agg(found)::text AS passages FROM (
        SELECT e.id, e.passages AS borders, array_positions(e.passage_terms, 0) AS ends, (
                   SELECT json_agg(json_build_array(place, array_positions(e.passage_terms, key)))
                   FROM unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term (key, place)
                   WHERE key = ANY(e.terms)) AS words, (
                   SELECT json_agg(NULLIF(1 - (made.vector <=> {VECTOR}), 'NaN') ORDER BY made.place)
                   FROM unnest(e.passage_embedding) WITH ORDINALITY AS made (vector, place)) AS similarities
        FROM aftermind.episodes e WHERE {OWNED} AND e.id = ANY(CAST(:ids AS uuid[]))
    ) AS found
    """
    )
)
_STANDBY_STATEMENT = over_standby_vectors(_STATEMENT)
Json = dict[str, Any]  # Any: one row as Postgres writes it


async def compare(
    tx: Transaction, ids: Sequence[EpisodeId], given: Mapping[str, Any], *, ways: int, standby: bool = False
) -> dict[EpisodeId, ComparedPassages]:  # Any: as the driver takes them
    """The passages of each of the episodes; `given` are the parameters of the search, with terms in `ways` forms.

    One round trip; reads only, locks nothing.
    """
    statement = _STANDBY_STATEMENT if standby else _STATEMENT
    row = await pg(tx).alone(statement.sql, *statement.values({**given, "ids": list(ids)}))
    if row is None or row["passages"] is None:
        return {}
    return {EpisodeId(UUID(each["id"])): _compared(each, ways, len(given["keys"])) for each in orjson.loads(row[0])}


def _compared(row: Json, ways: int, keys: int) -> ComparedPassages:
    ends = np.array(row["ends"], dtype=np.int64)
    hits = np.zeros((len(ends), keys), dtype=np.bool_)
    for place, positions in row["words"] or ():
        hits[np.searchsorted(ends, positions), place - 1] = True
    return ComparedPassages(
        passages=between(row["borders"]),
        hits=any_form(hits, ways),
        length=np.diff(ends, prepend=0) - 1,
        similarity=_similarities(row["similarities"], len(ends)),
    )


def _similarities(found: Sequence[float | None] | None, passages: int) -> NDArray[np.float64]:
    """NaN where there are none yet, or not those of these passages."""
    if found is None or len(found) != passages:
        return np.full(passages, np.nan)
    return np.array(found, dtype=np.float64)
