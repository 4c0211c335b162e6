"""What memory does, one concept a test."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from aftermind import Memory, Message, errors

# Ids that break careless code: SQL, globs, separators, quotes, other scripts, the longest that is allowed.
ODD = [
    "o'brien; DROP TABLE x--",
    "*",
    "?",
    "[a-z]",
    "a:b",
    "a/b",
    "@",
    "%",
    "%40",
    "..",
    "{user}",
    "-rf",
    "ålice 你好 🦊",
    "x" * 512,
]


async def test_what_was_said_is_recalled(memory: Memory, user: str) -> None:
    receipt = await memory.remember("I prefer dark mode.", user_id=user)
    await receipt.stored(timeout=180)

    block = await memory.recall("Which mode do I prefer?", user_id=user)

    assert "I prefer dark mode." in block.text
    assert block.degraded is None


async def test_a_turn_is_several_messages_in_their_order(memory: Memory, user: str) -> None:
    turn = [
        Message.user("Where is the key?"),
        Message.assistant("Under the mat."),
        {"role": "user", "content": "Thanks!"},
    ]

    await (await memory.remember(turn, user_id=user, session_id="s1")).stored(timeout=180)

    assert [each.content for each in await memory.history(user_id=user, session_id="s1")] == [
        "Where is the key?",
        "Under the mat.",
        "Thanks!",
    ]


async def test_a_recalled_turn_keeps_its_order_whatever_each_message_is_worth(memory: Memory, user: str) -> None:
    turn = [
        Message.user("What did we agree on?"),
        Message.assistant("The venue of the wedding is the old mill in Bergen."),
        Message.user("And the cake?"),
    ]
    await memory.remember(turn, user_id=user, session_id="s1")

    block = await memory.recall("Is the wedding venue the old mill in Bergen?", user_id=user)

    best, *_ = block.matches
    assert "old mill" in str(best.item)
    assert [line.text for line in block.lines] == [each.content for each in turn]


async def test_another_session_of_the_same_user_is_recalled(memory: Memory, user: str) -> None:
    await memory.remember("My dog is called Pixel.", user_id=user, session_id="january")

    block = await memory.recall("What is my dog called?", user_id=user, session_id="march")

    assert "Pixel" in block.text


async def test_another_user_is_never_recalled(memory: Memory, user: str) -> None:
    await (await memory.remember("My PIN is 4711.", user_id=user)).stored(timeout=180)

    assert "4711" not in (await memory.recall("What is my PIN?", user_id=f"{user}-other")).text
    assert "4711" not in (await memory.recall("What is my PIN?", user_id=user, namespace="other")).text
    assert await memory.history(user_id=None, limit=10) == []


async def test_users_with_odd_ids_never_see_each_other(memory: Memory, user: str) -> None:
    namespace = f"odd-{user}"
    owners: list[str | None] = [None, *ODD]
    for place, owner in enumerate(owners):
        await memory.remember(f"My secret word is wort{place}.", user_id=owner, namespace=namespace)

    async def recalled(owner: str | None) -> list[str]:
        block = await memory.recall("What is my secret word?", user_id=owner, namespace=namespace)
        return re.findall(r"wort\d+", block.text)

    assert [await recalled(owner) for owner in owners] == [[f"wort{place}"] for place in range(len(owners))]
    for owner in owners:
        await memory.drain(user_id=owner, namespace=namespace)
    assert [await recalled(owner) for owner in owners] == [[f"wort{place}"] for place in range(len(owners))]


@pytest.mark.parametrize("wrong", ["", "x" * 513, "a\x00b", 7, b"bytes", "\ud800"])
async def test_an_id_that_cannot_be_one_is_refused_at_the_call(memory: Memory, wrong: Any) -> None:  # Any: wrong types
    with pytest.raises(errors.InvalidScope):
        await memory.remember("Hello", user_id=wrong)
    with pytest.raises(errors.InvalidScope):
        await memory.recall("Hello", user_id=wrong)


async def test_the_same_idempotency_key_is_the_same_turn(memory: Memory, user: str) -> None:
    first = await memory.remember("I moved to Oslo.", user_id=user, idempotency_key="request-1")
    again = await memory.remember("I moved to Oslo.", user_id=user, idempotency_key="request-1")
    await first.stored(timeout=180)
    await again.stored(timeout=180)

    assert first.job_id == again.job_id
    assert len(await memory.history(user_id=user)) == 1


async def test_a_message_keeps_its_date_name_and_metadata(memory: Memory, user: str) -> None:
    said_at = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    message = {
        "role": "user",
        "content": "Hi",
        "name": "Mel",
        "metadata": {"turn": 1},
        "timestamp": said_at.isoformat(),
    }

    await (await memory.remember(message, user_id=user)).stored(timeout=180)

    (episode,) = await memory.history(user_id=user)
    assert (episode.occurred_at, episode.name, episode.metadata) == (said_at, "Mel", {"turn": 1})


async def test_a_block_never_takes_more_tokens_than_it_may(memory: Memory, user: str) -> None:
    for number in range(20):
        await memory.remember(f"Note {number}: the quick brown fox jumps over the lazy dog.", user_id=user)

    block = await memory.recall("fox", user_id=user, token_budget=100)

    assert block.tokens_used <= 100
    assert block.chunks_included < block.chunks_available


async def test_a_context_window_holds_the_newest_messages_that_fit(memory: Memory, user: str) -> None:
    for number in range(50):
        await memory.remember(f"Message number {number} of fifty.", user_id=user, session_id="s1")

    window = await memory.context_window(100, user_id=user, session_id="s1")

    assert window[-1].content == "Message number 49 of fifty."
    assert 1 < len(window) < 50


async def test_rows_are_found_by_role_metadata_and_time(memory: Memory, user: str) -> None:
    await memory.remember([Message.user("Question"), Message.assistant("Answer")], user_id=user)
    await memory.remember({"role": "user", "content": "Tagged", "metadata": {"tag": "x"}}, user_id=user)

    assert [each.content for each in await memory.search(user_id=user, roles=["assistant"])] == ["Answer"]
    assert [each.content for each in await memory.search(user_id=user, metadata={"tag": "x"})] == ["Tagged"]
    assert await memory.search(user_id=user, until=datetime(2020, 1, 1, tzinfo=UTC)) == []


async def test_a_query_searches_rows_within_the_filters_best_first(memory: Memory, user: str) -> None:
    for session, text in (("a", "My dog is called Pixel."), ("b", "The dog sleeps."), ("a", "I like tea.")):
        await memory.remember(text, user_id=user, session_id=session)

    found = await memory.search("What is my dog called?", user_id=user)
    narrow = await memory.search("dog", user_id=user, session_id="b", limit=5)

    assert found[0].content == "My dog is called Pixel."
    assert [each.content for each in narrow] == ["The dog sleeps."]
    with pytest.raises(errors.InvalidQuery, match="before"):
        await memory.search("dog", user_id=user, before=found[0])


async def test_episodes_become_chat_messages(memory: Memory, user: str) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"}]}
    turn = [
        Message.user("How warm is it?", metadata={"channel": "web"}),
        call,
        {"role": "tool", "content": "12 degrees", "tool_call_id": "c1"},
        Message.assistant("Twelve degrees."),
    ]
    await memory.remember(turn, user_id=user, session_id="s1")

    stored = await memory.history(user_id=user, session_id="s1")

    assert stored[0].metadata == {"channel": "web"}
    assert [each.to_chat() for each in stored] == [
        {"role": "user", "content": "How warm is it?"},
        call | {"content": ""},
        {"role": "tool", "content": "12 degrees", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Twelve degrees."},
    ]


async def test_a_notebook_shows_a_block_as_a_table_and_runs_no_content(memory: Memory, user: str) -> None:
    await memory.remember(f"My dog is called <script>Pixel</script>. {'It barks. ' * 200}", user_id=user)

    block = await memory.recall("What is my dog called?", user_id=user)
    html = block._repr_html_() + block.matches[0]._repr_html_()

    assert html.count("&lt;script&gt;Pixel") >= 2
    assert "<script>" not in html
    assert all(len(repr(each)) < 250 for each in (block, *block.matches, *(match.item for match in block.matches)))


async def test_a_notebook_shows_what_has_ended(memory: Memory, user: str) -> None:
    await (await memory.remember("I live in Ghent.", user_id=user, session_id="s1")).extracted(timeout=180)
    await (await memory.remember("I moved to Leuven.", user_id=user, session_id="s1")).extracted(timeout=180)

    html = (await memory.recall("Where did I live before Leuven?", user_id=user))._repr_html_()

    assert "user: I live in Ghent. (superseded 20" in html
    assert re.search(r"user lives in Ghent \(since [\d-]+, until [\d-]+\)", html)
    assert re.search(r"user lives in Leuven \(since [\d-]+\)", html)


async def test_sessions_are_listed_the_latest_first(memory: Memory, user: str) -> None:
    for session in ("first", "second"):
        await (await memory.remember("Hello", user_id=user, session_id=session)).stored(timeout=180)

    assert [each.session_id for each in await memory.sessions(user_id=user)] == ["second", "first"]
