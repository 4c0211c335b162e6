"""An earlier recall is repeated by its id, on every store; nothing is kept of it that an erasure would miss."""

import pytest

from aftermind import Memory, errors

QUESTION = "What is the boat called?"


async def test_an_earlier_recall_is_repeated_by_its_id(memory: Memory) -> None:
    await memory.remember("The boat is called Ingrid.", user_id="alice", session_id="s1")
    then = await memory.recall(QUESTION, user_id="alice")
    await memory.remember("The boat is called Astrid now.", user_id="alice", session_id="s1")

    again = await memory.explain(QUESTION, recall_id=then.id, user_id="alice")
    now = await memory.explain(QUESTION, user_id="alice")

    assert again.block.text == then.text
    assert again.block.id == then.id
    assert "Ingrid" in then.text
    assert "Astrid" not in then.text
    assert "Astrid" in now.block.text
    assert again.known_at is not None


async def test_an_erased_turn_is_in_no_repeated_recall(memory: Memory) -> None:
    await memory.remember("The boat is called Ingrid.", user_id="alice", session_id="s1")
    then = await memory.recall(QUESTION, user_id="alice")
    await memory.forget(user_id="alice")

    again = await memory.explain(QUESTION, recall_id=then.id, user_id="alice")

    assert "Ingrid" in then.text
    assert again.block.text == ""
    assert again.excluded == ()


async def test_what_is_no_id_of_a_recall_is_refused(memory: Memory) -> None:
    known = (await memory.recall(QUESTION, user_id="alice")).id
    moment = (await memory.explain(QUESTION, recall_id=known, user_id="alice")).known_at

    for given in ("", "Ingrid", "8b4f0a2e-5a51-4c3d-9f0a-2f6c3f3b6d11", "ffffffff-ffff-7fff-bfff-ffffffffffff"):
        with pytest.raises(errors.InvalidQuery, match="no id of a recall"):
            await memory.explain(QUESTION, recall_id=given, user_id="alice")
    with pytest.raises(errors.InvalidQuery, match="Leave out `known_at` or `recall_id`"):
        await memory.explain(QUESTION, recall_id=known, known_at=moment, user_id="alice")
