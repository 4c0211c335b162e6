"""A question about everything until now finds what was said in other sessions."""

import pytest

from aftermind import Memory, Message, Settings
from aftermind.types import Episode

SAID = {
    "monday": (
        "I visited the city of Rome.",
        "Rome is the city I visited in spring.",
        "I visited that city, Rome, by train.",
    ),
    "friday": ("I visited my brother in the city of Oslo, where it rained.",),
}


@pytest.mark.parametrize(
    ("question", "is_about_all"), [("Which city has Ann visited?", True), ("Which city did Ann visit?", False)]
)
async def test_of_questions_alike_the_one_about_all_sessions_finds_another(question: str, is_about_all: bool) -> None:
    settings = Settings(embedder="hash", recall_budget_seconds=60, query_embedding_budget_seconds=60)  # type: ignore[call-arg]
    async with Memory("inmemory", settings=settings) as memory:
        for session, texts in SAID.items():
            for text in texts:
                said = Message(role="user", name="Ann", content=text)
                await (await memory.remember(said, user_id="ann", session_id=session)).embedded(timeout=60)

        found = await memory.recall_scored(question, user_id="ann", load=["history"])

        sessions = [each.item.scope.session_id for each in found if isinstance(each.item, Episode)]
        assert sorted(sessions) == ["friday", "monday", "monday", "monday"]
        assert sessions.index("friday") == (1 if is_about_all else 2)

        least = sorted(each.score for each in found)[1]
        above = await memory.recall_scored(question, user_id="ann", load=["history"], min_score=least)
        assert all(each.score >= least for each in above)
