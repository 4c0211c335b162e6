"""What a block shows is the same whether it came along with the search or was read for itself."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import PgTransaction
from aftermind.ranking import Question
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.postgres.search_exhaustive import MOST_BYTES, MOST_FACTS
from aftermind.stores.search import BlockRequest, Briefing, Search
from aftermind.types import Block, Episode, EpisodeId, Fact, FactId, Role, Scope, Summary, Trait
from aftermind.types.message import new_ids
from tests.support.servers import Database
from tests.support.stored_turns import START, keep, said

ALICE = Scope(user_id="alice")
KINDS = frozenset({"history", "facts", "summary", "profile", "blocks"})


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(database.url, session_settings=READ_SETTINGS)
    yield opened
    await opened.close()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were sent."""
    sent: list[str] = []
    alone = PgTransaction.alone

    async def noted(self: PgTransaction, statement: str, *arguments: object) -> object:
        sent.append(statement)
        return await alone(self, statement, *arguments)

    monkeypatch.setattr(PgTransaction, "alone", noted)
    return sent


async def briefing(
    reader: PostgresDatabase,
    text: str,
    *,
    whole: int,
    shown: Sequence[EpisodeId],
    session: str | None = None,
    at: datetime | None = None,
    load: frozenset[str] = KINDS,
) -> Briefing:
    along = BlockRequest(load=load, session_id=session, at=at)
    search = PostgresSearch(whole=whole)
    asked = Search(question=Question.of(text), known_at=at, facts="facts" in load, along=along)
    async with reader.transaction(namespace="default", read_only=True) as tx:
        found = await search.find(tx, ALICE, asked)
        wanted = replace(along, ids=shown, facts=[hit.id for hit in found.facts])
        return await search.brief(tx, ALICE, wanted, found=found)


async def test_everything_is_shown_the_same_both_ways(
    database: Database, reader: PostgresDatabase, trips: list[str]
) -> None:
    episodes = [
        said("I moved to Bergen", name="Ann", metadata={"tags": ["home"]}),
        said("Very nice", role=Role.ASSISTANT, agent="coach", session=None),
        said("Zürich, 東京 & <b>", session="s2", remembered_at=START + timedelta(days=9)),
        said("old", at=datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=START.tzinfo)),
    ]
    await keep(database.url, episodes)
    await _learn(database, [_fact(number) for number in range(40)], episodes)

    for at in (None, START + timedelta(days=5)):
        for session in ("s1", "s2", None):
            asked = {"shown": [each.id for each in reversed(episodes)], "session": session, "at": at}
            trips.clear()
            held = await briefing(reader, "Where does she live?", whole=300, **asked)  # type: ignore[arg-type]
            assert len(trips) == 1
            read = await briefing(reader, "Where does she live?", whole=0, **asked)  # type: ignore[arg-type]

            assert held == read
            assert [each.content for each in held.episodes] == [each.content for each in reversed(episodes)]
            assert held.facts
            assert held.blocks
            assert held.summary
            assert held.profile  # it has not changed since


async def test_who_has_said_nothing_yet_is_read_in_one_trip(
    database: Database, reader: PostgresDatabase, trips: list[str]
) -> None:
    shown = await briefing(reader, "tea", whole=300, shown=[])

    assert shown == Briefing(episodes=[], facts=[], blocks=[])
    assert len(trips) == 1


async def test_what_is_much_is_read_for_itself(database: Database, reader: PostgresDatabase, trips: list[str]) -> None:
    long = said("tea " * (MOST_BYTES // 4))
    await keep(database.url, [long])

    shown = await briefing(reader, "tea", whole=300, shown=[long.id])

    assert [each.id for each in shown.episodes] == [long.id]
    assert len(trips) == 2


async def test_many_facts_are_chosen_from_by_the_database(
    database: Database, reader: PostgresDatabase, trips: list[str]
) -> None:
    turn = said("We moved")
    await keep(database.url, [turn])
    facts = [_fact(number) for number in range(MOST_FACTS + 1)]
    await _learn(database, [replace(facts[0], sources=(turn.id,)), *facts[1:]], [turn])

    shown = await briefing(reader, "Where does she live?", whole=300, shown=[turn.id])

    assert facts[0].id in {each.id for each in shown.facts}
    assert len(shown.facts) < MOST_FACTS
    assert len(trips) == 2


async def test_nothing_comes_along_that_is_not_asked_for(database: Database, reader: PostgresDatabase) -> None:
    turn = said("We moved")
    await keep(database.url, [turn])
    await _learn(database, [_fact(0)], [turn])

    shown = await briefing(reader, "moved", whole=300, shown=[], load=frozenset({"history"}))

    assert shown == Briefing(episodes=[], facts=[], blocks=[])


async def test_more_episodes_of_the_search_are_read_alone(
    database: Database, reader: PostgresDatabase, trips: list[str]
) -> None:
    turn, other = said("We moved"), said("Very nice")
    await keep(database.url, [turn, other])
    await _learn(database, [_fact(0)], [turn])
    found: dict[int, Briefing] = {}

    for whole in (300, 0):
        search, asked = (
            PostgresSearch(whole=whole),
            Search(question=Question.of("moved"), along=BlockRequest(load=KINDS)),
        )
        async with reader.transaction(namespace="default", read_only=True) as tx:
            result = await search.find(tx, ALICE, asked)
            trips.clear()
            found[whole] = await search.brief(tx, ALICE, BlockRequest(ids=[other.id]), found=result)
            assert len(trips) == (0 if whole else 1)

    assert found[300] == found[0]
    assert [each.content for each in found[300].episodes] == ["Very nice"]


def _fact(number: int) -> Fact:
    return Fact(
        id=FactId(new_ids(1)[0]),
        scope=ALICE,
        subject="alice",
        predicate="lives_in",
        object=f"place {number}",
        recorded_at=START + timedelta(minutes=number),
    )


async def _learn(database: Database, facts: Sequence[Fact], episodes: Sequence[Episode]) -> None:
    primary, store, evidence = PostgresDatabase(database.url), PostgresStore(), (episodes[0].id,)
    async with primary.transaction(namespace="default") as tx:
        await store.tombstones(tx, [ALICE])
        await store.add_facts(tx, [replace(facts[0], sources=facts[0].sources or evidence), *facts[1:]])
        block = Block(scope=ALICE, name="human", content="Short answers.", version=1, updated_at=START)
        await store.put_block(tx, block, expected_version=0)
        for session in ("s1", "s2"):
            text = Summary(
                scope=replace(ALICE, session_id=session),
                text=f"of {session}",
                covers_to=1,
                messages=1,
                updated_at=START,
                summariser="x",
            )
            await store.put_summary(tx, text)
        await store.merge_profile(tx, ALICE, {"job": Trait(value="nurse", evidence=evidence)}, at=START)
    await primary.close()
