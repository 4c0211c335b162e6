"""What learning costs and who pays for it; what came of each turn; and how many objects a predicate has."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import pytest

from aftermind import Memory, Message, Settings, errors
from aftermind.types import Cardinality, ExtractionState, JobKind, JobState
from tests.support.learning import AT_ONCE, Learning
from tests.support.scripted_openai import ScriptedOpenAI

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
TEA = {"subject": "user", "predicate": "likes", "object": "tea"}
EVERYTHING = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}


async def test_every_model_call_is_counted_for_its_user_by_kind(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.facts = {"I like tea.": [TEA]}
    async with opened(embedder="openai:scripted", embedding_dimension=384, **EVERYTHING) as learnt:
        await learnt.learn(user, ["I like tea."])
        await learnt.learn("somebody else", ["I like tea."])

        mine = await learnt.memory.spending(user_id=user)
        all_rows = await learnt.memory.spending(everybody=True)
        job = await learnt.ledger.jobs(kinds=[JobKind.EXTRACT])
        attempts = await learnt.ledger.attempts(job[0].id)

    kinds = {JobKind.EMBED, JobKind.EXTRACT, JobKind.SUMMARISE, JobKind.PROFILE}
    assert {row.kind for row in mine} == kinds
    assert all(row.spent.calls == 1 and row.spent.tokens_in > 0 and row.spent.latency_ms > 0 for row in mine)
    assert {row.owner.user_id for row in mine} == {user}
    assert len(all_rows) == 2 * len(mine)
    assert sum(row.spent.calls for row in all_rows) == sum(provider.calls.by_kind.values())
    assert [(each.calls, each.model) for each in attempts] == [(1, "scripted")]
    assert attempts[0].latency_ms > 0


async def test_answers_that_came_to_nothing_are_paid_for_too(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.plan = ["schema"] * 4
    async with opened() as learnt:
        await learnt.learn(user, ["I like tea."])
        await learnt.settle()

        [row] = await learnt.memory.spending(user_id=user)
        [outcome] = await learnt.memory.extraction(user_id=user)

    assert row.spent.calls == provider.calls.by_kind["AnsweredExtraction"] == 4
    assert outcome.state is ExtractionState.DEAD
    assert outcome.reason is not None
    assert "unusable answer" in outcome.reason


async def test_a_namespace_over_its_budget_waits_and_says_so_and_nobody_waits_with_it(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.facts = {"I like tea.": [TEA]}
    async with opened(namespace_tokens_per_day=1) as learnt:
        await learnt.learn(user, ["I like tea."])
        await learnt.learn(user, ["I like tea.", "And so on."])
        [first, *rest] = await learnt.memory.extraction(user_id=user)
        await learnt.memory.remember("I like tea.", user_id=user, namespace="rich")
        await learnt.settle()
        [other] = await learnt.memory.extraction(user_id=user, namespace="rich")

    assert first.state is other.state is ExtractionState.FACTS
    assert {each.state for each in rest} == {ExtractionState.WAITING}
    assert all(each.reason and "budget" in each.reason for each in rest)


async def test_vectors_wait_for_a_budget_of_dollars_and_use_no_attempt(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    embedder = {"embedder": "openai:text-embedding-3-small", "embedding_dimension": 384}
    async with opened(**embedder, namespace_usd_per_day=1e-12) as learnt:
        await learnt.learn(user, ["I like tea."])

        await learnt.learn(user, ["I like coffee."])
        waiting = [job for job in await learnt.ledger.jobs(kinds=[JobKind.EMBED]) if job.state is not JobState.DONE]
        attempts = [await learnt.ledger.attempts(job.id) for job in waiting]

    assert [job.state for job in waiting] == [JobState.QUEUED]
    assert waiting[0].attempts == 0
    assert [each.outcome for each in attempts[0]] == ["snoozed"]


async def test_each_turn_says_what_came_of_it(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    provider.script.facts = {"I like tea.": [TEA]}
    async with opened(extract_quiet_seconds=60.0, extract_max_wait_seconds=60.0) as learnt:
        await learnt.learn(user, ["I like tea.", "Hm."], session="mined")
        for job in await learnt.ledger.jobs(kinds=[JobKind.EXTRACT]):
            await learnt.due(job.id)
        await learnt.settle()
        await learnt.memory.remember("Not this.", user_id=user, session_id="s2", save={"history"})
        await learnt.settle()
        await learnt.memory.remember("Later.", user_id=user, session_id="s3")
        pending = await learnt.memory.extraction(user_id=user, session_id="s3")
        await learnt.settle()
        found = await learnt.memory.extraction(user_id=user)

    assert [(each.state, each.reason) for each in pending] == [(ExtractionState.WAITING, "not stored yet")]
    assert [(each.state, each.reason) for each in found] == [
        (ExtractionState.FACTS, None),
        (ExtractionState.EMPTY, "no fact in this message"),
        (ExtractionState.NOT_NEEDED, "not in save="),
        (ExtractionState.WAITING, "queued"),
    ]
    assert found[0].extractor == "openai:scripted:3"


async def test_a_predicate_has_as_many_objects_as_the_namespace_says(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    said = {"I drive a Fiat.": "Fiat", "I drive a Saab.": "Saab"}
    provider.script.facts = {
        text: [{"subject": "user", "predicate": "drives", "object": car}] for text, car in said.items()
    }
    async with opened() as learnt:
        await learnt.memory.facts.set_cardinality("Drives", "single")
        for text in said:
            await learnt.learn(user, [text])
        await learnt.memory.facts.add("user", "drives", "tram", user_id=user, namespace="other")
        await learnt.memory.facts.add("user", "drives", "bus", user_id=user, namespace="other")

        facts = await learnt.memory.facts.query(user_id=user, predicate="drives")
        elsewhere = await learnt.memory.facts.query(user_id=user, predicate="drives", namespace="other")
        rules = await learnt.memory.facts.cardinalities()
        await learnt.memory.facts.set_cardinality("drives", None)
        none = await learnt.memory.facts.cardinalities()

    assert [fact.object for fact in facts] == ["Saab"]
    assert {fact.object for fact in elsewhere} == {"tram", "bus"}
    assert rules == {"drives": Cardinality.SINGLE}
    assert none == {}


async def test_a_cardinality_that_is_none_is_refused(learnt: Learning) -> None:
    with pytest.raises(errors.InvalidFact, match="'single', 'multi' or None"):
        await learnt.memory.facts.set_cardinality("drives", "double")


async def test_nothing_was_paid_before_anything_was_said(learnt: Learning, user: str) -> None:
    assert await learnt.memory.spending(user_id=user, since=datetime(2020, 1, 1, tzinfo=UTC).date()) == []
    assert await learnt.memory.extraction(user_id=user) == []


async def test_the_outcome_of_a_turn_in_an_unsupported_language_names_it(opened: Opened, user: str) -> None:
    async with opened(extractor="rules") as learnt:
        await learnt.learn(user, ["Moro em Lisboa e gosto de café.", "I live in Oslo.", "Ich wohne in Bern."])
        outcomes = await learnt.memory.extraction(user_id=user)

    reasons = {each.reason for each in outcomes if each.state is ExtractionState.EMPTY}
    assert reasons == {"the rules do not support Portuguese"}
    assert sum(each.facts for each in outcomes) == 2


LEFT_AND_BEGAN = {
    "I left Magna last week.": datetime(2026, 8, 1, tzinfo=UTC),
    "I work at Magna.": datetime(2026, 5, 1, tzinfo=UTC),
    "We broke up.": datetime(2026, 8, 2, tzinfo=UTC),
}


async def assert_the_end_counts(memory: Memory, user: str) -> None:
    found = {each.session_id: (each.state, each.facts, each.reason) for each in await memory.extraction(user_id=user)}
    assert found["I left Magna last week."] == found["I work at Magna."] == ("facts", 1, None)
    assert found["We broke up."][:2] == ("empty by decision", 0)


async def test_an_end_that_was_extracted_before_its_fact_counts_as_an_outcome(user: str) -> None:
    async with Memory("inmemory", settings=Settings(**AT_ONCE), embedder="hash", extractor="rules") as memory:
        for text, day in LEFT_AND_BEGAN.items():
            message = Message.user(text, occurred_at=day)
            await (await memory.remember(message, user_id=user, session_id=text)).extracted(timeout=30)

        await assert_the_end_counts(memory, user)


async def test_an_end_that_was_extracted_before_its_fact_counts_as_an_outcome_on_postgres(
    opened: Opened, user: str
) -> None:
    async with opened(extractor="rules") as learnt:
        for text, day in LEFT_AND_BEGAN.items():
            await learnt.learn(user, [Message.user(text, occurred_at=day)], session=text)

        await assert_the_end_counts(learnt.memory, user)
