"""Drop-in for loomflow: `from aftermind.integrations.loomflow import Agent, tool, RunContext`.

All names of loomflow are here. `Agent(memory="postgresql://…")`, with any store of Aftermind, uses `AftermindMemory`.
"""

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from aftermind import errors
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.loomflow_memory import AftermindMemory

with extra("loomflow"):
    import loomflow
    import loomflow.memory
    from loomflow.core.types import Episode

__all__ = ["AftermindMemory", "Agent"]

log = logging.getLogger(__name__)


def _or_empty(method: Callable[..., Any]) -> Callable[..., Any]:
    """A read of an `AftermindMemory` that finds nothing if memory fails."""

    @wraps(method)
    async def read(self: AftermindMemory, *args: Any, **options: Any) -> Any:
        try:
            return await method(self, *args, **options)
        except errors.AftermindError as exc:
            log.error("memory was not read for a run (%s): %s", method.__name__, exc)
            return []

    return read


class AgentMemory(AftermindMemory):
    """The memory of an `Agent`. If it fails, the agent answers without it, and the failure is logged."""

    working = _or_empty(AftermindMemory.working)
    recall = _or_empty(AftermindMemory.recall)
    recall_scored = _or_empty(AftermindMemory.recall_scored)
    recall_facts = _or_empty(AftermindMemory.recall_facts)
    session_messages = _or_empty(AftermindMemory.session_messages)

    async def remember(self, episode: Episode) -> str:
        """See `AftermindMemory.remember`. The answer exists already, so an error is logged instead of raised."""
        try:
            return await super().remember(episode)
        except errors.AftermindError as exc:
            log.error("a run was not remembered (episode %s): %s", episode.id, exc)
            return episode.id


def _default_memory() -> AgentMemory:
    """The memory of the settings. In memory if they name no store, as loomflow's own default is."""
    try:
        return AgentMemory()
    except errors.NoStoreNamed as exc:
        log.warning("the agent's memory ends with the process: %s", exc)
        return AgentMemory("inmemory")


class Agent(loomflow.Agent):
    """loomflow's `Agent`. `memory` is also any store of Aftermind, as a URL or a dict. None: the store of Aftermind's
    settings, or in memory if they name none.

    Facts are extracted by Aftermind's workers, so `auto_extract` is off by default. If memory fails, the agent answers
    without it.
    """

    def __init__(self, *args: Any, memory: Any = None, auto_extract: bool | None = False, **options: Any) -> None:
        if memory is None:
            memory = _default_memory()
        elif isinstance(memory, str | Mapping):
            memory = AgentMemory(memory)
        elif type(memory) is AftermindMemory:
            memory = AgentMemory(memory.memory, namespace=memory.namespace)
        super().__init__(*args, memory=memory, auto_extract=auto_extract, **options)


def __getattr__(name: str) -> Any:
    """Every other name of loomflow and of its memory package."""
    return getattr(loomflow if hasattr(loomflow, name) else loomflow.memory, name)
