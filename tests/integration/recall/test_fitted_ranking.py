"""A namespace's own ranking models: fitted to its questions, adopted if they win, used by its recalls only."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import exp, log1p
from typing import Any

import pytest

from aftermind import Episode, Memory, Message, Settings, errors
from aftermind.evaluation.datasets import GoldConversation, GoldQuestion
from aftermind.evaluation.fit_ranking import LEAST_QUESTIONS, fit_namespace
from aftermind.ranking import FEATURES, models_of
from aftermind.ranking.fitted_coefficients import to_json
from tests.support.servers import Database

START = datetime(2025, 3, 3, 9, tzinfo=UTC)
THINGS = ("bike", "boat", "tent", "lamp", "desk", "door")
TOPICS = [f"{colour} {thing}" for colour in ("red", "blue", "green", "white") for thing in THINGS]
PATIENT: dict[str, Any] = {  # Any: of each setting
    "embedder": "hash",
    "recall_budget_seconds": 60.0,
    "query_embedding_budget_seconds": 60.0,
}


@pytest.fixture(params=["inmemory", "postgres"])
async def memory(request: pytest.FixtureRequest, database: Database, redis_url: str) -> AsyncIterator[Memory]:
    settings = Settings(**PATIENT)
    if request.param == "inmemory":
        opened = Memory("inmemory", settings=settings)
    else:
        opened = Memory(database.app_url, broker=redis_url, settings=settings)
    async with opened:
        yield opened


def _talk(user: str) -> list[Message]:
    """About each topic a question, its answer in other words, and a text that repeats the question's words."""
    texts = []
    for topic in TOPICS:
        texts += [
            f"What happened to the {topic} of {user}?",
            f"{user} gave it away in spring.",
            f"Somebody else wrote about the {topic}: {topic} shop {topic} price {topic} colour",
        ]
    return [
        Message(role="user", content=text, name=user, occurred_at=START + timedelta(minutes=place))
        for place, text in enumerate(texts)
    ]


async def _gold(memory: Memory, namespace: str) -> list[GoldConversation]:
    """The evidence is the turn after the question, which the product's models rank behind turns with the words."""
    found = []
    for user in ("Ann", "Ben", "Cat"):
        receipt = await memory.remember(_talk(user), user_id=user, session_id="talk", namespace=namespace)
        ids = receipt.episode_ids
        questions = [
            GoldQuestion(text=f"What happened to the {topic}?", evidence=(str(ids[3 * place + 1]),))
            for place, topic in enumerate(TOPICS)
        ]
        found.append(GoldConversation(user_id=user, questions=questions))
    return found


async def test_models_that_win_are_adopted_by_their_namespace_alone(memory: Memory) -> None:
    gold = await _gold(memory, "acme")
    await memory.remember(_talk("Ann"), user_id="Ann", session_id="talk", namespace="other")
    asked = gold[0].questions[0]

    async def rank(namespace: str) -> int:
        matches = await memory.recall_scored(asked.text, user_id="Ann", namespace=namespace, limit=72, load=["history"])
        return next(match.rank for match in matches if match.item.content == "Ann gave it away in spring.")  # type: ignore[union-attr]

    before = await rank("acme")
    found = await fit_namespace(memory, gold, namespace="acme")

    assert "both" in found.adopted
    assert found.gains["both"].low > 0
    assert (found.questions, found.held_out) == (72, 24)
    assert await rank("acme") <= before
    assert await rank("other") == before
    assert len(await memory.ranking.get(namespace="acme")) == 1
    assert await memory.ranking.get(namespace="other") == {}
    assert await memory.ranking.delete(namespace="acme")
    assert not await memory.ranking.delete(namespace="acme")
    assert await rank("acme") == before


async def test_models_that_do_not_win_are_not_adopted() -> None:
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        texts = [f"The {topic} of number {place} costs {place} crowns." for place in range(4) for topic in TOPICS]
        receipt = await memory.remember([Message(role="user", content=text) for text in texts], user_id="ann")
        questions = [
            GoldQuestion(text=text, evidence=(str(id_),)) for text, id_ in zip(texts, receipt.episode_ids, strict=True)
        ]

        found = await fit_namespace(memory, [GoldConversation(user_id="ann", questions=questions)])

        assert found.adopted == ()
        assert await memory.ranking.get() == {}


async def test_models_of_a_gold_set_without_a_pattern_are_not_adopted() -> None:
    """They fit the questions that they were fitted to, and rank those that were held out no better."""
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        chosen, gold = random.Random(0), []
        for each in await _gold(memory, "acme"):
            ids = [str(episode.id) for episode in await memory.history(user_id=each.user_id, namespace="acme")]
            questions = [replace(asked, evidence=(chosen.choice(ids),)) for asked in each.questions]
            gold.append(replace(each, questions=questions))

        found = await fit_namespace(memory, gold, namespace="acme")

        assert found.gains["both"].mean != 0, "the fitted model is the former one"
        assert found.adopted == ()
        assert await memory.ranking.get(namespace="acme") == {}


async def test_too_few_questions_are_refused() -> None:
    async with Memory("inmemory", settings=Settings(**PATIENT)) as memory:
        (first, *_) = await _gold(memory, "acme")

        with pytest.raises(errors.InvalidGoldSet, match=str(LEAST_QUESTIONS)):
            await fit_namespace(memory, [first], namespace="acme")


async def test_models_of_other_features_are_refused_and_not_applied(memory: Memory) -> None:
    models = to_json(models_of("hash"))
    wrong = {use: {**each, "coefficients": {"unknown": 1.0}} for use, each in models.items()}

    with pytest.raises(errors.InvalidQuery, match="models"):
        await memory.ranking.set(wrong, embedder="hash")
    with pytest.raises(errors.InvalidQuery, match=r"words_window.*models_json"):
        await memory.ranking.set({"both": 3}, embedder="hash")
    assert await memory.ranking.get() == {}


async def test_candidates_have_a_row_of_features_for_each_turn(memory: Memory) -> None:
    receipt = await memory.remember(_talk("Ann")[:6], user_id="Ann")

    found = await memory.ranking.candidates("What happened to the red bike?", user_id="Ann")

    assert set(found.ids) == set(receipt.episode_ids)
    assert found.features.shape == (6, len(FEATURES))
    assert found.feature_names == FEATURES


async def test_the_score_of_a_message_can_be_computed_by_the_guide(memory: Memory) -> None:
    """docs/guides/evaluation.md: the model of both, 0.3 in the session that asks, 0.8 times log(1 + names)."""
    said = ["The knee hurts after the long run.", "The knee hurts after a run in Hamburg with Peter.", "I like tea."]
    for number, text in enumerate(said):
        await memory.remember(text, user_id="Ann", session_id=f"s{number}")
    asked: dict[str, Any] = {"query": "Does the knee hurt after a run?", "user_id": "Ann", "session_id": "s0"}
    found = await memory.ranking.candidates(**asked)
    matches = await memory.recall_scored(load=["history"], **asked)

    model: Any = found.models_json["both"]
    weights = [model["coefficients"][name] for name in found.feature_names]
    odds = dict(zip(found.ids, found.features @ weights + model["intercept"], strict=True))
    more = {said[0]: 0.3, said[1]: 0.8 * log1p(2)}
    scores = {
        text: match.score
        for match in matches
        if isinstance(match.item, Episode) and (text := match.item.content) in more
    }
    computed = {
        match.item.content: 1 / (1 + exp(-odds[match.item.id] - more[match.item.content]))
        for match in matches
        if isinstance(match.item, Episode) and match.item.content in more
    }
    assert scores == pytest.approx(computed)
    assert len(scores) == 2


async def test_the_models_of_candidates_can_be_changed_and_set(memory: Memory) -> None:
    await memory.remember(_talk("Ann")[:6], user_id="Ann")
    found = await memory.ranking.candidates("What happened to the red bike?", user_id="Ann")
    models: Any = found.models_json
    models["both"]["coefficients"]["words"] += 0.5

    await memory.ranking.set(models, embedder=found.embedder)

    assert await memory.ranking.get() == {found.embedder: models}
    again = await memory.ranking.candidates("What happened to the red bike?", user_id="Ann")
    assert again.models_json == models
