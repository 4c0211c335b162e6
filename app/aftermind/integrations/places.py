"""Where a drop-in keeps its memory."""

from collections.abc import Mapping
from typing import Any

from aftermind.memory import Memory

Place = Memory | str | Mapping[str, Any]  # Any: the values of a dict that describes a store


class MemoryPlace:
    """A `Memory`, or the URL or dict of its store; None: the settings of Aftermind."""

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None) -> None:
        self.memory = memory if isinstance(memory, Memory) else Memory(memory)
        self.namespace = namespace

    async def close(self) -> None:
        """Send remaining turns, and close all connections."""
        await self.memory.close()

    def whose(self, user_id: str | None) -> dict[str, Any]:
        """The owner, for calls of the memory."""
        return {"user_id": user_id, "namespace": self.namespace}
