"""Two workers, one session, jobs delivered twice and out of order: the facts are those of the usual order, once."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from random import Random

from aftermind import Message
from aftermind.types import JobKind
from tests.support.learning import Learning
from tests.support.scripted_openai import ScriptedOpenAI

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
START = datetime(2024, 1, 1, tzinfo=UTC)
HOMES = ("Oslo", "Rome", "Lima", "Graz", "Bern", "Kyoto")


def said(number: int) -> Message:
    at = START + timedelta(days=30 * number)
    return Message.user(f"I live in {HOMES[number]} now, and I like tune {number}.", occurred_at=at)


def script() -> dict[str, list[dict[str, object]]]:
    return {
        said(number).content: [
            {"subject": "user", "predicate": "lives_in", "object": home, "cardinality": "single"},
            {"subject": "user", "predicate": "likes", "object": f"tune {number}"},
        ]
        for number, home in enumerate(HOMES)
    }


async def believed(learnt: Learning, user: str) -> list[tuple[str, str, object, object, int]]:
    facts = await learnt.memory.facts.history(user_id=user)
    rows = [fact for fact in facts if fact.superseded_at is None]
    return sorted((fact.predicate, fact.object, fact.valid_from, fact.valid_to, fact.strength) for fact in rows)


async def tell(learnt: Learning, user: str, order: Sequence[int], *, workers: int) -> None:
    """Hand turns over in an order, each mined before the next comes; so many workers look for every job, twice."""
    for number in order:
        await learnt.memory.remember(said(number), user_id=user, session_id="one")
        for _ in range(2):
            await asyncio.gather(*(learnt.settle() for _ in range(workers)))


async def test_the_facts_are_those_of_the_usual_order_once(opened: Opened, provider: ScriptedOpenAI) -> None:
    provider.script.facts = script()
    shuffled = list(range(len(HOMES)))
    Random(5).shuffle(shuffled)
    async with opened() as learnt:
        await tell(learnt, "in order", range(len(HOMES)), workers=1)
        await tell(learnt, "shuffled", shuffled, workers=2)

        wanted, found = await believed(learnt, "in order"), await believed(learnt, "shuffled")
        jobs = await learnt.ledger.jobs(kinds=[JobKind.EXTRACT])

    assert len(wanted) == 2 * len(HOMES)
    assert found == wanted
    assert {job.attempts for job in jobs} == {1}, "two workers never mined one session at once"


async def test_an_extraction_that_is_delivered_again_changes_nothing(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.facts = script()
    async with opened() as learnt:
        await learnt.memory.remember(said(0), user_id=user, session_id="one")
        await learnt.settle()
        [job] = [each for each in await learnt.ledger.jobs(kinds=[JobKind.EXTRACT]) if each.scope.user_id == user]
        before = await believed(learnt, user)

        again = await learnt.ledger.claim(JobKind.EXTRACT, worker="w2", for_=timedelta(seconds=30), ids=[job.id])
        await learnt.settle()

        assert again == [], "a bell for what is done finds nothing"
        assert await believed(learnt, user) == before
        assert provider.calls.by_kind["AnsweredExtraction"] == 1
