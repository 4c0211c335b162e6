"""Messages of a session, as adapters of chat histories read them back."""

import pytest

from aftermind import Memory, Settings
from aftermind.integrations import message_records
from aftermind.integrations.message_records import Records, read_session
from aftermind.types import Episode
from aftermind.types.validation import Limits
from tests.support.learning import AT_ONCE

LEARNS_AT_ONCE = Settings(**AT_ONCE)


@pytest.mark.parametrize(
    ("undone", "limit", "before", "found"),
    [
        ((), None, None, "abcde"),
        ((0, 4), None, None, "bcd"),
        ((0, 4), 2, None, "cd"),
        ((1, 2, 3), 2, None, "ae"),
        ((2, 3), 2, 4, "ab"),
        ((0, 1, 2, 3, 4), 2, None, ""),
    ],
)
async def test_an_adapter_reads_the_newest_messages_that_were_not_undone(
    undone: tuple[int, ...],
    limit: int | None,
    before: int | None,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_records, "PAGE", 2)
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.remember(list("abcde"), user_id="ann", session_id="s")
        await memory.drain(user_id="ann")
        stored = await memory.history(user_id="ann", session_id="s")
        for place in undone:
            await memory.undo(stored[place].id, user_id="ann")

        read = await read_session(
            memory, "s", limit, before=None if before is None else stored[before], user_id="ann", namespace=None
        )

    assert "".join(each.content for each in read) == found


async def test_a_search_for_the_newest_leaves_out_what_was_undone_before_it_counts() -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.remember(list("abc"), user_id="ann", session_id="s")
        await memory.drain(user_id="ann")
        newest = (await memory.history(user_id="ann"))[-1]
        await memory.undo(newest.id, user_id="ann")

        assert [each.content for each in await memory.search(limit=1, user_id="ann")] == ["c"]
        assert [each.content for each in await memory.search(limit=1, undone=False, user_id="ann")] == ["b"]


async def test_a_call_of_a_tool_is_in_the_history_and_in_no_recall() -> None:
    records = Records(
        framework="here",
        role=lambda each: str(each["role"]),
        text_at=lambda each: ("text",),
        is_call=lambda each: "call" in each,
    )
    conversation = [
        {"role": "user", "text": "Where is my parcel?"},
        {"role": "assistant", "text": None, "call": {"name": "track_parcel", "city": "Oslo"}},
        {"role": "tool", "text": "The parcel is in Oslo."},
        {"role": "assistant", "text": "It is in Oslo."},
    ]
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        turn = [records.to_message(each, Limits()) for each in conversation]
        await memory.remember(turn, user_id="ann", session_id="s")
        waiting = await memory.recall("track_parcel Oslo", user_id="ann")
        await memory.drain(user_id="ann")
        stored = await memory.recall("track_parcel Oslo", user_id="ann")
        newest = await memory.recall("", user_id="ann", limit=3)
        read = await read_session(memory, "s", None, user_id="ann", namespace=None)
        window = (await memory.context_window(1_000, user_id="ann", session_id="s")).to_chat()

    assert "" not in [each["content"] for each in window]
    assert [records.from_episode(each) for each in read] == conversation
    for block in (waiting, stored, newest):
        assert "The parcel is in Oslo." in str(block)
        assert "track_parcel" not in str(block)
        assert "" not in {match.item.content for match in block.matches if isinstance(match.item, Episode)}
    assert len(newest.matches) == 3
