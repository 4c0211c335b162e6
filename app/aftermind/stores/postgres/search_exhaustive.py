"""Full-scan search for small users: all rows are read and scored, by one short plan without a word index.

A search for hits, their neighbours and the number of rows per word needs a dozen steps, which cost more than the rows
of most users. The block's content is included, so that no other round trip is needed.
"""

from dataclasses import dataclass, replace

import asyncpg

from aftermind.db.positional_parameters import Positional
from aftermind.db.row_level_security import ENTERING
from aftermind.stores.postgres.block_query import BELIEVED_SO_FAR, in_columns, parts, read, read_episodes
from aftermind.stores.postgres.fact_search import FOUND, fact_hits_cte
from aftermind.stores.postgres.rows import UNEXPIRED
from aftermind.stores.postgres.scoring_columns import (
    COLUMNS,
    EMBEDDERS,
    FITS,
    OWNED,
    SHARED,
    UNSTORED,
    over_standby_vectors,
    scored,
    sentences,
    words,
)
from aftermind.stores.search import BlockRequest, Briefing, former_of, worth_showing
from aftermind.types import Scope

MOST_WHOLE = 1_000  # episodes; of 550 to 680 a recall is twice as quick so as by a search for hits
EVERY_EPISODE = 10_000_000  # of an owner: for a search that must compare all
MOST_BYTES, MOST_FACTS = 65_536, 100  # of an owner whose texts come along: most blocks show twenty turns of them


# `mine`: all of the owner's episodes, or one more than the limit: then only this is returned. `sized`: their number,
# and whether the block's content is included. `words`: the terms of the query in each of them, `sentences`: the best
# sentence of the nearest. `asked`: each term with the number of the owner's episodes that have it. `sharing`, `told`:
# facts by words, see `fact_hits_cte`.
def _statement(*, filtered: bool) -> Positional:
    return Positional.of(
        ENTERING.format(
            asked=f"""
        WITH mine AS MATERIALIZED (
            SELECT {scored(FITS if filtered else "true")}, e.agent_id, e.role, e.content, e.metadata,
                   e.remembered_at, e.mark, row_number() OVER () AS nth
            FROM aftermind.episodes e WHERE {OWNED} AND {UNEXPIRED.format(of="e.")} LIMIT CAST(:whole AS bigint) + 1
        ), sized AS MATERIALIZED (
            SELECT count(*) AS episodes, count(*) <= CAST(:whole AS bigint) AS little,
                   CAST(:along AS boolean) AND count(*) <= CAST(:whole AS bigint)
                   AND coalesce(sum(octet_length(content) + pg_column_size(metadata)), 0) <= {MOST_BYTES}
                   AND (SELECT count(*) FROM (SELECT FROM aftermind.facts WHERE namespace = :namespace
                        AND user_id = :user AND {BELIEVED_SO_FAR} LIMIT {MOST_FACTS + 1}) AS f) <= {MOST_FACTS} AS held
            FROM mine
        ), {words("(SELECT nth, terms FROM mine, sized WHERE little) AS few")}, {
                sentences("mine, sized", where="little")
            }, asked AS MATERIALIZED (
            SELECT key, place, (SELECT count(*) FROM words WHERE words.place = term.place) AS df
            FROM sized CROSS JOIN unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term(key, place) WHERE little
        ), {fact_hits_cte(filtered=filtered)}, scored AS (
            SELECT {COLUMNS}, {in_columns(without=SHARED, only="held")}
            FROM mine, sized WHERE little
        )
        SELECT scored.*, sized.held, sized.episodes, CAST(NULL AS boolean[]) AS hit,
               (SELECT array_agg(df ORDER BY place) FROM asked) AS frequencies, {FOUND} AS told,
               ARRAY(SELECT waiting.raw {UNSTORED}) AS unstored,
               {EMBEDDERS},
               {parts("true", only="held")}
        FROM sized, scored
        """
        )
    )


STATEMENTS = {filtered: _statement(filtered=filtered) for filtered in (False, True)}
STANDBY_STATEMENTS = {filtered: over_standby_vectors(statement) for filtered, statement in STATEMENTS.items()}


@dataclass(frozen=True, slots=True)
class Held:
    """Content that was read with the search: everything that a block may show, if the request has not changed since."""

    row: asyncpg.Record
    asked: BlockRequest

    def briefing(self, owner: Scope, wanted: BlockRequest) -> Briefing | None:
        """What is wanted of it; None where something else is."""
        asked = replace(wanted, ids=(), facts=())
        if asked == BlockRequest(at=self.asked.at):
            return Briefing(episodes=read_episodes(owner, self.row, wanted.ids))
        if asked != self.asked:
            return None
        found = read(owner, self.row, wanted)
        return replace(found, facts=worth_showing(found.facts, wanted), former=former_of(found.former, wanted))
