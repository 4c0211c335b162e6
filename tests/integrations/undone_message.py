"""A stored message that is undone, for adapters that read a session back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aftermind import Memory


@asynccontextmanager
async def memory_of_one_process() -> AsyncIterator[Memory]:
    """It stores turns itself: only a stored message can be undone."""
    async with Memory("inmemory", embedder="hash", extractor="rules") as memory:
        yield memory


async def undo_oldest(memory: Memory, *, user_id: str) -> None:
    """Wait until the user's messages are stored, and undo the oldest."""
    await memory.drain(user_id=user_id)
    oldest, *_ = await memory.history(user_id=user_id)
    await memory.undo(oldest.id, user_id=user_id)
