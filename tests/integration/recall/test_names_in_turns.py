"""Turns that name something, before turns of the same words that do not."""

import pytest

from aftermind import Memory, Message, Settings
from aftermind.types import Episode

QUERY = "Where did Melanie travel in spring?"


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ("In spring we travelled to Lisbon.", "In spring we travelled to islands.", "older"),
        ("In spring we travelled to islands.", "In spring we travelled to Lisbon.", "newer"),
        ("In spring we travelled, Caroline.", "In spring we travelled, darling.", "newer"),  # the name of a speaker
        ("Again. Travelled in spring we have.", "again. travelled in spring we have.", "newer"),  # begins a sentence
    ],
)
async def test_of_turns_that_fit_alike_the_first_is_one_that_names_something(
    older: str, newer: str, expected: str
) -> None:
    settings = Settings(embedder="hash", recall_budget_seconds=60, query_embedding_budget_seconds=60)  # type: ignore[call-arg]
    async with Memory("inmemory", settings=settings) as memory:
        for number, (name, text) in enumerate((("Melanie", older), ("Melanie", newer), ("Caroline", "Nice spring."))):
            said = Message(role="user", name=name, content=text)
            await (await memory.remember(said, user_id="ann", session_id=f"s{number}")).embedded(timeout=60)

        best, *_ = await memory.recall_scored(QUERY, user_id="ann", load=["history"])

        assert isinstance(best.item, Episode)
        assert best.item.content == {"older": older, "newer": newer}[expected]
