"""Undo what was derived from a message: facts, summaries and traits, in recall and in what is drawn later."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

import pytest

from aftermind import Episode, Memory, Settings, errors
from aftermind.recall import RecallMode
from tests.support.learning import Learning
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.waiting import wait_until

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
POISON = "My bank is Evil Savings and I moved to Gotham."
CLAIMS = [
    {"subject": "user", "predicate": "bank", "object": "Evil Savings"},
    {"subject": "user", "predicate": "lives_in", "object": "Gotham", "cardinality": "single"},
]
HOME = [{"subject": "user", "predicate": "lives_in", "object": "Oslo", "cardinality": "single"}]


async def poisoned(learnt: Learning, provider: ScriptedOpenAI, user: str) -> str:
    """A user who lives in Oslo, and whose memory was told otherwise; the message that did it."""
    provider.script.facts = {"I live in Oslo.": HOME, POISON: CLAIMS}
    provider.script.summary = "They told of Oslo."
    await learnt.learn(user, ["I live in Oslo."])
    provider.script.summary = "They told of Evil Savings in Gotham."
    receipt = await learnt.learn(user, [POISON])
    return str(receipt.episode_ids[0])


async def shown(memory: Memory, user: str) -> str:
    return (await memory.recall("Where do I live, which bank is mine?", user_id=user)).text


async def test_everything_derived_from_a_message_is_undone(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    async with opened(**AT_ONCE) as learnt:
        memory = learnt.memory
        poison = await poisoned(learnt, provider, user)
        before = await shown(memory, user)
        assert {"Gotham", "Evil Savings"} <= {word for word in ("Gotham", "Evil Savings") if word in before}

        foreseen = await memory.undo(poison, user_id=user, dry_run=True)
        assert await shown(memory, user) == before, "a dry run changes nothing"
        done = await memory.undo(poison, user_id=user)
        told = await shown(memory, user)
        provider.script.summary = "They told of Oslo, once more."
        await learnt.settle()
        later = await shown(memory, user)

        assert {fact.object for fact in done.retracted} == {"Evil Savings", "Gotham"}
        assert [(fact.object, fact.valid_to) for fact in done.restored] == [("Oslo", None)]
        assert (foreseen.retracted, foreseen.summaries, foreseen.traits) == (
            done.retracted,
            done.summaries,
            done.traits,
        )
        for text in (told, later):
            assert "Evil" not in text
            assert "Gotham" not in text
            assert "Oslo" in text
        assert "once more" in later, "the summary was made anew"
        assert POISON not in str(provider.calls.told["AnsweredSummary"][-1]), "from what is left"
        assert [fact.object for fact in await memory.facts.query(user_id=user)] == ["Oslo"]
        history = await memory.history(user_id=user)
        assert [(each.content, each.mark) for each in history] == [("I live in Oslo.", None), (POISON, "undone")]
        assert [each.content for each in await memory.context_window(1_000, user_id=user)] == ["I live in Oslo."]
        learned = {each.episode_id: (str(each.state), each.reason) for each in await memory.extraction(user_id=user)}
        assert learned[history[-1].id] == ("empty by decision", "undone")
        assert (await memory.export(user_id=user)).extraction[-1].reason == "undone"
        believed = {fact.object for fact in await memory.facts.history(user_id=user)}
        assert believed >= {"Evil Savings", "Gotham"}, "what was believed once can still be asked for"


async def test_a_trait_of_a_model_that_the_message_replaced_is_made_again(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        poison = await poisoned(learnt, provider, user)
        before = await learnt.memory.profile(user_id=user)
        await learnt.memory.undo(poison, user_id=user)
        await learnt.settle()
        after = await learnt.memory.profile(user_id=user)
        [home, _] = await learnt.memory.history(user_id=user)

    assert before is not None
    assert [str(each) for each in before.traits["turns_seen"].evidence] == [poison]
    assert after is not None
    assert after.traits["turns_seen"].evidence == (home.id,)


@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical", "recency"])
async def test_what_was_undone_takes_no_place_of_what_may_be_shown(
    opened: Opened, provider: ScriptedOpenAI, user: str, mode: RecallMode
) -> None:
    async with opened() as learnt:
        poison = await poisoned(learnt, provider, user)
        asked = "Where do I live? My bank is Evil Savings and I moved to Gotham."
        await learnt.memory.undo(poison, user_id=user)

        found = await learnt.memory.recall_scored(asked, user_id=user, mode=mode, limit=1, load=["history"])

        assert [each.item.content for each in found if isinstance(each.item, Episode)] == ["I live in Oslo."]


async def test_an_answer_that_is_on_its_way_is_not_written_any_more(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(lease_seconds=3.0, heartbeat_seconds=1.0) as learnt:
        provider.script.facts = {POISON: CLAIMS}
        provider.script.latency_seconds = 0.7
        receipt = await learnt.memory.remember([POISON], user_id=user, session_id="s1")
        working = asyncio.create_task(learnt.settle())
        await wait_until(lambda: provider.calls.by_kind.get("AnsweredExtraction"), description="the model is asked")
        provider.script.latency_seconds = 0.0
        await learnt.memory.undo(*receipt.episode_ids, user_id=user)
        await working
        await learnt.ledger.expire_leases()
        await learnt.settle()

        assert await learnt.memory.facts.history(user_id=user) == []
        assert [each.reason for each in await learnt.memory.extraction(user_id=user)] == ["undone"]


async def test_somebody_elses_message_is_not_undone(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    async with opened() as learnt:
        poison = await poisoned(learnt, provider, user)

        with pytest.raises(errors.InvalidQuery):
            await learnt.memory.undo(poison, user_id="somebody else")
        with pytest.raises(errors.InvalidQuery):
            await learnt.memory.undo(str(uuid4()), user_id=user)
        assert "Gotham" in await shown(learnt.memory, user)


async def test_a_memory_of_one_process_undoes_too() -> None:
    at_once = Settings(extract_quiet_seconds=0.0)
    async with Memory("inmemory", settings=at_once, extractor="rules", embedder="hash") as memory:
        await (await memory.remember("I live in Oslo.", user_id="ann")).extracted(timeout=180)
        receipt = await memory.remember("I moved to Gotham.", user_id="ann")
        await receipt.extracted(timeout=180)
        assert [fact.object for fact in await memory.facts.query(user_id="ann")] == ["Gotham"]

        await memory.undo(*receipt.episode_ids, user_id="ann")

        assert [fact.object for fact in await memory.facts.query(user_id="ann")] == ["Oslo"]
        assert "Gotham" not in await shown(memory, "ann")


async def test_what_was_undone_does_not_come_back_with_the_next_claim(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened() as learnt:
        poison = await poisoned(learnt, provider, user)
        await learnt.memory.undo(poison, user_id=user)
        provider.script.facts["I live in Rome now."] = [{**HOME[0], "object": "Rome"}]

        await learnt.learn(user, ["I live in Rome now."])

        rows = [fact for fact in await learnt.memory.facts.history(user_id=user) if fact.superseded_at is None]
        assert {fact.object for fact in rows} == {"Oslo", "Rome"}


async def test_what_a_message_took_back_is_believed_again_at_once(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened() as learnt:
        memory, denial = learnt.memory, "I never lived in Oslo."
        provider.script.facts = {"I live in Oslo.": HOME, denial: [{**HOME[0], "operation": "retract"}]}
        await learnt.learn(user, ["I live in Oslo."])
        receipt = await learnt.learn(user, [denial])
        assert await memory.facts.query(user_id=user) == []

        foreseen = await memory.undo(*receipt.episode_ids, user_id=user, dry_run=True)
        assert await memory.facts.query(user_id=user) == []
        done = await memory.undo(*receipt.episode_ids, user_id=user)

        assert [fact.object for fact in foreseen.restored] == [fact.object for fact in done.restored] == ["Oslo"]
        [fact] = await memory.facts.query(user_id=user)
        assert (fact.object, fact.valid_to) == ("Oslo", None)
        told = await memory.facts.why(fact, user_id=user)
        assert told is not None
        assert [episode.content for episode in told.episodes] == ["I live in Oslo."]
        assert "Oslo" in (await memory.recall("Where do I live?", user_id=user, load=["facts"])).text


async def test_a_memory_of_one_process_believes_again_too() -> None:
    at_once = Settings(extract_quiet_seconds=0.0)
    async with Memory("inmemory", settings=at_once, extractor="rules", embedder="hash") as memory:
        for said in ("I live in Oslo.", "I never lived in Oslo."):
            receipt = await memory.remember(said, user_id="ann")
            await receipt.extracted(timeout=180)
        assert await memory.facts.query(user_id="ann") == []

        await memory.undo(*receipt.episode_ids, user_id="ann")

        assert [fact.object for fact in await memory.facts.query(user_id="ann")] == ["Oslo"]
