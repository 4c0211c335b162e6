"""Whatever is closed by awaiting it, closed also where the test fails: one failure stays one failure."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class Closes(Protocol):
    """A database, a link, a recall: whatever holds sockets."""

    def close(self) -> Awaitable[None]:
        """Give them back."""
        ...


T = TypeVar("T", bound=Closes)


@asynccontextmanager
async def closing(opened: T) -> AsyncIterator[T]:
    """It, for the block. What is left open fails a later test of the same process, by a warning."""
    try:
        yield opened
    finally:
        await opened.close()
