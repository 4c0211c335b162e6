"""`memory.get`: messages by id, stored and pending ones, of their user alone."""

from uuid import uuid4

import pytest

from aftermind import Memory, errors


async def test_messages_are_found_by_id_in_the_order_asked_for() -> None:
    async with Memory("inmemory") as memory:
        stored = await memory.remember(["first", "second"], user_id="alice")
        await stored.stored(timeout=60)
        waiting = await memory.remember("third", user_id="alice")
        ids = [waiting.episode_ids[0], stored.episode_ids[1], uuid4(), stored.episode_ids[0]]

        found = await memory.get(*map(str, ids), user_id="alice")
        of_bob = await memory.get(*map(str, ids), user_id="bob")

        assert [each and each.content for each in found] == ["third", "second", None, "first"]
        assert of_bob == [None] * 4


async def test_a_text_that_is_no_id_is_refused() -> None:
    with pytest.raises(errors.InvalidQuery):
        await Memory("inmemory").get("first")
