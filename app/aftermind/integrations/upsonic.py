"""Drop-in for Upsonic: `from aftermind.integrations.upsonic import Agent, Chat, Memory, SqliteStorage, Task`.

All names of Upsonic and of its storage and memory packages are here.
"""

from inspect import signature
from typing import Any

from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import Place
from aftermind.integrations.upsonic_memory import Memory
from aftermind.integrations.upsonic_storages import STORAGES, AftermindStorage

with extra("upsonic"):
    import upsonic
    import upsonic.chat
    import upsonic.storage
    import upsonic.storage.memory

__all__ = ["AftermindStorage", "Chat", "Memory"]

MEMORY_OPTIONS = frozenset(signature(upsonic.storage.memory.Memory).parameters) - {"storage"}


class Chat(upsonic.chat.Chat):
    """Upsonic's `Chat` on Aftermind: `Chat(session_id="s1", user_id="alice", agent=agent, storage=SqliteStorage())`.

    `storage` is a storage of this module, or what `AftermindStorage` takes; None: the settings of Aftermind. An agent
    that has a memory keeps it, as in Upsonic. Messages that are deleted are forgotten with what was derived from them.
    """

    def __init__(
        self,
        session_id: str,
        user_id: str,
        agent: Any,
        *,
        storage: AftermindStorage | Place | None = None,
        **options: Any,
    ) -> None:
        if agent is not None and agent.memory is None:
            given = signature(upsonic.chat.Chat).bind(session_id, user_id, agent, **options)
            given.apply_defaults()
            chosen = {name: value for name, value in given.arguments.items() if name in MEMORY_OPTIONS}
            agent.memory = Memory(storage, **chosen)
        super().__init__(session_id, user_id, agent, **options)


def __getattr__(name: str) -> Any:
    """A storage of Aftermind by Upsonic's name, or any other name of Upsonic, its storages and its memory."""
    if name in STORAGES:
        return STORAGES[name]
    for module in (upsonic.storage, upsonic.storage.memory):
        if name in module.__all__:
            return getattr(module, name)
    return getattr(upsonic, name)
