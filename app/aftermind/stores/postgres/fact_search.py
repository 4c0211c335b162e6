"""Facts that share words with a question: a part of the statement of `search`, which saves a trip."""

from uuid import UUID

import orjson

from aftermind.stores.search import FactHit
from aftermind.types import EpisodeId, FactId
from aftermind.types.fact import USER

MAX_FACTS = 50  # that share the rarest words with the question: beyond 20 recall@10 is the same
MAX_FACTS_PER_TERM = 500  # rows of one term that are read, as for episodes

_BELIEVED = """
    f.superseded_at IS NULL
    AND (f.valid_from IS NULL OR f.valid_from <= now())
    AND (f.valid_to IS NULL OR f.valid_to > now() OR CAST(:past_facts AS boolean))
"""
_BELIEVED_THEN = """
    f.recorded_at <= coalesce(CAST(:known_at AS timestamptz), 'infinity')
    AND (f.superseded_at IS NULL OR f.superseded_at > CAST(:known_at AS timestamptz))
    AND (f.valid_from IS NULL OR f.valid_from <= coalesce(CAST(:known_at AS timestamptz), now()))
    AND (f.valid_to IS NULL OR f.valid_to > coalesce(CAST(:known_at AS timestamptz), now())
         OR CAST(:past_facts AS boolean))
"""
_OWNED = "f.namespace = :namespace AND f.user_id = :user"

FOUND = "(SELECT json_agg(fact)::text FROM told AS fact)"


def fact_hits_cte(*, filtered: bool) -> str:
    """The steps `sharing` and `fact_hits_cte`, after `asked` and `sized`.

    `sharing`: current facts, and with `past_facts` former ones, with their terms (index facts_terms; OFFSET 0 as for
    episodes). `told`: the best of them by the rarity of their shared terms, with their source episodes.
    """
    return f"""
        sharing AS MATERIALIZED (
            SELECT asked.place, asked.df, f.id, f.recorded_at, count(*) OVER (PARTITION BY asked.place) AS facts
            FROM asked CROSS JOIN LATERAL (
                SELECT f.id, f.recorded_at FROM (
                    SELECT * FROM aftermind.searchable_facts WHERE terms @> ARRAY[asked.key] OFFSET 0) AS f
                WHERE {_OWNED} AND {_BELIEVED_THEN if filtered else _BELIEVED} LIMIT {MAX_FACTS_PER_TERM}) AS f
            WHERE CAST(:fact_hits AS boolean)
        ), told AS MATERIALIZED (
            SELECT best.id, places, counts, f.confidence, f.subject,
                   f.subject = '{USER}' AND f.predicate = 'name' AS names_user, (
                SELECT json_agg(episode_id) FROM aftermind.fact_sources AS s
                WHERE s.namespace = :namespace AND s.user_id = :user AND s.fact_id = best.id) AS sources
            FROM (
                SELECT id, array_agg(place ORDER BY place) AS places, array_agg(facts ORDER BY place) AS counts,
                       sum(ln(1 + greatest(episodes, {MAX_FACTS_PER_TERM}) / (df + facts + 0.5))) AS worth,
                       max(recorded_at) AS recorded_at
                FROM sharing, sized GROUP BY id ORDER BY worth DESC, recorded_at DESC, id DESC LIMIT {MAX_FACTS}
            ) AS best JOIN aftermind.facts AS f ON {_OWNED} AND f.id = best.id
            ORDER BY worth DESC, best.recorded_at DESC, best.id DESC
        )"""


def parse_hits(sent: str | None, *, terms: int) -> list[FactHit]:
    """Parse the result; `counts` is the number of facts with each term, in any of its forms."""
    found = []
    for row in [] if sent is None else orjson.loads(sent):
        having = {(place - 1) % terms: count for place, count in zip(row["places"], row["counts"], strict=True)}
        hit = FactHit(
            id=FactId(UUID(row["id"])),
            places=list(having),
            having=list(having.values()),
            confidence=row["confidence"],
            subject=row["subject"],
            names_user=row["names_user"],
            sources=[EpisodeId(UUID(each)) for each in row["sources"] or ()],
        )
        found.append(hit)
    return found
