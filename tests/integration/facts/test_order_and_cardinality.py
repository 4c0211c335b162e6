"""Facts do not depend on which session is extracted first, nor on when a predicate became single-valued."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermind import Cardinality, Memory, Message, Settings

AT_ONCE = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0)


async def extract_in_turn(memory: Memory, said: Mapping[str, datetime]) -> None:
    """Remember messages with their times, each in a session, and extract one before the next is stored."""
    for text, day in said.items():
        message = Message.user(text, occurred_at=day)
        await (await memory.remember(message, user_id="zed", session_id=text)).extracted(timeout=30)


async def test_who_left_before_we_heard_that_they_were_there_has_left(tmp_path: Path) -> None:
    said = {"I left Acme.": datetime(2025, 9, 1, tzinfo=UTC), "I work at Acme.": datetime(2024, 6, 1, tzinfo=UTC)}
    async with Memory(f"sqlite:{tmp_path / 'memory.db'}", settings=AT_ONCE) as memory:
        await extract_in_turn(memory, said)
        current = await memory.facts.query(user_id="zed")
        (former,) = await memory.facts.query(user_id="zed", as_of=datetime(2025, 1, 1, tzinfo=UTC))

    assert current == []
    assert (former.text, former.valid_to) == ("user works at Acme", said["I left Acme."])


async def test_the_end_of_every_object_of_a_predicate_does_not_depend_on_the_order_of_extraction() -> None:
    said = {
        "We got divorced and I\u2019ve quit  my job.": datetime(2025, 9, 1, tzinfo=UTC),
        "I work at Acme.": datetime(2024, 6, 1, tzinfo=UTC),
        "I'm married to Ana.": datetime(2024, 6, 2, tzinfo=UTC),
        "I just joined Hooli. I quit my job.": datetime(2025, 10, 1, tzinfo=UTC),
    }
    for order in (list(said), list(said)[::-1]):
        async with Memory("inmemory", settings=AT_ONCE) as memory:
            await extract_in_turn(memory, {text: said[text] for text in order})
            now = {fact.text for fact in await memory.facts.query(user_id="zed")}
            before = {
                fact.text for fact in await memory.facts.query(user_id="zed", as_of=datetime(2025, 1, 1, tzinfo=UTC))
            }

        assert now == {"user relationship status divorced", "user works at Hooli"}
        assert before == {"user relationship status married", "user spouse Ana", "user works at Acme"}


@pytest.mark.parametrize("correction", ["I meant Basel, not Bern.", "I never lived in Bern. I live in Basel."])
async def test_what_a_message_corrects_has_the_start_of_what_it_retracts(correction: str) -> None:
    said = {
        "I live in Graz.": datetime(2024, 6, 1, tzinfo=UTC),
        "I moved to Bern.": datetime(2025, 3, 1, tzinfo=UTC),
        correction: datetime(2025, 9, 1, tzinfo=UTC),
    }
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        await extract_in_turn(memory, said)
        (home,) = await memory.facts.query(user_id="zed")
        (then,) = await memory.facts.query(user_id="zed", as_of=datetime(2025, 2, 1, tzinfo=UTC))
        corrected = (home.object, home.valid_from, then.object, then.valid_to)
        await memory.forget(user_id="zed", session_id="I moved to Bern.")
        (home,) = await memory.facts.query(user_id="zed")

    assert corrected == ("Basel", said["I moved to Bern."], "Graz", said["I moved to Bern."])
    assert (home.object, home.valid_from) == (
        "Basel",
        said[correction],
    )  # the date of the forgotten message is not kept


async def test_what_is_over_without_a_time_was_before_what_is_valid_now() -> None:
    said = {
        "I live in Graz.": datetime(2024, 6, 1, tzinfo=UTC),
        "I moved to Basel.": datetime(2025, 3, 1, tzinfo=UTC),
        "I used to live in Madrid.": datetime(2025, 9, 1, tzinfo=UTC),
    }
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        await extract_in_turn(memory, said)
        homes = {
            day: [fact.object for fact in await memory.facts.query(user_id="zed", as_of=day)]
            for day in (
                datetime(2024, 1, 1, tzinfo=UTC),
                datetime(2024, 7, 1, tzinfo=UTC),
                datetime(2025, 4, 1, tzinfo=UTC),
            )
        }

    assert list(homes.values()) == [["Madrid"], ["Graz"], ["Basel"]]


async def test_former_homes_without_a_start_do_not_replace_each_other() -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for text in ("I worked at Hooli until 2019.", "I worked at Globex until 2015.", "I used to live in Rome."):
            await (await memory.remember(text, user_id="zed", session_id=text)).extracted(timeout=30)
        await (await memory.remember("I used to live in Madrid.", user_id="zed", session_id="m")).extracted(timeout=30)
        former = await memory.facts.query(user_id="zed", as_of=datetime(2015, 1, 1, tzinfo=UTC))

    assert {fact.object for fact in former} == {"Hooli", "Globex", "Rome", "Madrid"}


async def test_a_former_object_is_no_correction_of_what_has_ended_before() -> None:
    said = {
        "I live in Graz.": datetime(2024, 6, 1, tzinfo=UTC),
        "I no longer live in Graz.": datetime(2025, 3, 1, tzinfo=UTC),
        "I never lived in Graz. I live in Bern since July 2025.": datetime(2025, 9, 1, tzinfo=UTC),
    }
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        await extract_in_turn(memory, said)
        (home,) = await memory.facts.query(user_id="zed")

    assert (home.object, home.valid_from) == ("Bern", datetime(2025, 7, 1, tzinfo=UTC))


async def test_a_job_of_the_same_moment_is_ended_by_another_message_only() -> None:
    said = {"ann": ["I work at Acme.", "I quit my job."], "ben": ["I just joined Hooli. I quit my job."]}
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for user, texts in said.items():
            await (await memory.remember(texts, user_id=user, idempotency_key=user)).extracted(timeout=30)
        found = {user: [fact.object for fact in await memory.facts.query(user_id=user)] for user in said}

    assert found == {"ann": [], "ben": ["Hooli"]}


async def test_an_end_that_a_fact_has_counts_as_an_outcome() -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for text in ("I work at Acme.", "I quit my job.", "We broke up."):
            await (await memory.remember(text, user_id="zed", session_id=text)).extracted(timeout=30)
        outcomes = await memory.extraction(user_id="zed")

    assert {each.facts for each in outcomes if each.session_id != "We broke up."} == {1}
    assert [each.facts for each in outcomes if each.session_id == "We broke up."] == [0]


async def test_a_predicate_that_becomes_single_valued_has_one_object_from_the_next_statement_on() -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for car in ("a Volvo", "an Audi"):
            await memory.facts.add("user", "drives", car, user_id="ann")
        await memory.facts.set_cardinality("drives", Cardinality.SINGLE)
        await memory.facts.add("user", "drives", "a BMW", user_id="ann")

        assert [fact.object for fact in await memory.facts.query(user_id="ann")] == ["a BMW"]
