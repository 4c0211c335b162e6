"""Profiles and summaries of old conversations have the dates of those, and no traits that are no longer true."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from aftermind import Memory, Message, Settings, errors
from aftermind.types import JobKind, Profile
from tests.support.waiting import wait_until

AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0, "extract_quiet_seconds": 0.0}
OFFLINE = Settings(embedder="hash", extractor="rules", **AT_ONCE)


async def _version(memory: Memory, version: int) -> Profile | None:
    profile = await memory.profile(user_id="ana")
    return profile if profile is not None and profile.version >= version else None


async def test_a_block_dates_traits_and_summaries_by_their_messages() -> None:
    said = datetime(2025, 11, 15, tzinfo=UTC)
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.remember(
            [Message.user("I have a dog named Bruno.", occurred_at=said)], user_id="ana", session_id="s"
        )
        await memory.drain(user_id="ana", timeout=30)
        summary = await wait_until(lambda: memory.summary(user_id="ana", session_id="s"), description="a summary")
        await wait_until(lambda: memory.profile(user_id="ana"), description="a profile")
        block = await memory.recall("What pets do I have?", user_id="ana", session_id="s2")

    assert summary.last_message_at == said
    assert 'up_to="2025-11-15"' in block.text
    assert "Bruno (as of 2025-11-15)" in block.text


async def test_a_trait_of_which_nothing_is_true_any_more_is_no_line_of_the_block() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        for number, text in enumerate(("I play the cello.", "I no longer play the cello."), start=1):
            await memory.remember(text, user_id="ana")
            profile = await wait_until(partial(_version, memory, number), description="the profile has it")

    assert "plays" not in profile.traits


async def test_a_trait_keeps_the_latest_time_of_its_messages_when_an_old_one_is_imported() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        for text, year in (("I have a dog named Bruno.", 2026), ("I have a cat named Minka.", 2025)):
            said = Message.user(text, occurred_at=datetime(year, 5, 1, tzinfo=UTC))
            await memory.remember([said], user_id="ana")
            profile = await wait_until(partial(_version, memory, 2027 - year), description="the profile has it")

    assert profile.traits["has_pet"].value == ["Bruno", "Minka"]
    assert profile.traits["has_pet"].last_message_at == datetime(2026, 5, 1, tzinfo=UTC)


async def test_a_profile_that_is_made_after_a_call_ended_a_fact_does_not_have_it() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.job_admin.pause(kind=JobKind.PROFILE, reason="a test", actor="test")
        said = Message.user("I'm a vegetarian. I live in Oslo.", occurred_at=datetime(2026, 1, 5, tzinfo=UTC))
        receipt = await memory.remember([said], user_id="ana")
        await receipt.extracted(timeout=30)
        ended = datetime(2026, 9, 1, tzinfo=UTC)
        await memory.facts.add("user", "diet", "vegetarian", valid_to=ended, user_id="ana")
        await memory.job_admin.resume(kind=JobKind.PROFILE, actor="test")
        profile = await wait_until(lambda: _version(memory, 1), description="a profile")

    assert set(profile.traits) == {"lives_in"}


async def test_messages_that_are_read_again_after_a_forget_set_no_newer_trait_back() -> None:
    said = {
        2023: "I work at Remontowa. I like chess.",
        2024: "I work at Blue Reef. I don't like jazz.",
        2025: "I like tea.",
    }
    async with Memory("inmemory", settings=OFFLINE) as memory:
        for version, (year, text) in enumerate(said.items(), start=1):
            message = Message.user(text, occurred_at=datetime(year, 5, 1, tzinfo=UTC))
            await memory.remember([message], user_id="ana", session_id=str(year))
            before = await wait_until(partial(_version, memory, version), description="the profile has it")
        await memory.forget(user_id="ana", session_id="2025")
        after = await wait_until(partial(_with_trait, memory, "likes"), description="the likes are read again")

    assert before.traits["likes"].value == ["chess", "tea"]
    assert after.traits["likes"].value == ["chess"]
    assert after.traits["works_at"].value == "Blue Reef"


async def _with_trait(memory: Memory, name: str) -> Profile | None:
    profile = await memory.profile(user_id="ana")
    return profile if profile is not None and name in profile.traits else None


async def test_a_profile_follows_a_fact_of_a_call_that_is_newer_than_its_messages() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        said = ("I live in Rotterdam. I like chess.", "I moved to Valletta. I like tea.")
        for version, text in enumerate(said, start=1):
            message = Message.user(text, occurred_at=datetime(2020 + version, 5, 1, tzinfo=UTC))
            await memory.remember([message], user_id="ana", session_id=str(version))
            await wait_until(partial(_version, memory, version), description="the profile has it")
        await memory.facts.add("user", "lives_in", "Sliema", user_id="ana")
        await memory.forget(user_id="ana", session_id="2")
        profile = await wait_until(partial(_with_trait, memory, "likes"), description="the likes are read again")
        home = [fact.object for fact in await memory.facts.query(user_id="ana", predicate="lives_in")]

    assert home == ["Sliema"]
    assert profile.traits["lives_in"].value == "Sliema"


async def test_a_profile_by_rules_keeps_a_message_that_gives_no_facts() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.job_admin.pause(kind=JobKind.PROFILE, reason="a test", actor="test")
        old, new = (datetime(year, 5, 1, tzinfo=UTC) for year in (2023, 2025))
        receipt = await memory.remember([Message.user("I live in Oslo.", occurred_at=old)], user_id="ana")
        await receipt.extracted(timeout=30)
        moved = Message.user("I moved to Bergen.", occurred_at=new)
        await (await memory.remember([moved], user_id="ana", save={"history", "profile"})).stored(timeout=30)
        await memory.job_admin.resume(kind=JobKind.PROFILE, actor="test")
        profile = await wait_until(lambda: _version(memory, 1), description="a profile")

    assert profile.traits["lives_in"].value == "Bergen"


async def test_a_profile_by_rules_has_what_the_facts_have() -> None:
    said = (
        ("My birthday is on 3 May. I live in Bern.", datetime(2025, 1, 15, tzinfo=UTC)),
        ("I was born in 1990. I moved to Basel last year.", datetime(2025, 3, 2, tzinfo=UTC)),
    )
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.job_admin.pause(kind=JobKind.PROFILE, reason="a test", actor="test")
        for text, at in said:
            receipt = await memory.remember([Message.user(text, occurred_at=at)], user_id="ana")
            await receipt.extracted(timeout=30)
        await memory.job_admin.resume(kind=JobKind.PROFILE, actor="test")
        profile = await wait_until(lambda: _version(memory, 1), description="a profile")
        facts = await memory.facts.query(user_id="ana")

    assert {name: trait.value for name, trait in profile.traits.items()} == {
        each.predicate: each.object for each in facts
    }
    assert profile.traits["birthday"].value == "3 May"


async def test_a_profile_by_rules_has_the_types_of_its_schema() -> None:
    of_values = '{"type": "array", "items": {"enum": ["tea", "coffee"]}}'
    works_at = '{"enum": ["Acme", "Initech"]}'
    schema = (
        '{"properties": {"age": {"type": "integer"}, "lives_in": {"type": "boolean"}, '
        f'"works_at": {works_at}, "has_job": {{"enum": ["baker"]}}, "likes": {of_values}}}}}'
    )

    assert await _traits(schema) == {"age": 34, "works_at": "Acme"}


@pytest.mark.parametrize("store", ["inmemory", "sqlite"])
async def test_a_correction_fits_the_schema_or_removes_the_old_value(store: str, tmp_path: Path) -> None:
    schema = (
        '{"properties": {"age": {"type": "integer"}, "works_at": {"enum": ["Acme", "Initech"]}, '
        '"likes": {"type": "array", "items": {"enum": ["tea", "coffee", "jazz"]}}}}'
    )
    settings = Settings(**{**OFFLINE.model_dump(), "profile_schema": schema})
    url = store if store == "inmemory" else f"sqlite:{tmp_path / 'memory.db'}"
    async with Memory(url, settings=settings) as memory:
        await memory.remember("I'm 34 years old. I work at Acme. I like tea and jazz.", user_id="ana")
        await memory.drain(user_id="ana", timeout=30)
        await wait_until(lambda: _version(memory, 1), description="a profile")
        facts = {fact.object: fact for fact in await memory.facts.query(user_id="ana")}

        age = await memory.facts.correct(facts["34"], "36")
        work = await memory.facts.correct(facts["Acme"], "initech")
        await memory.facts.correct(facts["tea"], "coffee")
        await memory.facts.correct(facts["jazz"], "the blues")
        fitting = await memory.profile(user_id="ana")
        assert age is not None
        assert work is not None
        too_large = await memory.facts.correct(age, "9" * 40)
        assert too_large is not None
        await memory.facts.add("user", "likes", "chess", user_id="ana")
        left = await memory.profile(user_id="ana")

    assert fitting is not None
    assert {name: trait.value for name, trait in fitting.traits.items()} == {"age": 36, "likes": ["coffee"]}
    assert left is not None
    assert {name: trait.value for name, trait in left.traits.items()} == {"likes": ["coffee"]}


@pytest.mark.parametrize(
    ("schema", "old", "new"),
    [
        ('{"properties": {"age": {"type": "integer"}}}', "34", "36"),
        ("tests.support.saved_parts:Years", "34 years", "36 years"),
    ],
)
async def test_a_trait_with_a_type_follows_a_fact_of_a_call(schema: str, old: str, new: str) -> None:
    settings = Settings(**{**OFFLINE.model_dump(), "profile_schema": schema})
    async with Memory("inmemory", settings=settings) as memory:
        await memory.job_admin.pause(kind=JobKind.PROFILE, reason="a test", actor="test")
        said = Message.user("I'm 34 years old.", occurred_at=datetime(2024, 5, 1, tzinfo=UTC))
        await (await memory.remember([said], user_id="ana")).extracted(timeout=30)
        await memory.facts.add("user", "age", old, user_id="ana", valid_from=datetime(2024, 6, 1, tzinfo=UTC))
        newer = await memory.facts.add("user", "age", new, user_id="ana")
        await memory.job_admin.resume(kind=JobKind.PROFILE, actor="test")
        made_later = await wait_until(lambda: _version(memory, 1), description="a profile")
        await memory.facts.retract(newer)
        retracted = await memory.profile(user_id="ana")

    assert made_later.traits["age"].value == 36
    assert retracted is not None
    assert retracted.traits["age"].value == 34


async def test_a_profile_by_rules_has_the_aliases_of_its_model() -> None:
    assert await _traits("tests.support.saved_parts:Aliased") == {"lives_in": "Leeds"}


async def test_a_profile_schema_that_cannot_be_imported_is_refused_when_the_memory_is_opened() -> None:
    with pytest.raises(errors.InvalidSettings, match=r"profile_schema.*cannot be imported"):
        Memory("inmemory", settings=Settings(profile_schema="nope.mod:Profile"))
    for given in ("tests.support.saved_parts", "tests.support.saved_parts:Nope"):
        with pytest.raises(errors.InvalidSettings, match=r"has no Pydantic model of the name .*`module:Model`"):
            Memory("inmemory", settings=Settings(profile_schema=given))


async def _traits(schema: str) -> dict[str, object]:
    settings = Settings(**{**OFFLINE.model_dump(), "profile_schema": schema})
    async with Memory("inmemory", settings=settings) as memory:
        await memory.remember(
            "I'm 34 years old. I live in Leeds. I work at Acme. I'm a plumber. I like jazz.", user_id="ana"
        )
        profile = await wait_until(lambda: _version(memory, 1), description="a profile")
    return {name: trait.value for name, trait in profile.traits.items()}


async def test_a_recall_without_a_session_has_the_summary_of_the_session_with_the_latest_message() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        for session, year in (("new", 2026), ("old", 2024)):
            said = Message.user(f"I planted an oak in {year}.", occurred_at=datetime(year, 5, 1, tzinfo=UTC))
            await memory.remember([said], user_id="ana", session_id=session)
            await wait_until(
                partial(memory.summary, user_id="ana", session_id=session), description="the session has a summary"
            )
        block = await memory.recall("What did I plant?", user_id="ana", load=["summary"])
        of_old = await memory.recall("What did I plant?", user_id="ana", session_id="old", load=["summary"])

    assert [each.summary.scope.session_id for each in (block, of_old) if each.summary] == ["new", "old"]
