"""Agent memory whose writes happen after the answer."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time `__getattr__` loads each name at its first use, so that importing stays light
    from aftermind.agent import Agent, AgentResult, Tool, block_tools
    from aftermind.context import RunContext, get_run_context
    from aftermind.errors import AftermindError
    from aftermind.events.types import (
        MemoryEvent,
        MemoryFactsExtracted,
        MemoryGap,
        MemoryRecallCompleted,
        MemoryRecallStarted,
        MemoryUpdateCompleted,
        MemoryUpdateFailed,
        MemoryUpdateQueued,
        MemoryUpdateStarted,
    )
    from aftermind.memory import Memory
    from aftermind.receipt import Receipt
    from aftermind.settings import Settings
    from aftermind.types import Block, Episode, Fact, Match, Message, Profile, RecallBlock, Role, Scope, Summary

__version__ = "0.1.0"

_HOMES = {
    "aftermind.agent": ("Agent", "AgentResult", "Tool", "block_tools"),
    "aftermind.context": ("RunContext", "get_run_context"),
    "aftermind.errors": ("AftermindError",),
    "aftermind.events.types": (
        "MemoryEvent",
        "MemoryFactsExtracted",
        "MemoryGap",
        "MemoryRecallCompleted",
        "MemoryRecallStarted",
        "MemoryUpdateCompleted",
        "MemoryUpdateFailed",
        "MemoryUpdateQueued",
        "MemoryUpdateStarted",
    ),
    "aftermind.memory": ("Memory",),
    "aftermind.receipt": ("Receipt",),
    "aftermind.settings": ("Settings",),
    "aftermind.types": (
        "Block",
        "Episode",
        "Fact",
        "Match",
        "Message",
        "Profile",
        "RecallBlock",
        "Role",
        "Scope",
        "Summary",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AftermindError",
    "Agent",
    "AgentResult",
    "Block",
    "Episode",
    "Fact",
    "Match",
    "Memory",
    "MemoryEvent",
    "MemoryFactsExtracted",
    "MemoryGap",
    "MemoryRecallCompleted",
    "MemoryRecallStarted",
    "MemoryUpdateCompleted",
    "MemoryUpdateFailed",
    "MemoryUpdateQueued",
    "MemoryUpdateStarted",
    "Message",
    "Profile",
    "RecallBlock",
    "Receipt",
    "Role",
    "RunContext",
    "Scope",
    "Settings",
    "Summary",
    "Tool",
    "block_tools",
    "get_run_context",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    value.__module__ = __name__  # where users find it, in reprs and tracebacks
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
