"""Conversations of tests, and what a recall of them has."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from aftermind import Fact, Memory, Message, RecallBlock, RecallMode, Receipt, Settings
from tests.support.learning import AT_ONCE, UNHURRIED

CONVERSATION = Path(__file__).parents[2] / "examples" / "conversation.jsonl"


Turn = dict[str, Any]  # Any: JSON as it is in the file


def turns() -> list[Turn]:
    """What Alice says in the README's example."""
    return [
        turn for line in CONVERSATION.read_text().splitlines() if (turn := orjson.loads(line))["user_id"] == "alice"
    ]


async def hand_over(memory: Memory, turn: Turn) -> Receipt:
    messages = [{**message, "occurred_at": turn["timestamp"]} for message in turn["messages"]]
    return await memory.remember(messages, user_id="alice", session_id=turn["session_id"])


def texts(block: RecallBlock) -> list[str]:
    return [each.item.text if isinstance(each.item, Fact) else str(each.item.content) for each in block.matches]  # type: ignore[union-attr]


async def say(
    memory: Memory, *said: tuple[str, tuple[int, int, int]], user: str = "vera", name: str | None = None
) -> None:
    for text, day in said:
        message = Message(role="user", content=text, name=name, occurred_at=datetime(*day, tzinfo=UTC))
        await memory.remember([message], user_id=user, session_id="s")
        await memory.drain(user_id=user)


async def recall_after(*said: tuple[str, tuple[int, int, int]], question: str, mode: RecallMode) -> RecallBlock:
    """The block of a memory that has learnt this."""
    async with Memory("inmemory", settings=Settings(**AT_ONCE, **UNHURRIED)) as memory:
        await say(memory, *said)
        return await memory.recall(question, user_id="vera", mode=mode)


KIM = (
    ("My name is Kim. I live in Leeds.", (2026, 3, 1)),
    ("I moved from Leeds to Manchester.", (2026, 6, 1)),
    ("My card was charged for the May invoice.", (2026, 6, 3)),
    ("I visited a concert on Saturday.", (2026, 7, 6)),
    ("I started a pottery class.", (2026, 7, 20)),
    ("I bought running shoes.", (2026, 8, 4)),
)
