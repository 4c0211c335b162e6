"""Raising and reading the watermark of an owner outside of a store: after embedding, facts, blocks, forget."""

from collections.abc import Iterable

from aftermind.types import Scope, Watermark
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys, owner_part
from aftermind.wire.script import Script


class Watermarks:
    """The watermarks of one Redis. Raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._raise = Script("raise", keys)

    async def raise_to(self, watermark: Watermark | None, owners: Iterable[Scope]) -> None:
        """After a COMMIT (never before), for those whose rows it changed. None (no replica can lag) does nothing."""
        parts = sorted({owner_part(owner) for owner in owners})
        if watermark is not None and parts:
            await self._raise(self._link, watermark.system, watermark.timeline, watermark.lsn, *parts)

    async def of(self, owner: Scope) -> Watermark | None:
        """The owner's watermark, or None where nothing was written for a day."""
        text = await self._link.call("GET", self._keys.watermark(owner))
        return None if text is None else Watermark.decode(text.decode())
