"""Probabilities for users of a few messages: questions that nothing answers score below those with an answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aftermind import Memory, Message, Settings
from tests.support.servers import Database

MIN_SCORE = 0.2
PATIENT: dict[str, Any] = {  # Any: of each setting
    "embedder": "hash",
    "recall_budget_seconds": 60.0,
    "query_embedding_budget_seconds": 60.0,
}
SEEN: dict[str, Any] = {"user_id": "ann", "load": ["history", "facts"]}  # Any: options of recall

NINE = (
    "I'm allergic to penicillin and nuts.",
    "I live in Oslo with my sister.",
    "My dog is called Rex.",
    "I work as a nurse at the city hospital.",
    "I'm learning to play the cello.",
    "My favourite colour is green.",
    "I drive an old Volvo.",
    "We go skiing every winter in Hemsedal.",
    "My birthday is on 4 June.",
)
WORK = (
    "The deploy fails with a timeout on the staging cluster.",
    "The payment gateway is down after the upgrade to version 4.",
    "Please remember that our release day is Thursday.",
    "We use Terraform for the infrastructure.",
    "Our on-call phone number is 555 0199.",
)
ONE = ("I moved to Lisbon in March.",)

ANSWERED: Mapping[Sequence[str], Mapping[str, int]] = {  # which message of the user answers
    NINE: {
        "What am I allergic to?": 0,
        "Where do I live?": 1,
        "What is my dog's name?": 2,
        "What is my favourite colour?": 5,
        "Where do we go skiing?": 7,
        "When is my birthday?": 8,
    },
    WORK: {
        "Why did the deploy fail?": 0,
        "When is our release day?": 2,
        "What do we use for infrastructure?": 3,
        "What is the on-call phone number?": 4,
    },
    ONE: {"Where did I move?": 0, "When did I move to Lisbon?": 0},
}
UNRELATED = (
    "What is the boiling point of tungsten?",
    "Who won the chess tournament in 1972?",
    "How do volcanoes form?",
    "Explain quantum entanglement to a child",
    "What is the square root of 1764?",
    "When was the French Revolution?",
    "Which planet has the most moons?",
    "How many bones does a shark have?",
    "What does the mayor think of the new stadium?",
    "Who directed Casablanca?",
    "asdf qwer zxcv",
)


async def _remember(memory: Memory, texts: Sequence[str]) -> None:
    messages = [Message(role="user", content=text) for text in texts]
    await (await memory.remember(messages, user_id="ann", session_id="s")).embedded()


async def _best(memory: Memory, question: str) -> tuple[float, str]:
    """The best score and its text; 0 if nothing matches."""
    matches = await memory.recall_scored(question, user_id="ann", load=["history"])
    return (matches[0].score, matches[0].item.content) if matches else (0.0, "")  # type: ignore[union-attr]


@pytest.mark.parametrize("texts", list(ANSWERED), ids=["nine messages", "five messages", "one message"])
async def test_unrelated_questions_score_below_those_that_a_small_user_answers(texts: Sequence[str]) -> None:
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        await _remember(memory, texts)

        unrelated = {question: await _best(memory, question) for question in UNRELATED}
        answered = {question: await _best(memory, question) for question in ANSWERED[texts]}

    too_likely = {question: score for question, (score, _) in unrelated.items() if score >= MIN_SCORE}
    assert too_likely == {}
    assert {question: text for question, (_, text) in answered.items()} == {
        question: texts[place] for question, place in ANSWERED[texts].items()
    }
    least = min(answered.values())
    assert least[0] >= MIN_SCORE, least


async def test_a_least_score_empties_the_block_of_an_unrelated_question_only(
    database: Database, redis_url: str
) -> None:
    async with Memory(database.app_url, broker=redis_url, settings=Settings(**PATIENT)) as memory:
        await memory.remember([Message(role="user", content=text) for text in NINE], user_id="ann", session_id="s")

        unrelated = await memory.recall(UNRELATED[0], min_score=MIN_SCORE, **SEEN)
        answered = await memory.recall("What am I allergic to?", min_score=MIN_SCORE, **SEEN)

    assert unrelated.text == ""
    assert "penicillin" in answered.text


async def test_without_a_least_score_a_small_user_s_turns_are_shown_however_unlikely() -> None:
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        await _remember(memory, NINE)

        block = await memory.recall("What is my job?", **SEEN)

    assert "nurse" in block.text
