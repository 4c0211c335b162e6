"""Tools with which an agent edits the blocks of its current user."""

from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from aftermind import errors
from aftermind.agent.function_tools import Tool
from aftermind.agent.run_context import get_run_context
from aftermind.api.blocking_portal import Blocking, to_async
from aftermind.memory import Memory


class _Whose(TypedDict):
    user_id: str | None
    namespace: str


def block_tools(memory: Memory | Blocking[Memory]) -> list[Tool]:
    """Tools to read, write, append to, replace in and delete blocks: `Agent(tools=[*block_tools(memory), …])`.

    They work only on the blocks of the run's user, whatever the model requests. Concurrent edits of two runs are not
    lost: an edit checks the version that it read. Outside a run they raise `InvalidScope`. `memory` is a `Memory`, also
    that of `aftermind.sync`.
    """
    blocks = to_async(memory).blocks

    async def list_blocks() -> list[dict[str, Any]]:  # Any: JSON for the model
        """List the named notes about this user, with their text."""
        return [
            {"name": block.name, "description": block.description, "content": block.content}
            for block in await blocks.list(**_whose())
        ]

    async def write_block(name: str, content: str) -> str:
        """Create a named note about this user, or replace its whole text."""
        return _done((await blocks.set(name, content, **_whose())).content)

    async def append_to_block(name: str, line: str) -> str:
        """Add a line at the end of a note, creating it where there is none."""
        return _done((await blocks.append(name, line, **_whose())).content)

    async def replace_in_block(name: str, old: str, new: str) -> str:
        """Replace the only occurrence of `old` in a note, word for word."""
        return _done((await blocks.replace(name, old, new, **_whose())).content)

    async def delete_block(name: str) -> str:
        """Delete a note."""
        return "deleted" if await blocks.delete(name, **_whose()) else "there was no such note"

    functions: list[Callable[..., Awaitable[object]]] = [
        *(list_blocks, write_block, append_to_block, replace_in_block, delete_block)
    ]
    return [Tool.of(function) for function in functions]


def _whose() -> _Whose:
    context = get_run_context()
    if context is None:
        raise errors.InvalidScope("user_id", None, "block tools work for the user of a run; there is no run here.")
    return {"user_id": context.scope.user_id, "namespace": context.scope.namespace}


def _done(content: str) -> str:
    return f"The note reads now:\n{content}"
