"""What memory learns, keeps for agents, tells, and forgets."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from aftermind import Memory, Message, StepState, errors
from aftermind.api.outbox_per_accept_mode import Accept
from aftermind.events.types import MemoryEvent
from tests.support.waiting import wait_until

CITIES = ("Bergen", "Oslo", "Lisbon", "Berlin", "Paris", "Rome", "Madrid", "Vienna")


async def test_facts_are_learnt_from_what_the_user_says(memory: Memory, user: str) -> None:
    receipt = await memory.remember("I live in Bergen.", user_id=user, session_id="s1")

    await receipt.extracted(timeout=180)

    (fact,) = await memory.facts.query(user_id=user, predicate="lives_in")
    assert "Bergen" in fact.object


async def test_a_fact_tells_from_which_message_it_came(memory: Memory, user: str) -> None:
    receipt = await memory.remember("I live in Bergen.", user_id=user, session_id="s1")
    await receipt.extracted(timeout=180)
    (fact,) = await memory.facts.query(user_id=user, predicate="lives_in")

    why = await memory.facts.why(fact, user_id=user)

    assert why is not None
    assert [episode.content for episode in why.episodes] == ["I live in Bergen."]
    assert why.extractor == fact.extractor


async def test_a_new_home_ends_the_old_one_and_keeps_it_in_history(memory: Memory, user: str) -> None:
    await memory.facts.add("user", "lives_in", "Bergen", user_id=user)
    await memory.facts.add("user", "lives_in", "Oslo", user_id=user)

    assert [fact.object for fact in await memory.facts.query(user_id=user)] == ["Oslo"]
    assert {fact.object for fact in await memory.facts.history("user", "lives_in", user_id=user)} == {"Bergen", "Oslo"}


async def test_facts_that_are_told_at_once_leave_one_home(memory: Memory, user: str) -> None:
    cities = [f"city {number}" for number in range(10)]

    await asyncio.gather(*(memory.facts.add("user", "lives_in", city, user_id=user) for city in cities))

    assert len(await memory.facts.query(user_id=user, predicate="lives_in")) == 1
    assert len({fact.object for fact in await memory.facts.history("user", "lives_in", user_id=user)}) == 10


async def test_sessions_that_are_mined_at_once_leave_one_home(memory: Memory, user: str) -> None:
    said = [datetime(2025, month, 1, tzinfo=UTC) for month in range(1, 9)]
    for number, moment in enumerate(said):
        message = Message.user(f"I live in {CITIES[number]}.", occurred_at=moment)
        await memory.remember(message, user_id=user, session_id=f"s{number}")

    await memory.drain(user_id=user)

    (home,) = await memory.facts.query(user_id=user, predicate="lives_in")
    assert CITIES[7] in home.object


async def test_facts_are_found_however_subject_and_predicate_are_put(memory: Memory, user: str) -> None:
    await memory.facts.add("The Ann", "moved to", "Bergen", user_id=user)

    assert [fact.object for fact in await memory.facts.query(subject="ann", predicate="lives_in", user_id=user)]
    assert [fact.object for fact in await memory.facts.query(predicate="moved_to", user_id=user)]
    assert [fact.object for fact in await memory.facts.history("ANN", "Lives in", user_id=user)]
    assert await memory.facts.query(subject="bob", user_id=user) == []


async def test_what_is_told_is_believed_though_messages_are_dated_in_the_future(memory: Memory, user: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=12)
    await (
        await memory.remember([Message.user("I live in Lyon.", occurred_at=later)], user_id=user, session_id="s")
    ).extracted(timeout=180)

    told = await memory.facts.add("user", "lives_in", "Nice", user_id=user)

    assert told.object == "Nice"
    assert [fact.object for fact in await memory.facts.query(user_id=user, predicate="lives_in")] == ["Nice"]
    assert await memory.facts.retract(told, user_id=user)


async def test_a_fact_that_is_taken_back_is_believed_no_more(memory: Memory, user: str) -> None:
    fact = await memory.facts.add("user", "likes", "jazz", user_id=user)

    assert await memory.facts.retract(fact, user_id=user)

    assert await memory.facts.query(user_id=user) == []
    assert not await memory.facts.retract(fact, user_id=user), "it is not believed any more"


async def test_a_corrected_fact_has_its_new_object_in_one_step(memory: Memory, user: str) -> None:
    since = datetime(2025, 3, 1, tzinfo=UTC)
    fact = await memory.facts.add("user", "lives_in", "Oslo", user_id=user, valid_from=since)

    corrected = await memory.facts.correct(fact, "Bergen", user_id=user)
    assert await memory.facts.correct(corrected, "Bergen", user_id=user) == corrected, "it changes nothing"

    (found,) = await memory.facts.query(user_id=user)
    assert (found.object, found.valid_from) == ("Bergen", since)
    assert corrected == found
    why = await memory.facts.why(found, user_id=user)
    assert why is not None
    assert [each.id for each in why.replaced] == [fact.id]
    old = next(each for each in await memory.facts.history(user_id=user) if each.id == fact.id)
    assert old.superseded_at is not None
    assert not await memory.facts.correct(fact, "Narvik", user_id=user), "it is superseded"
    assert [each.object for each in await memory.facts.query(user_id=user)] == ["Bergen"]


async def test_a_graph_leads_over_facts_to_other_entities(memory: Memory, user: str) -> None:
    await memory.facts.add("Alice", "works_at", "Acme", user_id=user)
    await memory.facts.add("Acme", "owned_by", "Bob", user_id=user)
    await memory.facts.add("Bob", "brother_of", "Eve", user_id=user)
    await memory.facts.add("Ann", "likes", "tea", user_id=user)

    graph = await memory.facts.graph("the alice", user_id=user)

    assert dict(graph.hops) == {"the alice": 0, "Acme": 1, "Bob": 2}
    assert [fact.predicate for fact in graph.facts] == ["works_at", "owned_by"]
    assert len((await memory.facts.graph("Bob", hops=1, user_id=user)).facts) == 2  # in either direction


async def test_a_graph_shows_another_moment_of_the_world(memory: Memory, user: str) -> None:
    await memory.facts.add("Alice", "lives_in", "Bergen", user_id=user, valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    await memory.facts.add("Alice", "lives_in", "Oslo", user_id=user, valid_from=datetime(2024, 1, 1, tzinfo=UTC))

    then = await memory.facts.graph("Alice", user_id=user, as_of=datetime(2022, 1, 1, tzinfo=UTC))

    assert set(then.hops) == {"Alice", "Bergen"}
    assert set((await memory.facts.graph("Alice", user_id=user)).hops) == {"Alice", "Oslo"}


@pytest.mark.parametrize("hops", [0, 6, 1.5, True])
async def test_hops_of_a_graph_are_bounded(memory: Memory, user: str, hops: int) -> None:
    with pytest.raises(errors.InvalidFact, match="hops"):
        await memory.facts.graph("Alice", hops=hops, user_id=user)


async def test_a_block_is_edited_and_versioned(memory: Memory, user: str) -> None:
    await memory.blocks.set("todo", "buy milk", user_id=user)
    await memory.blocks.append("todo", "call Nora", user_id=user)
    block = await memory.blocks.replace("todo", "milk", "oat milk", user_id=user)

    assert block.content == "buy oat milk\ncall Nora"
    assert block.version == 3
    assert "call Nora" in (await memory.recall("What do I have to do?", user_id=user)).text
    assert await memory.blocks.delete("todo", user_id=user)
    assert await memory.blocks.list(user_id=user) == []


async def test_an_edit_of_a_block_that_has_changed_is_refused(memory: Memory, user: str) -> None:
    seen = await memory.blocks.set("human", "a", user_id=user)
    await memory.blocks.set("human", "b", user_id=user)

    with pytest.raises(errors.BlockConflict):
        await memory.blocks.set("human", "c", user_id=user, expected_version=seen.version)


async def test_blocks_are_renamed_all_or_none(memory: Memory, user: str) -> None:
    for name in ("a", "b", "taken"):
        await memory.blocks.set(name, f"text of {name}", user_id=user)

    for names, error in (({"a": "new", "b": "taken"}, errors.BlockConflict), ({"a": "new", "c": "d"}, errors.NotThere)):
        with pytest.raises(error):
            await memory.blocks.rename(names, user_id=user)
        assert [each.name for each in await memory.blocks.list(user_id=user)] == ["a", "b", "taken"]
    await memory.blocks.rename({"a": "new", "b": "newer"}, user_id=user)

    found = [(each.name, each.content) for each in await memory.blocks.list(user_id=user)]
    assert found == [("new", "text of a"), ("newer", "text of b"), ("taken", "text of taken")]


async def test_events_tell_what_happens_to_a_turn(memory: Memory, user: str) -> None:
    heard: list[MemoryEvent] = []

    async def listen() -> None:
        async for event in memory.events(user_id=user, after="0"):
            heard.append(event)  # noqa: PERF401  # it never ends: a comprehension would give nothing

    listening = asyncio.create_task(listen())
    receipt = await memory.remember("Hello", user_id=user)

    def completed() -> list[MemoryEvent]:
        return [each for each in heard if each.event == "MemoryUpdateCompleted" and each.job_id == str(receipt.job_id)]

    await wait_until(completed, description="the turn is completed")
    listening.cancel()
    assert all("Hello" not in str(each.to_json()) for each in heard), "events carry ids and counts, not what was said"


async def test_missed_events_are_had_after_a_cursor(memory: Memory, user: str) -> None:
    await (await memory.remember("One", user_id=user)).stored(timeout=180)
    seen = await anext(aiter(memory.events(user_id=user, after="0")))
    second = await memory.remember("Two", user_id=user)
    await second.stored(timeout=180)

    async with asyncio.timeout(180):
        async for event in memory.events(user_id=user, after=seen.cursor):
            if event.job_id == str(second.job_id):
                break


async def test_what_is_forgotten_is_gone_and_the_rest_is_not(memory: Memory, user: str) -> None:
    await memory.remember("My PIN is 4711.", user_id=user, session_id="secret")
    await memory.remember("I like jazz.", user_id=user, session_id="music")
    await memory.drain(user_id=user)

    await memory.forget(user_id=user, session_id="secret")

    assert "4711" not in (await memory.recall("What is my PIN?", user_id=user)).text
    assert [each.content for each in await memory.history(user_id=user)] == ["I like jazz."]


async def test_a_key_that_was_used_before_a_forget_has_the_receipt_of_the_new_turn(memory: Memory, user: str) -> None:
    first = await memory.remember("I live in Oslo.", user_id=user, session_id="s", idempotency_key="k")
    await first.extracted(timeout=180)
    await memory.forget(user_id=user)

    second = await memory.remember("I live in Rome.", user_id=user, session_id="s", idempotency_key="k")
    at_once = (await second.status()).stored
    await second.extracted(timeout=180)
    status = await second.status()

    assert at_once in (StepState.WAITING, StepState.DONE)
    assert (status.stored, status.extracted) == (StepState.DONE, StepState.DONE)
    assert status == await memory.jobs.status(second.job_id, user_id=user)
    assert [fact.object for fact in await memory.facts.query(user_id=user)] == ["Rome"]


async def test_everything_of_a_user_can_be_taken_along(memory: Memory, user: str) -> None:
    await memory.remember("I live in Bergen.", user_id=user)
    await memory.blocks.set("human", "likes short answers", user_id=user)
    await memory.drain(user_id=user)

    taken = await memory.export(user_id=user)

    assert [each.content for each in taken.episodes] == ["I live in Bergen."]
    assert [each.name for each in taken.blocks] == ["human"]
    assert taken.facts


async def test_health_names_every_component(memory: Memory) -> None:
    seen = await memory.health()

    assert seen.is_ready
    assert {"store", "redis"} <= {part.name for part in seen.parts}


async def test_feedback_changes_the_confidence_of_a_procedure_once_for_each_key(memory: Memory, user: str) -> None:
    fact = await memory.facts.add("when asked", "procedure", "be brief", confidence=0.5, user_id=user)
    for key in ("a", "b", "b"):
        sent = await memory.feedback(unhelpful=[fact.id], user_id=user, idempotency_key=key)
        await sent.stored(timeout=180)

    (known,) = await memory.facts.query(user_id=user)
    assert known.confidence == 0.25


@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_feedback_about_unknown_ids_leaves_no_row(memory: Memory, user: str, accept: Accept) -> None:
    receipt = await memory.remember("Tea at nine.", user_id=user, accept=accept)
    await receipt.stored(timeout=180)
    await memory.drain(user_id=user, timeout=180)
    sent = await memory.feedback(helpful=[uuid4(), *receipt.episode_ids], user_id=user, accept=accept)
    await sent.stored(timeout=180)

    assert [each.key for each in (await memory.export(user_id=user)).items] == [str(receipt.episode_ids[0])]


async def test_feedback_is_exported_and_goes_with_its_message(memory: Memory, user: str) -> None:
    kept, gone = await memory.remember(["Tea at nine.", "Coffee at ten."], user_id=user), "Milk at noon."
    receipt = await memory.remember(gone, user_id=user)
    (first, second), (third,) = kept.episode_ids, receipt.episode_ids
    sent = await memory.feedback(helpful=[first, str(third)], unhelpful=[second], user_id=user)
    await sent.stored(timeout=180)

    counts = {each.key: dict(each.value) for each in (await memory.export(user_id=user)).items}
    await memory.forget(user_id=user, ids=[third])

    helped, did_not = {"helpful": 1, "unhelpful": 0}, {"helpful": 0, "unhelpful": 1}
    assert counts == {str(first): helped, str(second): did_not, str(third): helped}
    left = {each.key for each in (await memory.export(user_id=user)).items}
    assert left == {str(first), str(second)}
    assert [each.content for each in await memory.history(user_id=user)] == ["Tea at nine.", "Coffee at ten."]
