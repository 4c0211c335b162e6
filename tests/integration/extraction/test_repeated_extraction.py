"""An extraction that is repeated with the same extractor changes nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from aftermind import JobFilter, Memory, Message, Settings
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobKind
from aftermind.types.replay import PlanState, ReplayMode
from tests.support.waiting import wait_until

AT_ONCE = Settings(embedder="hash", extractor="rules", extract_quiet_seconds=0)
BEGIN = datetime(2025, 3, 2, tzinfo=UTC)
REPEAT = NewPlan(name="p", reason="r", actor="ops", mode=ReplayMode.REEXTRACT, rate=100)


async def repeated(memory: Memory) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What a dry run of all extractions shows; they are repeated then."""
    plan = await memory.replays.create(JobFilter(namespace=memory.namespace, kinds=(JobKind.EXTRACT,)), REPEAT)
    await memory.replays.dry_run(plan.id)

    async def ended() -> bool:
        return all(each.state.is_final for each in await memory.replays.dry_run_results(plan.id))

    async def done() -> bool:
        found = await memory.replays.get(plan.id)
        return found is not None and found.state is PlanState.DONE

    await wait_until(ended, description="the dry run has ended")
    changes = [(each.added, each.superseded) for each in await memory.replays.dry_run_results(plan.id)]
    await memory.replays.start(plan.id)
    await wait_until(done, description="the extractions are repeated")
    return changes


@pytest.mark.parametrize(
    "said",
    [
        ("I have a dog named Rex.", "Rex died."),
        ("I live in Berlin.", "I meant Bern, not Berlin."),
        ("I live in Berlin.", "I left Berlin.", "I moved to Bern."),
        ("I'm dating Ana.", "Ana and I broke up."),
        ("I work at Acme.", "I quit my job.", "I used to work at Hooli."),
    ],
)
async def test_a_repeated_extraction_keeps_endings_and_corrections(said: tuple[str, ...]) -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for number, text in enumerate(said):
            message = Message.user(text, occurred_at=BEGIN + timedelta(days=30 * number))
            await (await memory.remember(message, user_id="zed", session_id=text)).extracted(timeout=30)
        before = await memory.facts.history("user", user_id="zed")

        changes = await repeated(memory)
        after = await memory.facts.history("user", user_id="zed")

    assert changes == [((), ())] * len(said)
    assert after == before


async def test_a_repeated_extraction_adds_no_second_row_of_what_its_own_messages_correct() -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        await (await memory.remember(["I live in Berlin.", "I meant Bern, not Berlin."], user_id="zed")).extracted(
            timeout=30
        )
        before = await memory.facts.history("user", user_id="zed")
        changes = await repeated(memory)
        after = await memory.facts.history("user", user_id="zed")

    assert {fact.object for fact in before} == {"Berlin", "Bern"}
    assert changes == [((), ())]
    assert after == before


async def test_a_session_of_several_times_is_given_what_was_current_at_each() -> None:
    days = {
        name: BEGIN + timedelta(days=days) for name, days in (("bern", 0), ("basel", 10), ("graz", 50), ("late", 100))
    }
    sessions = {
        "s0": [Message.user("I live in Bern.", occurred_at=days["bern"])],
        "s1": [
            Message.user("I meant Basel, not Bern.", occurred_at=days["basel"]),
            Message.user("Nice weather.", occurred_at=days["late"]),
        ],
        "s2": [Message.user("I moved to Graz.", occurred_at=days["graz"])],
    }
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        for name, messages in sessions.items():
            await (await memory.remember(messages, user_id="zed", session_id=name)).extracted(timeout=30)
        before = await memory.facts.history("user", user_id="zed")
        changes = await repeated(memory)
        after = await memory.facts.history("user", user_id="zed")

    assert changes == [((), ())] * 3
    assert after == before


async def test_what_a_call_states_is_ended_again() -> None:
    async with Memory("inmemory", settings=AT_ONCE) as memory:
        await memory.facts.add("user", "has_pet", "Rex", user_id="zed", valid_from=BEGIN - timedelta(days=900))
        died = Message.user("Rex died.", occurred_at=BEGIN)
        await (await memory.remember(died, user_id="zed", session_id="s")).extracted(timeout=30)
        before = await memory.facts.history("user", user_id="zed")
        changes = await repeated(memory)
        after = await memory.facts.history("user", user_id="zed")

    assert changes == [((), ())]
    assert after == before
    assert [fact.valid_to for fact in after if fact.superseded_at is None] == [BEGIN]
