"""The search of an owner who has little: all of it is read and scored, by one short plan and no index of words.

Looking for hits, for what stands around them, and for how many have each word takes a dozen steps, which cost more than
the rows of most people. What a block shows comes along, so that it takes no other trip.
"""

from dataclasses import dataclass, replace

import asyncpg

from aftermind.db.tenancy import entering
from aftermind.stores.postgres.briefing import BELIEVED, in_columns, parts, read
from aftermind.stores.postgres.frames import (
    COLUMNS,
    EMBEDDERS,
    FITS,
    OWNED,
    SHARED,
    UNSTORED,
    of_standby,
    scored,
    words,
)
from aftermind.stores.postgres.positional import Positional
from aftermind.stores.postgres.told import FOUND, told
from aftermind.stores.searching import Briefing, Wanted, worth_showing
from aftermind.types import Scope

MOST_WHOLE = 300  # episodes; of 100 a recall is a fifth quicker so, of 450 as quick, of 700 slower
EVERY_EPISODE = 10_000_000  # of an owner: for a search that must compare all
MOST_BYTES, MOST_FACTS = 65_536, 100  # of an owner whose texts come along: most blocks show twenty turns of them


# mine   all of the owner's episodes, or one too many: then nothing is answered but that
# sized  how many those are, and whether what is shown of them comes along
# words    which of them has which term of the question
# asked    each term with the number of the owner's episodes that have it
# sharing, told   facts by words, see `told`
def _whole(*, filtered: bool) -> Positional:
    return Positional.of(
        entering(f"""
        WITH mine AS MATERIALIZED (
            SELECT {scored(FITS if filtered else "true")}, e.agent_id, e.role, e.content, e.metadata, e.occurred_at,
                   e.remembered_at, e.mark, row_number() OVER () AS nth
            FROM aftermind.episodes e WHERE {OWNED} LIMIT CAST(:whole AS bigint) + 1
        ), sized AS MATERIALIZED (
            SELECT count(*) AS episodes, count(*) <= CAST(:whole AS bigint) AS little,
                   CAST(:along AS boolean) AND count(*) <= CAST(:whole AS bigint)
                   AND coalesce(sum(octet_length(content) + pg_column_size(metadata)), 0) <= {MOST_BYTES}
                   AND (SELECT count(*) FROM (SELECT FROM aftermind.facts WHERE namespace = :namespace
                        AND user_id = :user AND {BELIEVED} LIMIT {MOST_FACTS + 1}) AS f) <= {MOST_FACTS} AS held
            FROM mine
        ), {words("(SELECT nth, terms FROM mine, sized WHERE little) AS few")}, asked AS MATERIALIZED (
            SELECT key, place, (SELECT count(*) FROM words WHERE words.place = term.place) AS df
            FROM sized CROSS JOIN unnest(CAST(:keys AS bigint[])) WITH ORDINALITY AS term(key, place) WHERE little
        ), {told(filtered=filtered)}, scored AS (
            SELECT {COLUMNS}, {in_columns(without=SHARED, only="held")}
            FROM mine, sized WHERE little
        )
        SELECT scored.*, sized.held, sized.episodes, CAST(NULL AS boolean[]) AS hit,
               (SELECT array_agg(df ORDER BY place) FROM asked) AS frequencies, {FOUND} AS told,
               ARRAY(SELECT waiting.raw {UNSTORED}) AS unstored,
               {EMBEDDERS},
               {parts("true", only="held")}
        FROM sized, scored
        """)
    )


WHOLE = {filtered: _whole(filtered=filtered) for filtered in (False, True)}
WHOLE_STANDBY = {filtered: of_standby(statement) for filtered, statement in WHOLE.items()}


@dataclass(frozen=True, slots=True)
class Held:
    """What came along with the search: everything that a block may show, if it is asked for as was said then."""

    row: asyncpg.Record
    asked: Wanted

    def briefing(self, owner: Scope, wanted: Wanted) -> Briefing | None:
        """What is wanted of it; None where something else is."""
        if replace(wanted, ids=(), facts=()) != self.asked:
            return None
        found = read(owner, self.row, wanted)
        return replace(found, facts=worth_showing(found.facts, wanted))
