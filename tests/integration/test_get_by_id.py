"""Messages by id, stored and pending ones, of their user alone, and by page."""

from dataclasses import replace
from uuid import uuid4

import pytest

from aftermind import Episode, Memory, errors
from aftermind.types import EpisodeId
from tests.support.stored_turns import said


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


async def test_pages_have_each_message_once_where_sessions_share_a_position() -> None:
    written = [said(f"message {number}", session=f"s{number % 3}") for number in range(12)]
    written = [replace(each, position=place // 6) for place, each in enumerate(written)]
    async with Memory("inmemory") as memory:
        parts = memory._parts
        async with parts.db.transaction(namespace="default") as tx:
            await parts.store.add_episodes(tx, written)
        pages: list[list[str]] = []
        before: Episode | tuple[int, EpisodeId] | None = None
        while page := await memory.history(user_id="alice", limit=4, before=before):
            pages.insert(0, [each.content for each in page])
            before = page[0] if len(pages) % 2 else (page[0].position, page[0].id)  # either form of the same place

        expected = [each.content for each in sorted(written, key=lambda each: (each.position, each.id))]
        assert [content for page in pages for content in page] == expected
        with pytest.raises(errors.InvalidQuery):
            await memory.history(user_id="alice", before=(1, "no id"))  # type: ignore[arg-type]


async def test_a_text_that_is_no_id_is_refused() -> None:
    with pytest.raises(errors.InvalidQuery):
        await Memory("inmemory").get("first")
