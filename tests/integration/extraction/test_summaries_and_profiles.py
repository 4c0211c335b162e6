"""What is learned beyond facts: summaries of sessions, profiles of users, and what forgetting leaves of them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from aftermind import Message
from aftermind.types import EpisodeId, JobKind, JobState, Scope, Trait
from tests.support.learning import Learning
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.waiting import wait_until

AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
Opened = Callable[..., AbstractAsyncContextManager[Learning]]


def chat(count: int, start: int = 0) -> list[Message]:
    return [Message.user(f"Message number {number}.") for number in range(start, start + count)]


async def test_a_session_that_has_gone_quiet_is_summarised(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    provider.script.summary = "They counted."
    async with opened(**AT_ONCE) as learnt:
        await learnt.learn(user, chat(3))

        summary = await learnt.memory.summary(user_id=user, session_id="s1")
        without_session = await learnt.memory.summary(user_id=user)
        exported = (await learnt.memory.export(user_id=user)).summaries

    assert summary is not None
    assert (without_session, exported) == (None, (summary,))
    assert (summary.text, summary.messages, summary.version) == ("They counted.", 3, 1)
    assert summary.summariser == "openai:scripted:1"


async def test_a_lively_session_is_not_summarised_before_it_is_quiet(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(summary_quiet_seconds=60.0) as learnt:
        await learnt.learn(user, chat(3))

        assert await learnt.memory.summary(user_id=user, session_id="s1") is None
        waiting = await learnt.ledger.jobs(kinds=[JobKind.SUMMARISE], states=[JobState.QUEUED])
        assert len(waiting) == 1, "it will be"


async def test_a_long_session_is_summarised_as_it_grows_each_episode_once(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(summary_quiet_seconds=3_600.0, summary_turns=5) as learnt:
        for start in range(0, 24, 4):
            await learnt.learn(user, chat(4, start))
        summary = await learnt.memory.summary(user_id=user, session_id="s1")

    assert summary is not None
    assert summary.messages == 24
    assert provider.calls.by_kind["AnsweredSummary"] == 2, "at ten messages and more, not for each burst"
    told = [text for shown in provider.calls.told["AnsweredSummary"] for text in shown]
    assert told == [f"Message number {number}." for number in range(24)]


async def test_a_summary_has_what_came_late_behind_its_place(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        await learnt.learn(user, chat(3))
        before = await learnt.memory.summary(user_id=user, session_id="s1")
        assert before is not None
        history = await learnt.memory.history(user_id=user, session_id="s1")
        async with learnt.database.transaction(namespace="default") as tx:  # as a turn that was spooled on another host
            late = replace(history[0], id=EpisodeId(uuid4()), position=history[0].position - 10)
            await learnt.store.add_episodes(tx, [late])
        await learnt.learn(user, chat(1, 3))

        summary = await learnt.memory.summary(user_id=user, session_id="s1")

    assert summary is not None
    assert summary.messages == 5
    assert summary.covers_to > before.covers_to


async def test_a_profile_learns_trait_by_trait_and_sees_each_episode_once(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        await _trait(learnt, user, "tone", "dry")
        await learnt.learn(user, chat(3))
        first = await learnt.memory.profile(user_id=user)
        await learnt.learn(user, chat(2, 3), session="s2")
        second = await learnt.memory.profile(user_id=user)
        calls = provider.calls.by_kind["AnsweredProfile"]
        await learnt.settle()

    assert first is not None
    assert second is not None
    assert {name: trait.value for name, trait in first.traits.items()} == {"tone": "dry", "turns_seen": 3}
    assert {name: trait.value for name, trait in second.traits.items()} == {"tone": "dry", "turns_seen": 2}
    assert len(second.traits["turns_seen"].evidence) == 2
    assert calls == 2
    assert provider.calls.by_kind["AnsweredProfile"] == calls


async def test_a_profile_in_replace_mode_is_what_the_last_update_found(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(profile_mode="replace", **AT_ONCE) as learnt:
        await _trait(learnt, user, "tone", "dry")
        await learnt.learn(user, chat(3))
        profile = await learnt.memory.profile(user_id=user)

    assert profile is not None
    assert {name: trait.value for name, trait in profile.traits.items()} == {"turns_seen": 3}
    assert provider.calls.by_kind["AnsweredProfile"] == 1


async def test_a_profile_keeps_to_the_schema_that_was_asked_for(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(profile_schema='{"properties": {"home": {"type": "string"}}}', **AT_ONCE) as learnt:
        await learnt.learn(user, chat(2))

        profile = await learnt.memory.profile(user_id=user)

    assert provider.calls.by_kind["AnsweredProfile"] == 1
    assert profile is None, "the model proposed a trait that nobody wants"


async def test_a_profile_has_the_traits_of_a_model_of_ones_own_in_their_types(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(profile_schema="tests.support.saved_parts:TurnCount", **AT_ONCE) as learnt:
        await learnt.learn(user, chat(2))
        wanted = await learnt.memory.profile(user_id=user)
    async with opened(profile_schema="tests.support.saved_parts:Spelling", **AT_ONCE) as learnt:
        await learnt.learn(user, chat(3), session="s2")
        after = await learnt.memory.profile(user_id=user)

    assert wanted is not None
    assert wanted.traits["turns_seen"].value == 2
    assert after is not None
    assert after.traits["turns_seen"].value == 2, "a number is no list, and what was known stays"


async def test_what_is_not_to_be_saved_is_not_learned(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    provider.script.facts = {"I like tea.": [{"subject": "user", "predicate": "likes", "object": "tea"}]}
    async with opened(**AT_ONCE) as learnt:
        await learnt.memory.remember("I like tea.", user_id=user, session_id="s1", save={"history"})
        await learnt.memory.remember("I like tea.", user_id=user, session_id="s2", save={"history", "facts"})
        await learnt.memory.remember("I like tea.", user_id=user, session_id="s3", save={"history", "summary"})
        await learnt.memory.remember("I like tea.", user_id=user, session_id="s4", save={"history", "profile"})
        await learnt.settle()

        facts = await learnt.memory.facts.query(user_id=user)
        summaries = [await learnt.memory.summary(user_id=user, session_id=f"s{n}") for n in (1, 2, 3, 4)]
        profile = await learnt.memory.profile(user_id=user)
        history = await learnt.memory.history(user_id=user)

    assert [(fact.object, fact.strength) for fact in facts] == [("tea", 1)]
    assert [summary is not None for summary in summaries] == [False, False, True, False]
    assert profile is not None
    assert profile.traits["turns_seen"].value == 1
    assert len(history) == 4


async def test_everything_saved_and_only_summaries_loaded(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    provider.script.summary = "They spoke of tea."
    provider.script.facts = {"I like tea.": [{"subject": "user", "predicate": "likes", "object": "tea"}]}
    async with opened(**AT_ONCE) as learnt:
        await learnt.learn(user, ["I like tea."])

        block = await learnt.memory.recall("Do I like tea?", user_id=user, session_id="s2", load={"summary"})
        whole = await learnt.memory.recall("Do I like tea?", user_id=user, session_id="s2")

    assert "They spoke of tea." in block.text
    assert block.matches == ()
    assert {type(match.item).__name__ for match in whole.matches} == {"Episode", "Fact"}


async def test_what_drew_on_forgotten_turns_is_made_anew_from_the_rest(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        receipt = await learnt.learn(user, ["My PIN is 4711."])
        await learnt.learn(user, chat(2))
        provider.script.summary = "Without it."

        await learnt.memory.forget(user_id=user, ids=receipt.episode_ids)
        gone = await learnt.memory.summary(user_id=user, session_id="s1")
        provider.calls.shown.clear()
        await learnt.settle()

        summary = await learnt.memory.summary(user_id=user, session_id="s1")
        profile = await learnt.memory.profile(user_id=user)

    assert gone is None, "it is gone at once"
    assert summary is not None
    assert (summary.text, summary.messages) == ("Without it.", 2)
    assert not any("4711" in text for shown in provider.calls.shown for text in shown)
    assert profile is not None
    assert profile.traits["turns_seen"].value == 2


async def test_a_summary_on_its_way_for_something_forgotten_writes_nothing(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(summary_quiet_seconds=3_600.0, summary_max_wait_seconds=3_600.0) as learnt:
        receipt = await learnt.learn(user, ["My PIN is 4711.", "I like tea."])
        (job,) = await learnt.ledger.jobs(kinds=[JobKind.SUMMARISE])
        provider.script.latency_seconds = 0.5
        await learnt.due(job.id)
        working = asyncio.create_task(learnt.settle())
        await wait_until(lambda: provider.calls.by_kind.get("AnsweredSummary"), description="the model is asked")
        provider.script.latency_seconds = 0.0
        await learnt.memory.forget(user_id=user, ids=receipt.episode_ids[:1])
        await working
        summary = await learnt.memory.summary(user_id=user, session_id="s1")

    assert provider.calls.told["AnsweredSummary"] == [["My PIN is 4711.", "I like tea."], ["I like tea."]]
    assert summary is not None
    assert (summary.messages, summary.version) == (1, 1)


async def _trait(learnt: Learning, user: str, name: str, value: str) -> None:
    async with learnt.database.transaction(namespace="default") as tx:
        await learnt.store.merge_profile(tx, Scope(user_id=user), {name: Trait(value=value)}, at=datetime.now(UTC))


async def traits(learnt: Learning, user: str) -> dict[str, object]:
    found = await learnt.memory.profile(user_id=user)
    return {} if found is None else {name: trait.value for name, trait in found.traits.items()}


async def test_a_fact_that_is_corrected_or_retracted_is_so_in_the_profile_too(opened: Opened, user: str) -> None:
    async with opened(**AT_ONCE, extractor="rules") as learnt:
        facts = learnt.memory.facts
        await learnt.learn(user, ["I live in Oslo. I like tea and jazz. I work at Acme."])
        assert await traits(learnt, user) == {"likes": ["tea", "jazz"], "lives_in": "Oslo", "works_at": "Acme"}
        known = {fact.object: fact for fact in await facts.query(user_id=user)}

        await facts.correct(known["Oslo"], "Bergen", user_id=user)
        await facts.correct(known["tea"], "coffee", user_id=user)
        await facts.retract(known["Acme"], user_id=user)

        assert await traits(learnt, user) == {"likes": ["coffee", "jazz"], "lives_in": "Bergen"}
        assert "Acme" not in (await learnt.memory.recall("Where do I work?", user_id=user, load=["profile"])).text


async def test_a_trait_with_a_type_is_corrected_in_its_type(opened: Opened, user: str) -> None:
    schema = '{"properties": {"age": {"type": "integer"}, "lives_in": {"type": "string"}}}'
    async with opened(**AT_ONCE, extractor="rules", profile_schema=schema) as learnt:
        facts = learnt.memory.facts
        await learnt.learn(user, ["I am 34 years old and I live in Leeds."])
        known = {fact.predicate: fact for fact in await facts.query(user_id=user)}
        first = await facts.correct(known["age"], "36", user_id=user)
        corrected = await traits(learnt, user)
        await learnt.learn(user, ["I moved to Bath."])
        later = await traits(learnt, user)
        await facts.add("user", "age", "37", user_id=user)
        older = await traits(learnt, user)
        block = await learnt.memory.recall("How old am I?", user_id=user)
        (now,) = await facts.query(user_id=user, predicate="age")
        await facts.retract(now, user_id=user)
        reopened = await traits(learnt, user)
        assert first is not None
        (before,) = await facts.query(user_id=user, predicate="age")
        await facts.retract(before, user_id=user)

        assert corrected == {"age": 36, "lives_in": "Leeds"}
        assert later == {"age": 36, "lives_in": "Bath"}
        assert older == {"age": 37, "lives_in": "Bath"}
        assert "age: 37" in block.text
        assert reopened == {"age": 36, "lives_in": "Bath"}
        assert await traits(learnt, user) == {"lives_in": "Bath"}


async def test_a_number_that_a_model_proposed_is_corrected_as_a_number(opened: Opened, user: str) -> None:
    async with opened(**AT_ONCE, extractor="rules") as learnt:
        facts = learnt.memory.facts
        receipt = await learnt.learn(user, ["Hello."])
        numbers = {"shoe_size": 42, "locker": 42, "is_vegan": True}
        async with learnt.database.transaction(namespace="default") as tx:
            held = {name: Trait(value=value, evidence=receipt.episode_ids) for name, value in numbers.items()}
            await learnt.store.merge_profile(tx, Scope(user_id=user), held, at=datetime.now(UTC))
        said = {"user_id": user, "sources": receipt.episode_ids, "cardinality": "single"}
        size = await facts.add("user", "shoe_size", "42", **said)
        vegan = await facts.add("user", "is_vegan", "yes", **said)

        await facts.correct(size, "43", user_id=user)
        await facts.correct(vegan, "no", user_id=user)

        assert await traits(learnt, user) == {"shoe_size": 43, "locker": 42, "is_vegan": False}


async def test_a_fact_that_another_one_replaces_is_replaced_in_the_profile_too(opened: Opened, user: str) -> None:
    async with opened(**AT_ONCE, extractor="rules") as learnt:
        await learnt.learn(user, ["I live in Oslo."])

        rome = await learnt.memory.facts.add("user", "lives_in", "Rome", user_id=user)
        moved = await traits(learnt, user)
        await learnt.memory.facts.retract(rome, user_id=user)

        assert moved == {"lives_in": "Rome"}
        assert await traits(learnt, user) == {"lives_in": "Oslo"}


async def test_a_correction_holds_in_a_profile_that_is_made_after_it(opened: Opened, user: str) -> None:
    async with opened(summary_quiet_seconds=0.0, profile_quiet_seconds=3_600.0, extractor="rules") as learnt:
        facts = learnt.memory.facts
        await learnt.learn(user, ["I live in Oslo. I like tea and jazz. I work at Acme. My cat is called Dot."])
        known = {fact.object: fact for fact in await facts.query(user_id=user)}
        first = await facts.correct(known["Oslo"], "Bergen", user_id=user)
        assert first is not None
        await facts.correct(first, "Narvik", user_id=user)
        await facts.correct(known["tea"], "coffee", user_id=user)
        await facts.retract(known["Acme"], user_id=user)
        assert await traits(learnt, user) == {}

        (job,) = await learnt.ledger.jobs(kinds=[JobKind.PROFILE])
        await learnt.due(job.id)
        await learnt.settle()

        assert await traits(learnt, user) == {"likes": ["coffee", "jazz"], "lives_in": "Narvik", "has_pet": ["Dot"]}


async def test_a_trait_of_a_models_own_naming_follows_each_correction(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    async with opened(**AT_ONCE) as learnt:
        facts = learnt.memory.facts
        receipt = await learnt.learn(user, ["My home is Oslo."])
        async with learnt.database.transaction(namespace="default") as tx:
            home = Trait(value="a flat in Oslo", evidence=receipt.episode_ids)
            await learnt.store.merge_profile(tx, Scope(user_id=user), {"home": home}, at=datetime.now(UTC))
        fact = await facts.add("user", "lives_in", "Oslo", user_id=user, sources=receipt.episode_ids)

        first = await facts.correct(fact, "Bergen", user_id=user)
        assert first is not None
        await facts.correct(first, "Narvik", user_id=user)

        assert (await traits(learnt, user))["home"] == "a flat in Narvik"
