"""Feedback about a block: what it changes, for whom, and what is refused; and procedures that are learned."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from aftermind import Episode, Fact, Memory, Settings, errors
from tests.support.waiting import PATIENCE_SECONDS

TEA, COFFEE = "My favourite drink is green tea.", "My favourite drink at work is coffee."
QUERY = "What is my favourite drink?"
RULE = "When I ask for a summary, please use bullet points."


def memory_with(folder: Path, **changed: Any) -> Memory:  # Any: settings by name
    return Memory(
        "inmemory",
        settings=Settings(
            state_dir=folder,
            embedder="off",
            extract_quiet_seconds=0,
            recall_budget_seconds=PATIENCE_SECONDS,
            **changed,
        ),
    )


@pytest.mark.parametrize(("weight", "expected"), [(0.0, COFFEE), (2.0, TEA)])
async def test_feedback_changes_the_order_only_if_it_has_a_weight(weight: float, expected: str, tmp_path: Path) -> None:
    async with memory_with(tmp_path, recall_feedback_weight=weight) as memory:
        for text in (TEA, COFFEE):
            await (await memory.remember(text, user_id="ann", session_id=text)).stored(PATIENCE_SECONDS)
        matches = await memory.recall_scored(QUERY, user_id="ann", load=["history"])
        assert [match.item.content for match in matches] == [COFFEE, TEA]  # type: ignore[union-attr]

        for _ in range(4):
            block = await memory.recall(QUERY, user_id="ann")
            tea = [match for match in block.matches if isinstance(match.item, Episode) and match.item.content == TEA]
            await (await memory.feedback(block, helpful=tea, user_id="ann")).stored(PATIENCE_SECONDS)

        first, *_ = await memory.recall_scored(QUERY, user_id="ann", load=["history"])
        assert (first.item.content, first.rank) == (expected, 1)  # type: ignore[union-attr]


async def test_feedback_counts_for_its_user_alone(tmp_path: Path) -> None:
    async with memory_with(tmp_path) as memory:
        fact = await memory.facts.add("when asked", "procedure", "be brief", user_id="ann", confidence=0.5)
        for whose in ({"user_id": "bob"}, {"user_id": "ann", "namespace": "other"}, {"user_id": None}):
            sent = await memory.feedback(helpful=[fact.id], **whose)  # type: ignore[arg-type]
            await sent.stored(PATIENCE_SECONDS)
            assert (await memory.export(**whose)).items == ()  # type: ignore[arg-type]

        (known,) = await memory.facts.query(user_id="ann")
        assert known.confidence == 0.5
        assert (await memory.export(user_id="ann")).items == ()


async def test_feedback_about_a_forgotten_message_leaves_no_row(tmp_path: Path) -> None:
    async with memory_with(tmp_path) as memory:
        receipt = await memory.remember(TEA, user_id="ann", session_id="s1")
        for _ in range(2):
            await (await memory.feedback(helpful=receipt.episode_ids, user_id="ann")).stored(PATIENCE_SECONDS)
            await memory.forget(user_id="ann", session_id="s1")
            assert (await memory.export(user_id="ann")).items == ()


async def test_a_member_gives_feedback_in_a_group_and_a_reader_does_not(tmp_path: Path) -> None:
    async with memory_with(tmp_path) as memory:
        await memory.groups.add("team", "ann")
        await memory.groups.add("team", "bob", role="reader")
        receipt = await memory.remember(TEA, user_id="ann", group="team")
        await receipt.stored(PATIENCE_SECONDS)

        block = await memory.recall(QUERY, user_id="bob", group="team")
        sent = await memory.feedback(block, helpful=receipt.episode_ids, user_id="ann", group="team")
        await sent.stored(PATIENCE_SECONDS)
        with pytest.raises(errors.GroupReadOnly):
            await memory.feedback(block, helpful=receipt.episode_ids, user_id="bob", group="team")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "at least one"),
        ({"helpful": [str(uuid4())]}, "shows no such"),
        ({"helpful": ["tea"]}, "ids of episodes"),
        ({"helpful": str(uuid4())}, "list of ids"),
        ({"helpful": 3}, "ids of episodes"),
        ({"helpful": [uuid4() for _ in range(201)]}, "at most 200"),
        ({"helpful": [str(uuid4())] * 2, "unhelpful": ["x"]}, "ids of episodes"),
    ],
)
async def test_feedback_that_names_nothing_shown_is_refused(given: Any, why: str, tmp_path: Path) -> None:
    async with memory_with(tmp_path) as memory:
        receipt = await memory.remember(TEA, user_id="ann")
        block = await memory.recall(QUERY, user_id="ann")
        with pytest.raises(errors.InvalidFeedback, match=why):
            await memory.feedback(block, **given, user_id="ann")
        with pytest.raises(errors.InvalidFeedback, match="name it once"):
            await memory.feedback(block, helpful=receipt.episode_ids, unhelpful=receipt.episode_ids, user_id="ann")


@pytest.mark.parametrize("is_on", [False, True])
async def test_procedures_are_learned_if_that_is_switched_on(is_on: bool, tmp_path: Path) -> None:
    async with memory_with(tmp_path, learn_procedures=is_on) as memory:
        for said in (RULE, "When I moved to Oslo, I was alone."):
            await (await memory.remember(said, user_id="ann")).extracted(PATIENCE_SECONDS)

        learned = await memory.facts.query(predicate="procedure", user_id="ann")
        block = await memory.recall("Please write a summary of our day.", user_id="ann", load=["facts"])

        found = [(each.subject, each.object, each.confidence) for each in learned]
        assert found == ([("when I ask for a summary", "use bullet points", 0.5)] if is_on else [])
        assert ("<procedures>\nwhen I ask for a summary: use bullet points\n</procedures>" in block.text) is is_on


async def test_a_procedure_that_fails_often_is_in_no_block(tmp_path: Path) -> None:
    async with memory_with(tmp_path) as memory:
        fact = await memory.facts.add(
            "when I ask for a summary", "procedure", "be brief", confidence=0.5, user_id="ann"
        )
        for _ in range(2):
            block = await memory.recall("Write a summary.", user_id="ann")
            assert "<procedures>\nwhen I ask for a summary: be brief\n</procedures>" in block.text
            await (await memory.feedback(block, unhelpful=[fact.id], user_id="ann")).stored(PATIENCE_SECONDS)
        assert "brief" not in (await memory.recall("Write a summary.", user_id="ann")).text
        (left_out,) = (await memory.explain("Write a summary.", user_id="ann")).excluded
        assert (left_out.match.item.id, left_out.reason) == (fact.id, "low_confidence")  # type: ignore[union-attr]
        (known,) = await memory.facts.query(user_id="ann")
        assert isinstance(left_out.match.item, Fact)
        assert left_out.match.item.confidence == known.confidence < 0.5
