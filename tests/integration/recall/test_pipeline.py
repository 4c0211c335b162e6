"""What a recall answers, over a real store: kinds, modes, times, filters, and what happens when a part is slow."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.protocols import Embedder, Vectors
from aftermind.recall import Query, Recall, Reranker, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.types import Block, Episode, Fact, FactId, Match, Scope, ServedBy, Trait
from aftermind.types.message import new_ids
from tests.support.cpu_time import callbacks, slowness
from tests.support.resource_cleanup import closing
from tests.support.servers import Database
from tests.support.stored_turns import START, keep, said

ALICE = Scope(user_id="alice", session_id="s1")
Open = Callable[..., Recall]


@pytest.fixture
async def opened(database: Database) -> AsyncIterator[Open]:
    reading = PostgresDatabase(database.url, session_settings=READ_SETTINGS)
    made: list[Recall] = []

    def open_recall(
        embedder: Embedder | None = None, *, reranker: Reranker | None = None, budget_seconds: float = 30.0
    ) -> Recall:
        search = PostgresSearch()
        settings = Settings(recall_budget_seconds=budget_seconds)
        vectors = QueryVectors(embedder or HashEmbedder(), budget_seconds=0.05)
        routing = Routing(reading, (), search)
        recall = Recall(PostgresStore(), search, routing, vectors, settings=settings, reranker=reranker)
        made.append(recall)
        return recall

    yield open_recall
    for recall in made:
        await recall.close()
    await reading.close()


@pytest.fixture
def recall(opened: Open) -> Recall:
    return opened()


def asked(text: str, **options: Any) -> Query:  # Any: whatever Query.checked takes
    return Query.checked(text, options.pop("scope", ALICE), **options)


def contents(matches: Sequence[Match]) -> list[str]:
    return [match.item.content for match in matches if isinstance(match.item, Episode)]


async def add_facts(database: Database, *facts: Fact) -> None:
    async with closing(PostgresDatabase(database.url)) as primary, primary.transaction() as tx:
        await PostgresStore().tombstones(tx, [ALICE.owner])
        await PostgresStore().add_facts(tx, facts)


def fact(value: str, **options: Any) -> Fact:  # Any: fields of a fact
    known = Fact(
        id=FactId(new_ids(1)[0]),
        scope=ALICE.owner,
        subject="alice",
        predicate="lives_in",
        object=value,
        recorded_at=START,
    )
    return replace(known, **options)


async def test_every_match_tells_its_scores_and_ranks(database: Database, recall: Recall) -> None:
    await keep(database.url, [said("I love pottery"), said("The bus was late"), said("Pottery is on Thursdays")])

    found = await recall.scored(asked("pottery on Thursdays"))

    assert contents(found)[0] == "Pottery is on Thursdays"
    assert [match.rank for match in found] == [1, 2, 3]
    assert found[0].lexical_score == 1.0
    assert found[0].lexical_rank == 1
    assert found[0].vector_rank == 1
    assert found[2].lexical_rank is None
    assert all(0 <= match.score <= 1 for match in found)


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "vector"])
async def test_each_mode_finds_what_it_looks_for(database: Database, recall: Recall, mode: str) -> None:
    await keep(database.url, [said(f"small talk {n}", session=f"x{n}") for n in range(20)] + [said("I keep bees")])

    assert contents(await recall.scored(asked("bees", mode=mode)))[0] == "I keep bees"


async def test_recency_gives_the_newest_first(database: Database, recall: Recall) -> None:
    await keep(database.url, [said(f"turn {n}") for n in range(10)])

    assert contents(await recall.scored(asked("", limit=3))) == ["turn 9", "turn 8", "turn 7"]


async def test_a_superseded_fact_is_not_shown_as_current(database: Database, recall: Recall) -> None:
    moved = START + timedelta(days=10)
    await add_facts(
        database,
        fact("Tokyo", valid_from=START, valid_to=moved, superseded_at=moved),
        fact("Paris", valid_from=moved, recorded_at=moved),
    )

    now = await recall.recall(asked("Where does alice live?"))
    then = await recall.recall(asked("Where does alice live?", known_at=START + timedelta(days=5)))

    assert "Paris" in now.text
    assert "Tokyo" not in now.text
    assert "Tokyo" in then.text
    assert "Paris" not in then.text


async def test_what_was_remembered_later_was_not_known_then(database: Database, recall: Recall) -> None:
    await keep(database.url, [said("tea is fine", at=START), said("tea is awful", at=START + timedelta(days=9))])

    found = await recall.scored(asked("tea", known_at=START + timedelta(days=1)))

    assert contents(found) == ["tea is fine"]


async def test_facts_blocks_and_episodes_share_one_budget(database: Database, recall: Recall) -> None:
    await keep(database.url, [said(f"I told you about Oslo, part {n}, at some length") for n in range(40)])
    await add_facts(database, fact("Oslo", valid_from=datetime(2024, 3, 1, tzinfo=START.tzinfo)))
    async with closing(PostgresDatabase(database.url)) as primary:
        block = Block(scope=ALICE.owner, name="human", content="Prefers short answers.", version=1, updated_at=START)
        async with primary.transaction() as tx:
            await PostgresStore().put_block(tx, block, expected_version=0)

    shown = await recall.recall(asked("Where in Oslo does alice live?", token_budget=300))

    assert shown.tokens_used <= 300
    assert "Prefers short answers." in shown.text
    assert "alice lives in Oslo (since 2024-03-01)" in shown.text
    assert any(isinstance(match.item, Episode) for match in shown.matches)
    assert shown.chunks_included < shown.chunks_available


async def test_a_profile_that_has_not_changed_since_is_that_of_then(database: Database, recall: Recall) -> None:
    async with closing(PostgresDatabase(database.url)) as primary, primary.transaction() as tx:
        await PostgresStore().merge_profile(tx, ALICE.owner, {"tone": Trait(value="dry")}, at=START)

    before = await recall.recall(asked("tone", known_at=START - timedelta(days=1)))
    after = await recall.recall(asked("tone", known_at=START + timedelta(days=1)))

    assert before.profile is None
    assert after.profile is not None
    assert after.profile.traits["tone"].value == "dry"


async def test_only_the_kinds_asked_for_are_loaded(database: Database, recall: Recall) -> None:
    await keep(database.url, [said("I live in Oslo")])
    await add_facts(database, fact("Oslo"))

    facts_only = await recall.recall(asked("Oslo", load=["facts"]))
    history_only = await recall.recall(asked("Oslo", load=["history"]))

    assert [type(match.item) for match in facts_only.matches] == [Fact]
    assert [type(match.item) for match in history_only.matches] == [Episode]


async def test_a_bar_keeps_weak_matches_out(database: Database, recall: Recall) -> None:
    await keep(database.url, [said("pottery class", session="a"), said("a bus", session="b")])

    assert contents(await recall.scored(asked("pottery class", min_score=0.5))) == ["pottery class"]


async def test_scores_include_unlikely_matches_that_no_block_shows(database: Database, recall: Recall) -> None:
    others = [said(f"bus number {number} was late") for number in range(600)]
    await keep(database.url, [said("pottery class on Thursday evening"), *others])
    query = asked("pottery class on Thursday evening", mode="vector", limit=10, load=["history"])

    scored = await recall.scored(query)
    shown = (await recall.recall(query)).matches

    assert len(scored) == 10
    assert len(shown) < 10
    assert contents(scored)[0] == contents(shown)[0] == "pottery class on Thursday evening"


async def test_diversity_prefers_something_else_to_the_same_again(database: Database, recall: Recall) -> None:
    same = [said("I love pottery and clay", session=f"p{n}") for n in range(5)]
    await keep(database.url, [*same, said("Pottery class costs forty euros", session="q")])

    found = await recall.scored(asked("pottery and clay", limit=2, diversity=0.7))

    assert sorted(contents(found)) == ["I love pottery and clay", "Pottery class costs forty euros"]


async def test_reading_again_and_again_changes_nothing(database: Database, recall: Recall) -> None:
    await keep(database.url, [said(f"I mentioned pottery {n} times", session=f"s{n}") for n in range(9)])
    before = contents(await recall.scored(asked("pottery")))

    for _ in range(10):
        await recall.scored(asked("pottery 7 times"))

    assert contents(await recall.scored(asked("pottery"))) == before


async def test_a_reranker_has_the_last_word_and_may_fail(database: Database, opened: Open) -> None:
    await keep(database.url, [said("pottery one"), said("pottery two"), said("pottery three")])

    async def longest(_: str, texts: Sequence[str]) -> Sequence[float]:
        return [float(len(text)) for text in texts]

    async def broken(_: str, texts: Sequence[str]) -> Sequence[float]:
        raise RuntimeError("no GPU")

    ordered = await opened(reranker=longest).scored(asked("pottery one", rerank=True))
    failed = await opened(reranker=broken).recall(asked("pottery one", rerank=True))

    assert contents(ordered)[0] == "pottery three"
    assert ordered[0].rerank_score == 13
    assert failed.degraded is not None
    assert "reranker" in failed.degraded
    assert len(failed.matches) == 3
    with pytest.raises(errors.InvalidQuery, match="there is no reranker"):
        await opened().recall(asked("pottery one", rerank=True))


async def test_a_slow_reranker_costs_its_order_and_nothing_else(database: Database, opened: Open) -> None:
    await keep(database.url, [said("pottery one"), said("pottery two")])

    async def endless(_: str, texts: Sequence[str]) -> Sequence[float]:
        await asyncio.Event().wait()
        return [0.0 for _ in texts]

    block = await opened(reranker=endless, budget_seconds=1.0).recall(asked("pottery", rerank=True))

    assert len(block.matches) == 2
    assert block.degraded is not None
    assert block.served_by is ServedBy.PRIMARY


class Sleepy:
    """An embedder that takes a minute."""

    name, dimension, inline, max_batch, max_batch_tokens = "sleepy", 384, False, 10, 1_000

    async def embed(self, texts: Sequence[str]) -> Vectors:
        await asyncio.Event().wait()
        return np.zeros((len(texts), 384), dtype=np.float32)


async def test_a_slow_provider_leaves_words_and_says_so(database: Database, opened: Open) -> None:
    await keep(database.url, [said("I keep bees")])

    began = asyncio.get_running_loop().time()
    block = await opened(Sleepy()).recall(asked("bees"))

    assert asyncio.get_running_loop().time() - began < 1.0
    assert "bees" in block.text
    assert block.degraded is not None
    assert "only a lexical search" in block.degraded
    assert block.served_by is ServedBy.PRIMARY


async def test_vectors_of_another_length_degrade_and_do_not_raise(database: Database, opened: Open) -> None:
    await keep(database.url, [said("I keep bees")])

    block = await opened(HashEmbedder(64)).recall(asked("bees"))

    assert block.degraded is not None
    assert "bees" in block.text
    assert block.served_by is ServedBy.PRIMARY


async def test_scored_raises_where_no_node_answers(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    down = PostgresDatabase(f"postgresql://nobody@127.0.0.1:{unused_tcp_port_factory()}/gone")
    search = PostgresSearch()
    recall = Recall(
        PostgresStore(),
        search,
        Routing(down, (), search),
        QueryVectors(HashEmbedder()),
        settings=Settings(),
    )

    with pytest.raises(errors.StoreUnavailable):
        await recall.scored(asked("anything"))


@pytest.mark.parametrize(
    "text", ["", "🙂🙃", "مرحبا", "a & b | !c <-> d:*", "\x00\x01\x02", "'; DROP TABLE x; --", "ß" * 200_000]
)
async def test_whatever_is_asked_gets_a_block(database: Database, recall: Recall, text: str) -> None:
    await keep(database.url, [said("hello"), said("مرحبا بالعالم")])

    block = await recall.recall(asked(text))

    assert block.degraded is None
    assert block.text


async def test_scoring_does_not_stall_the_loop(database: Database, recall: Recall) -> None:
    talk = ["we spoke about pottery and clay", "the bus to Oslo", "tea or coffee at noon", "my old bicycle"]
    await keep(database.url, [said(f"{talk[n % 4]} {n % 97}", session=f"s{n // 20}") for n in range(6_000)])
    await recall.recall(asked("pottery clay"))  # the first call imports and compiles

    with callbacks() as taken:
        for number in range(10):
            await recall.recall(asked(f"pottery clay bus Oslo tea bicycle {number}"))

    assert max(taken) < 25 * slowness()  # 5 ms is the promise of the benchmark, alone on the machine


async def test_many_recalls_at_once_all_answer(database: Database, recall: Recall) -> None:
    await keep(database.url, [said(f"I keep bees {n}", user=f"user-{n}") for n in range(30)])

    async def one(number: int) -> list[str]:
        return contents(await recall.scored(asked("bees", scope=Scope(user_id=f"user-{number}"))))

    answers: list[list[str]] = await asyncio.gather(*(one(number) for number in range(30)))

    assert answers == [[f"I keep bees {number}"] for number in range(30)]
