"""Facts that stay after a part of their messages is forgotten: they have the times of the other messages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aftermind import Fact, Memory, Message, Settings
from aftermind.types import EpisodeId
from tests.support.learning import AT_ONCE, UNHURRIED, learning
from tests.support.servers import Database

USER = "vera"
FIRST, LAST = datetime(2023, 5, 2, 9, tzinfo=UTC), datetime(2026, 2, 3, 9, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """A memory whose jobs have run when `say` returns."""

    memory: Memory
    settle: Callable[[], Awaitable[object]]

    async def say(self, text: str, at: datetime, *, session: str | None = None) -> EpisodeId:
        message = Message.user(text, occurred_at=at)
        receipt = await self.memory.remember([message], user_id=USER, session_id=session or f"{at:%Y}")
        await self.settle()
        return receipt.episode_ids[0]

    async def facts(self, predicate: str) -> list[Fact]:
        """Current facts, also those that have ended, by their start."""
        found = [row for row in await self.history() if row.superseded_at is None and row.predicate == predicate]
        return sorted(found, key=lambda row: row.valid_from or FIRST)

    async def history(self) -> list[Fact]:
        return await self.memory.facts.history(user_id=USER)

    async def times(self) -> set[datetime | None]:
        """The times of validity in all rows, superseded ones included."""
        return {at for row in await self.history() for at in (row.valid_from, row.valid_to)} - {None}


@pytest.fixture(params=["inmemory", "sqlite", "postgres"])
async def learnt(
    request: pytest.FixtureRequest, database: Database, redis_url: str, tmp_path: Path
) -> AsyncIterator[Learnt]:
    if request.param == "postgres":
        async with learning(database, redis_url, tmp_path) as made:
            yield Learnt(memory=made.memory, settle=made.settle)
        return
    url = "inmemory" if request.param == "inmemory" else f"sqlite:///{tmp_path}/memory.db"
    async with Memory(url, settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        yield Learnt(memory=memory, settle=lambda: memory.drain(user_id=USER))


@pytest.mark.parametrize("how", ["before", "ids", "session", "retention"])
async def test_a_fact_begins_with_the_first_message_that_is_left(learnt: Learnt, how: str) -> None:
    memory = learnt.memory
    first = await learnt.say("I'm vegan.", FIRST)
    last = await learnt.say("I'm vegan.", LAST)
    [before] = await learnt.facts("diet")
    assert before.valid_from == FIRST

    if how == "before":
        await memory.forget(user_id=USER, before=datetime(2024, 1, 1, tzinfo=UTC))
    elif how == "ids":
        await memory.forget(user_id=USER, ids=[first])
    elif how == "session":
        await memory.forget(user_id=USER, session_id="2023")
    else:
        await memory.retention.set(max_episodes=1)
        await memory.retention.run()

    [after] = await memory.facts.query(user_id=USER, predicate="diet")
    assert (after.id, after.object, after.sources, after.valid_from) == (before.id, "vegan", (last,), LAST)
    assert after.strength == 1
    assert await learnt.times() == {LAST}


async def test_an_end_that_only_a_forgotten_message_gave_is_removed(learnt: Learnt) -> None:
    await learnt.say("I work at Brightline.", FIRST)
    left = await learnt.say("I left Brightline in March 2024.", LAST)
    [before] = await learnt.facts("works_at")
    assert before.valid_to is not None
    assert before.valid_to.year == 2024

    await learnt.memory.forget(user_id=USER, ids=[left])

    [after] = await learnt.memory.facts.query(user_id=USER, predicate="works_at")
    assert (after.object, after.valid_from, after.valid_to) == ("Brightline", FIRST, None)
    assert await learnt.times() == {FIRST}


async def test_an_end_without_the_message_that_gave_the_start_has_no_start(learnt: Learnt) -> None:
    first = await learnt.say("I work at Brightline.", FIRST)
    await learnt.say("I no longer work at Brightline.", LAST)

    await learnt.memory.forget(user_id=USER, ids=[first])

    [after] = await learnt.facts("works_at")
    assert (after.valid_from, after.valid_to) == (None, LAST)
    assert await learnt.times() == {LAST}


async def test_two_times_of_one_fact_are_one_without_what_was_between(learnt: Learnt) -> None:
    first = await learnt.say("I live in Oslo.", FIRST)
    rome = await learnt.say("I moved to Rome.", datetime(2024, 6, 1, 9, tzinfo=UTC))
    last = await learnt.say("I moved to Oslo.", LAST)
    before = [row for row in await learnt.facts("lives_in") if row.object == "Oslo"]
    await learnt.memory.feedback(helpful=[row.id for row in before], user_id=USER)
    await learnt.settle()

    gone = await learnt.memory.forget(user_id=USER, ids=[rome])

    [oslo] = await learnt.facts("lives_in")
    assert (oslo.valid_from, oslo.valid_to, set(oslo.sources)) == (FIRST, None, {first, last})
    assert gone.rows["facts"] >= 2
    items = str((await learnt.memory.export(user_id=USER)).items)
    assert [str(row.id) in items for row in before] == [row.id == oslo.id for row in before]


async def test_former_rows_of_the_fact_have_no_forgotten_time(learnt: Learnt) -> None:
    await learnt.say("I'm vegan.", FIRST)
    middle = datetime(2024, 6, 1, 9, tzinfo=UTC)
    await learnt.say("I'm vegan.", middle)
    await learnt.say("I'm no longer vegan.", LAST)
    assert [row.superseded_at is None for row in await learnt.history()].count(False) == 1

    await learnt.memory.forget(user_id=USER, before=datetime(2024, 1, 1, tzinfo=UTC))

    [after] = await learnt.facts("diet")
    assert (after.valid_from, after.valid_to) == (middle, LAST)
    assert await learnt.times() == {middle, LAST}


async def test_what_a_forgotten_fact_had_ended_is_valid_until_the_next(learnt: Learnt) -> None:
    await learnt.say("I live in Oslo.", FIRST)
    moved = datetime(2024, 6, 1, 9, tzinfo=UTC)
    rome = await learnt.say("I moved to Rome.", moved)
    await learnt.say("I moved to Bern.", LAST)

    await learnt.memory.forget(user_id=USER, ids=[rome])

    homes = [(row.object, row.valid_from, row.valid_to) for row in await learnt.facts("lives_in")]
    assert homes == [("Oslo", FIRST, LAST), ("Bern", LAST, None)]
    assert "Rome" not in {row.object for row in await learnt.history()}
    assert await learnt.times() == {FIRST, LAST}


async def test_a_retraction_of_a_forgotten_message_is_reverted(learnt: Learnt) -> None:
    await learnt.say("I work at Acme.", FIRST)
    never = await learnt.say("I have never worked for Acme.", LAST)
    assert await learnt.facts("works_at") == []

    await learnt.memory.forget(user_id=USER, ids=[never])

    [acme] = await learnt.facts("works_at")
    assert (acme.object, acme.valid_from, acme.valid_to) == ("Acme", FIRST, None)


async def test_what_a_call_stated_stays_with_the_time_of_the_call(learnt: Learnt) -> None:
    first = await learnt.say("I'm vegan.", FIRST)
    stated = await learnt.memory.facts.add("user", "diet", "vegan", user_id=USER, valid_from=LAST)
    assert stated.valid_from == FIRST

    await learnt.memory.forget(user_id=USER, ids=[first])

    [after] = await learnt.facts("diet")
    assert (after.object, after.sources, after.valid_from, after.extractor) == ("vegan", (), LAST, "user")


async def test_a_correction_has_the_time_of_the_messages_that_are_left(learnt: Learnt) -> None:
    first = await learnt.say("I'm vegan.", FIRST)
    last = await learnt.say("I'm vegan.", LAST)
    [vegan] = await learnt.facts("diet")
    await learnt.memory.facts.correct(vegan, "vegetarian", user_id=USER)

    await learnt.memory.forget(user_id=USER, ids=[first])

    [after] = await learnt.facts("diet")
    assert (after.object, after.sources, after.valid_from) == ("vegetarian", (last,), LAST)
    assert FIRST not in await learnt.times()


async def test_facts_about_other_things_are_not_changed(learnt: Learnt) -> None:
    await learnt.say("I'm vegan.", FIRST)
    await learnt.say("I'm vegan. I live in Oslo.", LAST)
    [oslo] = await learnt.facts("lives_in")
    later = LAST + timedelta(days=1)
    await learnt.say("I live in Oslo.", later)

    await learnt.memory.forget(user_id=USER, before=datetime(2024, 1, 1, tzinfo=UTC))

    [after] = await learnt.facts("lives_in")
    assert (after.id, after.recorded_at, after.valid_from, after.strength) == (oslo.id, oslo.recorded_at, LAST, 2)
