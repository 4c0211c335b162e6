"""Upsonic's storages on Aftermind, by their names, with Upsonic's cultural knowledge."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from uuid import uuid4

from aftermind.integrations.conversations import run_blocking
from aftermind.integrations.framework_imports import extra
from aftermind.integrations.framework_store_urls import MemoryPlace, store_classes
from aftermind.integrations.upsonic_parameters import PARAMETERS
from aftermind.types import ItemWrite

with extra("upsonic"):
    from upsonic.culture.cultural_knowledge import CulturalKnowledge
    from upsonic.storage.base import AsyncStorage
    from upsonic.storage.in_memory import apply_sorting

CULTURE_USER = "upsonic:culture"  # no user's id: agents of all users share it, and forgetting one of them keeps it
CULTURE_PATH = ("culture",)
MAX_CULTURE_ENTRIES = 100_000


def blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """An async method for blocking code, with the same parameters."""

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return run_blocking(lambda: method(self, *args, **options))

    return call


class AftermindStorage(MemoryPlace):
    """Where Upsonic's memory is kept: an Aftermind `Memory`, or its URL or dict; None: the settings of Aftermind.

    Upsonic's `CultureMemory` takes it as its storage. Cultural knowledge belongs to the namespace and to no user, as
    JSON of at most 1 MiB an entry.
    """

    def with_expiry(self, turn: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with the time at which they expire, if the storage was given one (`expire`)."""
        if self.message_lifetime is None:
            return turn
        return [{**each, "expires_at": datetime.now(UTC) + self.message_lifetime} for each in turn]

    async def aupsert_cultural_knowledge(self, cultural_knowledge: CulturalKnowledge, deserialize: bool = True) -> Any:
        """Store an entry, with a new id if it has none; an entry with that id is replaced."""
        cultural_knowledge.id = cultural_knowledge.id or str(uuid4())
        record = cultural_knowledge.to_dict()
        write = ItemWrite(path=CULTURE_PATH, key=cultural_knowledge.id, value=record)
        await self.memory.items.write([write], **self.whose(CULTURE_USER))
        return _to_knowledge(record) if deserialize else record

    async def aget_cultural_knowledge(self, id: str, deserialize: bool = True) -> Any:
        """An entry by its id; None if there is none."""
        (found,) = await self.memory.items.get((CULTURE_PATH, id), **self.whose(CULTURE_USER))
        if found is None:
            return None
        return _to_knowledge(found.value) if deserialize else dict(found.value)

    async def aget_all_cultural_knowledge(
        self,
        name: str | None = None,
        limit: int | None = None,
        page: int | None = None,
        sort_by: str | None = None,
        sort_order: str | None = None,
        agent_id: str | None = None,
        team_id: str | None = None,
        deserialize: bool = True,
    ) -> Any:
        """Entries by name, agent and team, the last written first; as dicts with their number if not `deserialize`."""
        wanted = {"name": name, "agent_id": agent_id, "team_id": team_id}
        filter = {field: value for field, value in wanted.items() if value is not None}
        found = await self.memory.items.search(
            CULTURE_PATH, filter=filter, limit=MAX_CULTURE_ENTRIES, **self.whose(CULTURE_USER)
        )
        records = apply_sorting([dict(each.value) for each in found], sort_by, sort_order)
        start = (page - 1) * limit if limit and page else 0
        shown = records[start : start + limit] if limit else records
        return [_to_knowledge(each) for each in shown] if deserialize else (shown, len(records))

    async def adelete_cultural_knowledge(self, id: str) -> None:
        """Delete an entry, if there is one."""
        write = ItemWrite(path=CULTURE_PATH, key=id, value=None)
        await self.memory.items.write([write], **self.whose(CULTURE_USER))

    upsert_cultural_knowledge = blocking(aupsert_cultural_knowledge)
    get_cultural_knowledge = blocking(aget_cultural_knowledge)
    get_all_cultural_knowledge = blocking(aget_all_cultural_knowledge)
    delete_cultural_knowledge = blocking(adelete_cultural_knowledge)

    def upsert_usage_entry(self, entry: dict[str, Any]) -> None:
        """Nothing is stored: Upsonic counts its usage in the process. It catches the `NotImplementedError`."""
        raise NotImplementedError

    def query_usage_entries(self, **wanted: Any) -> list[dict[str, Any]]:
        """As `upsert_usage_entry`."""
        raise NotImplementedError


AsyncStorage.register(AftermindStorage)  # its methods begin with "a"; Upsonic then awaits them
STORAGES = store_classes(AftermindStorage, PARAMETERS)


def _to_knowledge(record: Any) -> CulturalKnowledge:
    return CulturalKnowledge.from_dict(dict(record))
