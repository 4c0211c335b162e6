"""Profiles and summaries of old conversations have the dates of those, and no traits that are no longer true."""

from datetime import UTC, datetime

from aftermind import Memory, Message, Settings

AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0, "extract_quiet_seconds": 0.0}
OFFLINE = Settings(embedder="hash", extractor="rules", **AT_ONCE)


async def test_a_block_dates_traits_and_summaries_by_their_messages() -> None:
    said = datetime(2025, 11, 15, tzinfo=UTC)
    async with Memory("inmemory", settings=OFFLINE) as memory:
        await memory.remember(
            [Message.user("I have a dog named Bruno.", occurred_at=said)], user_id="ana", session_id="s"
        )
        await memory.drain(user_id="ana", timeout=30)
        block = await memory.recall("What pets do I have?", user_id="ana", session_id="s2")
        summary = await memory.summary(user_id="ana", session_id="s")

    assert summary is not None
    assert summary.last_message_at == said
    assert 'up_to="2025-11-15"' in block.text
    assert "Bruno (as of 2025-11-15)" in block.text


async def test_a_trait_of_which_nothing_is_true_any_more_is_no_line_of_the_block() -> None:
    async with Memory("inmemory", settings=OFFLINE) as memory:
        for text in ("I play the cello.", "I no longer play the cello."):
            await memory.remember(text, user_id="ana")
            await memory.drain(user_id="ana", timeout=30)
        profile = await memory.profile(user_id="ana")

    assert profile is None or "plays" not in profile.traits
