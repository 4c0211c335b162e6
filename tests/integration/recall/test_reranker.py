"""The order of a caller's reranker."""

from collections.abc import Sequence
from typing import Any

import pytest

from aftermind import Fact, Memory, Settings
from aftermind.types import Episode
from tests.support.conversations import say
from tests.support.learning import AT_ONCE, UNHURRIED


def by_word(word: str) -> Any:  # Any: a reranker
    async def rerank(question: str, texts: Sequence[str]) -> list[float]:
        return [float(word in text) for text in texts]

    return rerank


async def test_the_order_of_a_reranker_is_that_of_messages_facts_and_blocks() -> None:
    settings = Settings(**AT_ONCE, **UNHURRIED)
    async with Memory("inmemory", settings=settings, reranker=by_word("Miso")) as memory:
        notes = [(f"I fed the cat and note number {n}.", (2024, 3, n)) for n in range(1, 26)]
        await say(
            memory, ("I have a cat named Miso.", (2024, 1, 1)), *notes, ("Miso caught a cold yesterday.", (2024, 5, 1))
        )

        found = await memory.recall_scored("What happened to my cat?", user_id="vera", rerank=True)
        block = await memory.recall("What happened to my cat?", user_id="vera", rerank=True, token_budget=110)

    assert ["Miso" in str(match.item) for match in found[:3]] == [True, True, True], "two messages and a fact"
    assert {type(match.item) for match in found[:3]} == {Episode, Fact}
    given = [match.rerank_score or 0.0 for match in found]
    assert given == sorted(given, reverse=True)
    assert "Miso caught a cold yesterday." in block.text


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")]])
async def test_a_reranker_that_returns_no_score_for_each_message_loses_none(
    scores: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async def forgetful(question: str, texts: Sequence[str]) -> list[float]:
        return scores

    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED), reranker=forgetful) as memory:
        await say(memory, ("I fed the cat.", (2024, 3, 1)), ("I brushed the cat.", (2024, 3, 2)))
        block = await memory.recall("What about the cat?", user_id="vera", rerank=True, load=["history"])

        caplog.clear()
        found = await memory.recall_scored("What about the cat?", user_id="vera", rerank=True, load=["history"])

    assert len(block.matches) == 2
    assert block.degraded is not None
    assert "reranker" in block.degraded
    assert [match.rerank_score for match in found] == [None, None]
    assert not caplog.records, "it failed in the same way: one line is enough"


async def test_the_log_has_the_failure_of_a_reranker_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(question: str, texts: Sequence[str]) -> list[float]:
        raise RuntimeError("cuda")

    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED), reranker=broken) as memory:
        await say(memory, ("I fed the cat.", (2024, 3, 1)))
        await memory.recall_scored("What about the cat?", user_id="vera", rerank=True)

    [line] = [each for each in caplog.messages if each.startswith("recall without its reranker")]
    assert "RuntimeError" in line


@pytest.mark.parametrize("token_budget", [60, 100])
async def test_the_first_of_the_rerankers_order_is_in_a_small_block(token_budget: int) -> None:
    answer = "I'm allergic to penicillin and nuts."

    async def oracle(question: str, texts: Sequence[str]) -> list[float]:
        return [float(text == answer) for text in texts]

    said = ["Right.", "Wow!", "I live in Leeds.", "I have a cat named Dot.", "Noted.", answer, "Super.", "Ok.", "Hm."]
    async with Memory("inmemory", settings=Settings(**AT_ONCE), reranker=oracle) as memory:
        for text in said:
            await memory.remember(text, user_id="ann", session_id="s")
        await memory.drain(user_id="ann", timeout=60)
        block = await memory.recall(
            "Which medicine must be avoided?", user_id="ann", rerank=True, token_budget=token_budget
        )

    assert answer in block.text
