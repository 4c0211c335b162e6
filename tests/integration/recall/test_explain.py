"""Why a block has what it has: every candidate is in the block or left out for the reason that is given."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.recall import Query, Recall, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.types import Episode, ExclusionReason, Fact, FactId, RecallExplanation, Scope
from aftermind.types.message import new_ids
from tests.support.resource_cleanup import closing
from tests.support.servers import Database
from tests.support.stored_turns import START, keep, said
from tests.support.waiting import PATIENCE_SECONDS

ALICE = Scope(user_id="alice", session_id="s1")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Stored texts with their sessions, options of a recall, and the reason that one text or fact is left out for."""

    texts: tuple[tuple[str, str], ...]
    options: dict[str, Any] = field(default_factory=dict)  # Any: options of a recall
    facts: tuple[tuple[str, int, timedelta | None], ...] = ()  # object, number of the source text, end
    left_out: str
    reason: ExclusionReason


CASES = {
    "filtered": Case(
        texts=(("I love pottery", "a"), ("Pottery is fun", "b")),
        options={"in_session": "b"},
        left_out="I love pottery",
        reason=ExclusionReason.FILTERED,
    ),
    "below the threshold": Case(
        texts=(("I love pottery and clay", "a"), ("The bus was late", "b")),
        options={"min_score": 0.5},
        left_out="The bus was late",
        reason=ExclusionReason.MIN_SCORE,
    ),
    "below the limit": Case(
        texts=(("I love pottery and clay", "a"), ("Some talk of clay", "b")),
        options={"limit": 1},
        left_out="Some talk of clay",
        reason=ExclusionReason.LIMIT,
    ),
    "like another one": Case(
        texts=(
            *((f"I love pottery and clay {word}", word) for word in ("today", "often", "again", "always")),
            ("Pottery class costs forty euros", "q"),
        ),
        options={"limit": 2, "diversity": 0.9},
        left_out="I love pottery and clay always",
        reason=ExclusionReason.SIMILAR,
    ),
    "no space": Case(
        texts=tuple((f"Pottery and clay, note {n}, with many more words than needed", f"s{n}") for n in range(8)),
        options={"token_budget": 80},
        left_out="Pottery and clay, note 0, with many more words than needed",
        reason=ExclusionReason.BUDGET,
    ),
    "the block has it as a fact": Case(
        texts=(("Pottery and clay are what I like", "a"),),
        options={"token_budget": 46},
        facts=(("pottery and clay", 0, None),),
        left_out="alice likes pottery and clay",
        reason=ExclusionReason.REPEATED,
    ),
    "not true any more": Case(
        texts=(("I like pottery and clay", "a"),),
        facts=(("pottery and clay", 0, timedelta(days=1)),),
        left_out="alice likes pottery and clay",
        reason=ExclusionReason.SUPERSEDED,
    ),
}


async def explained(database: Database, case: Case) -> RecallExplanation:
    episodes = [said(text, session=session, at=START) for text, session in case.texts]
    await keep(database.url, episodes)
    async with closing(PostgresDatabase(database.url)) as primary, primary.transaction() as tx:
        await PostgresStore().tombstones(tx, [ALICE.owner])
        await PostgresStore().add_facts(tx, [_fact(*each, episodes) for each in case.facts])
    async with closing(PostgresDatabase(database.url, session_settings=READ_SETTINGS)) as reading:
        search = PostgresSearch()
        settings = Settings(recall_budget_seconds=PATIENCE_SECONDS)
        vectors = QueryVectors(HashEmbedder(), budget_seconds=PATIENCE_SECONDS)
        routing = Routing(reading, (), search)
        async with closing(Recall(PostgresStore(), search, routing, vectors, settings=settings)) as recall:
            query = Query.checked("pottery and clay", ALICE, **case.options)
            found = await recall.explain(query)
            shown = await recall.recall(query)
    assert found.block.text == shown.text
    assert found.block.degraded is None
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_a_candidate_is_left_out_for_the_reason_given(database: Database, case: Case) -> None:
    found = await explained(database, case)

    excluded = {_text(each.match.item): each for each in found.excluded}
    assert excluded[case.left_out].reason is case.reason
    assert excluded[case.left_out].tokens > 0
    assert f"<td>{case.reason}</td>" in found._repr_html_()
    assert len(excluded) == len(found.excluded)
    assert excluded.keys().isdisjoint(_text(match.item) for match in found.block.matches)


UNLIKE = Case(
    texts=(
        ("Pottery and clay are what I like", "a"),
        *((f"The bus number {number} was late", f"s{number}") for number in range(19)),
    ),
    options={"limit": 5},
    facts=(("pottery and clay", 0, None),),
    left_out="The bus number 1 was late",
    reason=ExclusionReason.MIN_SCORE,
)

OTHER_SESSION = Case(
    texts=(("Pottery and clay", "a"), ("I love pottery", "b"), ("The bus was late", "b"), ("The train too", "b")),
    options={"in_session": "a"},
    left_out="The bus was late",
    reason=ExclusionReason.FILTERED,
)
NEWEST = Case(
    texts=OTHER_SESSION.texts,
    options={"mode": "recency", "limit": 1},
    left_out="Pottery and clay",
    reason=ExclusionReason.LIMIT,
)
NEWEST_OF_ONE_SESSION = replace(OTHER_SESSION, options={"mode": "recency", "in_session": "a"})
WHOLE = {
    "no space": CASES["no space"],
    "nothing in common": UNLIKE,
    "filtered": OTHER_SESSION,
    "newest": NEWEST,
    "newest of a session": NEWEST_OF_ONE_SESSION,
}


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE.keys())
async def test_every_turn_of_a_small_user_is_in_the_block_or_left_out(database: Database, case: Case) -> None:
    found = await explained(database, case)

    items = [match.item for match in (*found.block.matches, *(each.match for each in found.excluded))]
    turns = [item.content for item in items if isinstance(item, Episode)]
    assert sorted(turns) == sorted(text for text, _ in case.texts)
    reasons = {_text(each.match.item): each.reason for each in found.excluded}
    assert reasons[case.left_out] is case.reason
    scores = [each.match.score for each in found.excluded]
    assert scores == sorted(scores, reverse=True)


def _fact(value: str, source: int, end: timedelta | None, episodes: list[Episode]) -> Fact:
    return Fact(
        id=FactId(new_ids(1)[0]),
        scope=ALICE.owner,
        subject="alice",
        predicate="likes",
        object=value,
        recorded_at=START,
        valid_from=START,
        valid_to=None if end is None else START + end,
        sources=(episodes[source].id,),
    )


def _text(item: object) -> str:
    assert isinstance(item, Episode | Fact)
    return item.content if isinstance(item, Episode) else item.text
