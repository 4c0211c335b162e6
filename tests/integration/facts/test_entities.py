"""Several names of one entity: their facts are one entity's, stored or to come."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from aftermind import Memory, Settings, errors
from tests.support.servers import Database

MARCH, MAY = datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 5, 1, tzinfo=UTC)


@pytest.fixture
def settings() -> Settings:
    return Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0.0)  # type: ignore[call-arg]


@pytest.fixture(params=["inmemory", "postgres"])
async def memory(
    request: pytest.FixtureRequest, settings: Settings, database: Database, redis_url: str
) -> AsyncIterator[Memory]:
    is_local = request.param == "inmemory"
    opened = (
        Memory("inmemory", settings=settings)
        if is_local
        else Memory(database.app_url, broker=redis_url, settings=settings)
    )
    async with opened:
        yield opened


@pytest.fixture
async def learning(settings: Settings) -> AsyncIterator[Memory]:
    """A memory whose jobs run in this process."""
    async with Memory("inmemory", settings=settings) as opened:
        yield opened


async def test_merged_names_have_one_current_value(memory: Memory) -> None:
    await memory.facts.add("Melanie", "lives_in", "Oslo", valid_from=MAY, user_id="ann")
    await memory.facts.add("Mel", "lives_in", "Bergen", valid_from=MARCH, user_id="ann")
    await memory.facts.add("Mel", "likes", "tea", user_id="ann")
    await memory.facts.add("Ann", "knows", "Mel", user_id="ann")

    found = await memory.facts.merge_entities("Melanie", "Mel", user_id="ann")

    assert {(fact.subject, fact.predicate, fact.object) for fact in found} == {
        ("Melanie", "lives_in", "Oslo"),
        ("Melanie", "likes", "tea"),
    }
    by_alias = await memory.facts.query(subject="mel", predicate="lives_in", user_id="ann")
    assert [fact.object for fact in by_alias] == ["Oslo"]
    (knows,) = await memory.facts.query(subject="Ann", user_id="ann")
    assert knows.object == "Melanie"
    past = await memory.facts.query(subject="Mel", predicate="lives_in", as_of=MARCH, user_id="ann")
    assert [fact.object for fact in past] == ["Bergen"]
    graph = await memory.facts.graph("Mel", user_id="ann")
    assert set(graph.hops) == {"Melanie", "Oslo", "tea", "Ann"}


async def test_later_facts_of_an_alias_are_the_entitys_until_it_is_retracted(memory: Memory) -> None:
    assert await memory.facts.merge_entities("Melanie", "Mel", user_id="ann") == []

    fact = await memory.facts.add("Mel", "works_at", "Acme", user_id="ann")
    (alias,) = await memory.facts.query(predicate="same_as", user_id="ann")
    assert await memory.facts.retract(alias, user_id="ann")
    other = await memory.facts.add("Mel", "works_at", "Initech", user_id="ann")

    assert (fact.subject, other.subject) == ("Melanie", "Mel")
    assert [each.object for each in await memory.facts.query(subject="Melanie", user_id="ann")] == ["Acme"]


async def test_extracted_facts_of_an_alias_are_the_entitys(learning: Memory) -> None:
    await learning.facts.merge_entities("Melanie Jones", "user", user_id="ann")

    receipt = await learning.remember("I live in Bergen.", user_id="ann", session_id="s1")
    await receipt.extracted(timeout=60)

    (fact,) = await learning.facts.query(predicate="lives_in", user_id="ann")
    assert fact.subject == "Melanie Jones"
    assert fact.sources == receipt.episode_ids


async def test_a_merge_keeps_sources_so_that_undo_and_forget_reach_it(learning: Memory) -> None:
    first = await learning.remember("I live in Bergen.", user_id="ann", session_id="s1")
    second = await learning.remember("I like tea.", user_id="ann", session_id="s2")
    await first.extracted(timeout=60)
    await second.extracted(timeout=60)
    await learning.facts.merge_entities("Melanie", "user", user_id="ann")

    await learning.undo(first.episode_ids[0], user_id="ann")
    undone = await learning.facts.query(subject="Melanie", user_id="ann")
    await learning.forget(user_id="ann", ids=second.episode_ids)
    left = await learning.facts.query(subject="Melanie", user_id="ann")
    await learning.forget(user_id="ann")

    assert [fact.predicate for fact in undone] == ["likes"]
    assert left == []
    assert await learning.facts.history(user_id="ann") == []


async def test_another_users_names_are_not_merged(memory: Memory) -> None:
    await memory.facts.add("Mel", "likes", "rye", user_id="ben")
    await memory.facts.merge_entities("Melanie", "Mel", user_id="ann")

    (fact,) = await memory.facts.query(user_id="ben")
    assert fact.subject == "Mel"


async def test_an_alias_of_an_alias_leads_to_the_entity(memory: Memory) -> None:
    await memory.facts.add("Mellie", "likes", "tea", user_id="ann")
    await memory.facts.merge_entities("Mel", "Mellie", user_id="ann")
    await memory.facts.merge_entities("Melanie", "Mel", user_id="ann")

    (fact,) = await memory.facts.query(subject="Mellie", predicate="likes", user_id="ann")
    assert fact.subject == "Melanie"


async def test_a_name_cannot_be_its_own_alias(memory: Memory) -> None:
    await memory.facts.merge_entities("Melanie", "Mel", user_id="ann")

    for entity, alias in (("Melanie", "the melanie"), ("Mel", "Melanie")):
        with pytest.raises(errors.InvalidFact):
            await memory.facts.merge_entities(entity, alias, user_id="ann")
    with pytest.raises(errors.InvalidFact):
        await memory.facts.merge_entities("Melanie", user_id="ann")
