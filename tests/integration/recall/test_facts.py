"""Facts in a recall: found by their words however old they are, and of use to the turns that they came from."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import Memory
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import Question
from aftermind.recall import Query, Recall, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.search import BlockRequest, Search, SearchResult
from aftermind.types import Episode, EpisodeId, Fact, FactId, RecallBlock, Scope
from aftermind.types.message import new_ids
from tests.support.conversations import say
from tests.support.learning import AT_ONCE
from tests.support.resource_cleanup import closing
from tests.support.servers import Database
from tests.support.stored_turns import START, keep, said

ALICE = Scope(user_id="alice")

LEARNS_AT_ONCE = Settings(**AT_ONCE)


@pytest.fixture
async def recall(database: Database) -> AsyncIterator[Recall]:
    reading = PostgresDatabase(database.url, session_settings=READ_SETTINGS)
    search, settings = PostgresSearch(), Settings()
    vectors = QueryVectors(HashEmbedder(), budget_seconds=1.0)
    opened = Recall(PostgresStore(), search, Routing(reading, (), search), vectors, settings=settings)
    yield opened
    await opened.close()
    await reading.close()


def fact(predicate: str, value: str, *, minutes: int = 0, sources: tuple[EpisodeId, ...] = ()) -> Fact:
    return Fact(
        id=FactId(new_ids(1)[0]),
        scope=ALICE,
        subject="user",
        predicate=predicate,
        object=value,
        recorded_at=START + timedelta(minutes=minutes),
        sources=sources,
    )


async def add(database: Database, *facts: Fact) -> None:
    async with closing(PostgresDatabase(database.url)) as primary, primary.transaction() as tx:
        await PostgresStore().tombstones(tx, [ALICE])
        await PostgresStore().add_facts(tx, facts)


def shown(block: RecallBlock) -> list[str]:
    return [match.item.object for match in block.matches if isinstance(match.item, Fact)]


async def test_an_old_fact_is_found_among_hundreds_that_are_newer(database: Database, recall: Recall) -> None:
    noise = [fact("likes", f"tune {number}", minutes=number + 1) for number in range(400)]
    await add(database, fact("allergic_to", "peanuts"), *noise)

    block = await recall.recall(Query.checked("Is there anything I am allergic to?", ALICE))

    assert shown(block)[0] == "peanuts"
    assert "allergic to peanuts" in block.text


async def test_a_fact_without_the_words_comes_along_with_its_turn(database: Database, recall: Recall) -> None:
    noise = [fact("likes", f"tune {number}", minutes=number + 1) for number in range(400)]
    turn = said("The furniture arrived in Bergen at last")
    await keep(database.url, [turn, *(said(f"small talk {number}", session=f"x{number}") for number in range(30))])
    await add(database, fact("lives_in", "Norway", sources=(turn.id,)), *noise)

    block = await recall.recall(Query.checked("When did the furniture arrive?", ALICE))

    assert shown(block)[0] == "Norway"
    [match] = [match for match in block.matches if isinstance(match.item, Fact) and match.item.object == "Norway"]
    assert isinstance(match.item, Fact)
    assert match.item.sources == (turn.id,)


async def test_a_turn_is_found_by_what_the_fact_says_of_it(database: Database, recall: Recall) -> None:
    turn = said("We finally unpacked the boxes up there", session="a")
    noise = [said(f"My aunt lives near lake {number}, lovely", session=f"x{number}") for number in range(40)]
    await keep(database.url, [turn, *noise])
    question = Query.checked("Where does she live now, Tromso?", ALICE, limit=5)
    before = await recall.recall(question)
    await add(database, fact("lives_in", "Tromso", sources=(turn.id,)))

    after = await recall.recall(question)

    assert turn.id not in {match.item.id for match in before.matches if isinstance(match.item, Episode)}
    assert shown(after)[0] == "Tromso"


async def test_a_fact_takes_no_turns_place(database: Database, recall: Recall) -> None:
    turns = [said(f"The pottery class number {number} was fun", session=f"s{number}") for number in range(30)]
    await keep(database.url, turns)
    await add(database, *(fact("attended", f"class {turn.id}", sources=(turn.id,)) for turn in turns))
    question = "Was the pottery fun?"

    without = await recall.recall(Query.checked(question, ALICE, load=["history"], token_budget=300))
    with_them = await recall.recall(Query.checked(question, ALICE, token_budget=300))

    def turns_of(block: RecallBlock) -> int:
        return sum(isinstance(match.item, Episode) for match in block.matches)

    assert turns_of(with_them) == turns_of(without)


async def test_both_stores_find_the_same_facts(database: Database) -> None:
    turn = said("We moved")
    told = [
        fact("lives_in", "Bergen", sources=(turn.id,)),
        replace(fact("lives_in", "Oslo"), superseded_at=START + timedelta(days=1)),
        replace(fact("lives_in", "Rome"), valid_to=START + timedelta(days=2)),
        fact("likes", "living on a boat"),
        fact("likes", "tea"),
    ]
    await keep(database.url, [turn])
    await add(database, *told)
    memory, memory_store = MemoryDatabase(), InMemoryStore()
    async with memory.transaction() as tx:
        await memory_store.add_episodes(tx, [turn])
        await memory_store.add_facts(tx, told)
    async with closing(PostgresDatabase(database.url, session_settings=READ_SETTINGS)) as reading:
        for moment in (None, START + timedelta(hours=1)):
            search = Search(question=Question.of("Where do I live?"), known_at=moment)
            async with reading.transaction(namespace="default", read_only=True) as tx:
                ours = await PostgresSearch().find(tx, ALICE, search)
                brief = await PostgresSearch().brief(tx, ALICE, _wanted(ours))
            async with memory.transaction(read_only=True) as tx:
                theirs = await memory_store.find(tx, ALICE, search)
                expected = await memory_store.brief(tx, ALICE, _wanted(theirs))
            assert {hit.id: hit for hit in ours.facts} == {
                hit.id: replace(hit, sources=list(hit.sources)) for hit in theirs.facts
            }
            assert {each.id for each in brief.facts} == {each.id for each in expected.facts}
            assert len(ours.facts) == (2 if moment is None else 4)


def _wanted(found: SearchResult) -> BlockRequest:
    return BlockRequest(ids=found.ids, facts=[hit.id for hit in found.facts], load=frozenset({"facts"}))


async def test_a_message_with_no_word_of_the_question_is_shown_with_its_fact(tmp_path: Path) -> None:
    async with Memory(
        f"sqlite:{tmp_path}/memory.db", embedder="hash", extractor="rules", settings=Settings(**AT_ONCE)
    ) as memory:
        for content in ("I moved from Leipzig to Vienna.", "We planted roses."):
            await (await memory.remember(content, user_id="ann")).extracted(timeout=30)
        shown = [match.item for match in (await memory.recall("Where do I live?", user_id="ann")).matches]

    assert [str(getattr(each, "content", "") or getattr(each, "text", "")) for each in shown] == [
        "user lives in Vienna",
        "I moved from Leipzig to Vienna.",
    ]


async def test_a_message_that_shares_no_word_with_the_question_follows_its_fact(tmp_path: Path) -> None:
    async with Memory(
        f"sqlite:{tmp_path}/memory.db", embedder="hash", extractor="rules", settings=Settings(**AT_ONCE)
    ) as memory:
        for content in (
            "I have a cat named Dot.",
            "The landlord raised our rent.",
            "I work as a nurse at Mercy Hospital.",
        ):
            await (await memory.remember(content, user_id="ann")).extracted(timeout=30)
        block = await memory.recall("Which pet do I have?", user_id="ann", token_budget=80)

    assert "I have a cat named Dot." in block.text
    assert "landlord" not in block.text


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Where do I live?", "user lives in Porto"),
        ("What is my job?", "user works at Acme"),
        ("Where does Ines live?", "Ines lives in Faro"),
        ("Who lives in Faro?", "Ines lives in Faro"),
        ("Where does my sister live?", "Ines lives in Faro"),
        ("What is my sister's name?", "user has sibling Ines"),
        ("What do I like?", "user likes tea"),
        ("What do I not like?", "user dislikes coriander"),
        ("What don't I like?", "user dislikes coriander"),
        ("What do I hate?", "user dislikes coriander"),
    ],
)
async def test_a_question_has_the_fact_of_its_subject_first(question: str, first: str) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for content in (
            "I live in Porto and I work at Acme.",
            "My sister Ines is coming over.",
            "My brother Tom is coming, too.",
            "I can't stand coriander.",
            "I like tea.",
        ):
            await (await memory.remember(content, user_id="ann")).extracted(timeout=30)
        await memory.facts.add("Tom", "lives_in", "Lyon", user_id="ann")
        await memory.facts.add("Ines", "lives_in", "Faro", user_id="ann")
        await memory.facts.add("Ines", "works_at", "Globex", user_id="ann")
        found = await memory.recall(question, user_id="ann")

    assert next(match.item.text for match in found.matches if isinstance(match.item, Fact)) == first


HOMES = ("Gothenburg", "Stockholm")


@pytest.mark.parametrize(
    ("question", "best"),
    [("What do I do for a living?", "product manager"), ("What did I do for a living in early 2025?", "data analyst")],
)
async def test_for_a_living_asks_for_the_job_and_not_for_the_home(empty: Memory, question: str, best: str) -> None:
    await say(
        empty,
        ("I live in Gothenburg.", (2025, 1, 5)),
        ("I work as a data analyst at Volvo.", (2025, 1, 6)),
        ("I joined Spotify as a product manager.", (2025, 9, 15)),
        ("We moved from Gothenburg to Stockholm.", (2025, 11, 3)),
    )

    found = await empty.recall_scored(question, user_id="vera")

    objects = [match.item.object for match in found if isinstance(match.item, Fact)]
    assert objects.index(best) < next(
        place for place, object_ in enumerate([*objects, "Stockholm"]) if object_ in HOMES
    )
    assert not any(home in str(found[0].item) for home in HOMES)
