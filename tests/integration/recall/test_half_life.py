"""An optional half-life: newer episodes before older ones that fit a little better."""

from datetime import UTC, datetime, timedelta

import pytest

from aftermind import Episode, Memory, Message, Settings

NOW = datetime.now(UTC)
OLD = Message(role="user", content="My favourite tea is green tea from Uji.", occurred_at=NOW - timedelta(days=400))
NEW = Message(role="user", content="I drink black tea these days.", occurred_at=NOW - timedelta(days=1))
QUERY = "What is my favourite tea?"


async def _first(half_life: float, query: str = QUERY) -> str:
    settings = Settings(  # type: ignore[call-arg]
        embedder="hash", recall_half_life_days=half_life, recall_budget_seconds=60, query_embedding_budget_seconds=60
    )
    async with Memory("inmemory", settings=settings) as memory:
        for message in (OLD, NEW):
            await (await memory.remember(message, user_id="ann", session_id=str(message.occurred_at))).embedded()
        best, *_ = await memory.recall_scored(query, user_id="ann", load=["history"])
        assert best.rank == 1
        return best.item.content  # type: ignore[union-attr]


@pytest.mark.parametrize(("half_life", "expected"), [(0, OLD), (10_000, OLD), (30, NEW)])
async def test_age_counts_only_if_a_half_life_is_set(half_life: float, expected: Message) -> None:
    assert await _first(half_life) == expected.content


async def test_a_query_that_names_a_period_ignores_the_half_life() -> None:
    year = OLD.occurred_at.strftime("%B %Y")  # type: ignore[union-attr]

    assert await _first(30, f"What was my favourite tea in {year}?") == OLD.content


async def test_old_messages_come_before_facts_that_have_nothing_in_common_with_the_question() -> None:
    rent = "The landlord raised the rent to 900 euros."
    settings = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0, recall_half_life_days=90)
    async with Memory("inmemory", settings=settings) as memory:
        for text in ("I speak German.", "I like tea.", "I have a cat.", "I live in Oslo.", rent):
            said = Message.user(text, occurred_at=NOW - timedelta(days=900))
            await memory.remember(said, user_id="ann", session_id=text)
        await memory.drain(user_id="ann", timeout=30)
        first, *others = await memory.recall_scored("How much is the rent of my landlord?", user_id="ann")

    assert isinstance(first.item, Episode)
    assert first.item.content == rent
    assert others, "facts are shown after it"


async def test_an_explanation_has_the_scores_after_the_half_life_and_each_rank_once() -> None:
    settings = Settings(embedder="hash", recall_half_life_days=30)  # type: ignore[call-arg]
    async with Memory("inmemory", settings=settings) as memory:
        for day in range(60):
            text = f"The sofa number {day} cost {day} euros." if day % 2 else f"The weather of day {day} was fine."
            message = Message(role="user", content=text, occurred_at=NOW - timedelta(days=400 - day))
            await memory.remember(message, user_id="ann", session_id="s")
        asked = {"user_id": "ann", "token_budget": 100, "load": ["history"]}
        shown = await memory.explain("How much did the sofa cost?", **asked)  # type: ignore[arg-type]
        scored = await memory.recall_scored("How much did the sofa cost?", user_id="ann", limit=60, load=["history"])

    found = [each.match for each in shown.excluded]
    of_id = {match.item.id: match.score for match in scored}  # type: ignore[union-attr]
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
    ranks = [match.rank for match in found]
    assert ranks == list(range(ranks[0], ranks[0] + len(found)))
    compared = [match for match in found if match.item.id in of_id]  # type: ignore[union-attr]
    assert compared
    assert all(match.score == pytest.approx(of_id[match.item.id], rel=0.05) for match in compared)  # type: ignore[union-attr]
