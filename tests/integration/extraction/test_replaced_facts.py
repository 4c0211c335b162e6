"""`why(fact).replaced`: the same facts, whichever messages were extracted together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from uuid import UUID

import pytest

from aftermind import Fact, Memory, Message
from tests.support.learning import Learning


def _messages(*texts: str) -> list[Message]:
    return [
        Message.user(text, occurred_at=datetime(2020 + number, 1, 1, tzinfo=UTC)) for number, text in enumerate(texts)
    ]


# The messages, and for each object of the history what it replaced.
STATED = {
    "moves": (
        _messages("I live in Lisbon.", "I live in Porto.", "I live in Faro."),
        {"Lisbon": [], "Porto": ["Lisbon"], "Faro": ["Porto"]},
    ),
    "a corrected home": (
        _messages("I live in Berlin.", "I meant Bern, not Berlin.", "I live in Rome."),
        {"Berlin": [], "Bern": ["Berlin"], "Rome": ["Bern"]},
    ),
    "a corrected second home": (
        _messages("I live in Graz.", "I live in Berlin.", "I meant Bern, not Berlin."),
        {"Graz": [], "Berlin": ["Graz"], "Bern": ["Berlin", "Graz"]},
    ),
    "two corrections": (
        _messages("I live in Berlin.", "I meant Bern, not Berlin.", "I meant Basel, not Bern."),
        {"Berlin": [], "Bern": ["Berlin"], "Basel": ["Bern"]},
    ),
    "a corrected allergy": (
        _messages(
            "I'm allergic to nuts.", "I'm allergic to penicillin.", "Sorry, I meant amoxicillin, not penicillin."
        ),
        {"nuts": [], "penicillin": [], "amoxicillin": ["penicillin"]},
    ),
    "homes of one moment": (
        _messages("I've lived in Berlin since 2015.", "I've lived in Bern since 2015.", "I like tea."),
        {"Berlin": [], "Bern": ["Berlin"], "tea": []},
    ),
}
BATCHES = [[3], [1, 2], [2, 1], [1, 1, 1]]


async def _replaced(memory: Memory, fact: Fact) -> list[str]:
    why = await memory.facts.why(fact)
    assert why is not None
    return [each.object for each in why.replaced]


async def _assert_replaced(memory: Memory, user: str, expected: dict[str, list[str]]) -> None:
    history = await memory.facts.history(user_id=user)
    assert {fact.object for fact in history} == set(expected)
    for fact in history:
        assert sorted(await _replaced(memory, fact)) == expected[fact.object], fact


async def _learn(memory: Memory, messages: Sequence[Message], batches: Sequence[int]) -> list[UUID]:
    rest, ids = list(messages), list[UUID]()
    for size in batches:
        receipt = await memory.remember(rest[:size], user_id="ana")
        ids += receipt.episode_ids
        await memory.drain(user_id="ana", timeout=30)
        del rest[:size]
    return ids


@pytest.mark.parametrize("batches", BATCHES, ids=str)
@pytest.mark.parametrize("kind", STATED)
async def test_a_fact_replaced_what_it_ended_or_corrected(memory: Memory, kind: str, batches: Sequence[int]) -> None:
    messages, expected = STATED[kind]
    await _learn(memory, messages, batches)

    await _assert_replaced(memory, "ana", expected)


@pytest.mark.parametrize("batches", BATCHES, ids=str)
async def test_a_fact_replaced_what_it_ended_or_corrected_on_postgres(
    opened: Callable[..., AbstractAsyncContextManager[Learning]], batches: Sequence[int]
) -> None:
    async with opened(extractor="rules") as learnt:
        for user, (messages, expected) in STATED.items():
            rest = list(messages)
            for size in batches:
                await learnt.learn(user, rest[:size])
                del rest[:size]

            await _assert_replaced(learnt.memory, user, expected)


async def test_a_retraction_in_another_message_is_no_correction(memory: Memory) -> None:
    texts = ["I'm allergic to penicillin.", "I was never allergic to penicillin.", "I'm allergic to nuts since 2015."]
    await _learn(memory, _messages(*texts), [3])

    await _assert_replaced(memory, "ana", {"penicillin": [], "nuts": []})


async def test_a_fact_that_was_corrected_before_it_was_believed_has_a_row_in_the_history_only(memory: Memory) -> None:
    await _learn(memory, _messages("I live in Berlin.", "I meant Bern, not Berlin."), [2])

    (bern,) = await memory.facts.query(user_id="ana")
    (berlin,) = [fact for fact in await memory.facts.history(user_id="ana") if fact.object == "Berlin"]

    assert bern.object == "Bern"
    assert berlin.superseded_at == berlin.recorded_at == bern.recorded_at
    assert berlin.sources != bern.sources
    assert await memory.facts.query(user_id="ana", known_at=berlin.recorded_at) == [bern]
    exported = await memory.export(user_id="ana")
    assert {fact.id for fact in exported.facts} == {berlin.id, bern.id}


FORGOTTEN = [
    ("a corrected home", 0, {"Bern": [], "Rome": ["Bern"]}),
    ("a corrected home", 1, {"Berlin": [], "Rome": ["Berlin"]}),
    ("a corrected allergy", 1, {"nuts": [], "amoxicillin": []}),
    ("a corrected allergy", 2, {"nuts": [], "penicillin": []}),
]


@pytest.mark.parametrize("batches", [[3], [1, 1, 1]], ids=str)
@pytest.mark.parametrize(("kind", "forgotten", "expected"), FORGOTTEN)
async def test_what_was_replaced_is_of_the_messages_that_an_erasure_leaves(
    memory: Memory, kind: str, forgotten: int, expected: dict[str, list[str]], batches: Sequence[int]
) -> None:
    ids = await _learn(memory, STATED[kind][0], batches)

    await memory.forget(user_id="ana", ids=[ids[forgotten]])

    await _assert_replaced(memory, "ana", expected)


@pytest.mark.parametrize("batches", [[3], [1, 1, 1]], ids=str)
async def test_an_undone_correction_replaced_nothing(memory: Memory, batches: Sequence[int]) -> None:
    ids = await _learn(memory, STATED["a corrected home"][0], batches)

    await memory.undo(ids[1], user_id="ana")
    await memory.drain(user_id="ana", timeout=30)

    await _assert_replaced(memory, "ana", {"Berlin": [], "Bern": [], "Rome": ["Berlin"]})


async def test_a_correction_replaced_the_corrected_fact_also_after_its_end(memory: Memory) -> None:
    since = datetime(2024, 1, 1, tzinfo=UTC)
    tea = await memory.facts.add("user", "likes", "tea", user_id="ana", valid_from=since)
    oslo = await memory.facts.add("user", "lives_in", "Oslo", user_id="ana", valid_from=since)
    await memory.facts.correct(tea, "coffee")
    await memory.facts.correct(oslo, "Bergen")
    rome = await memory.facts.add("user", "lives_in", "Rome", user_id="ana")

    history = await memory.facts.history(user_id="ana")

    assert [fact.valid_to is None for fact in history if fact.object == "Bergen"] == [False, True]
    assert await _replaced(memory, rome) == ["Bergen"]
    for fact in history:
        if fact.object in ("Bergen", "coffee"):
            assert await _replaced(memory, fact) == ["Oslo" if fact.object == "Bergen" else "tea"]


async def test_a_retraction_makes_no_fact_that_replaced_another(memory: Memory) -> None:
    await memory.facts.add("user", "lives_in", "Oslo", user_id="ana")
    rome = await memory.facts.add("user", "lives_in", "Rome", user_id="ana")
    await memory.facts.retract(rome)

    (oslo,) = await memory.facts.query(user_id="ana")

    assert await _replaced(memory, oslo) == []
